// Api: /v1/kvcache and what an API key's tenant may do there.
#include <utility>

#include "server/api.h"
#include "server/api_route.h"

namespace kvasir {

Api::Caller Api::CallerOf(const HttpRequest& request) const {
  if (!options_.api_key_tenants || options_.api_keys.empty()) return {};
  const size_t key = KeyOf(request.authorization).value_or(0);
  return {"key-" + std::to_string(key + 1), key == 0};
}

PreparedCacheCall Api::PrepareCacheState(const HttpRequest& request) const {
  const Caller caller = CallerOf(request);
  PreparedCacheCall prepared;
  prepared.request.emplace();
  prepared.request->kind = CacheRequest::Kind::kState;
  prepared.request->tenant = caller.tenant;
  prepared.report.pin_budget = options_.pin_budget;
  prepared.report.tenant_quota = options_.tenant_quota;
  prepared.report.everything = caller.is_operator;
  prepared.report.texts = options_.api_keys.size() <= 1;
  return prepared;
}

Result<PreparedCacheCall> Api::PrepareCacheCall(const HttpRequest& request, Route route) const {
  using Kind = CacheCall::Kind;
  KVASIR_ASSIGN_OR_RETURN(const Json body, ParseBody(request.body));
  const Kind kind = route == Route::kWarm    ? Kind::kWarm
                    : route == Route::kPin   ? Kind::kPin
                    : route == Route::kUnpin ? Kind::kUnpin
                                             : Kind::kReset;
  KVASIR_ASSIGN_OR_RETURN(CacheCall call, ParseCacheCall(body, kind, Limits()));
  KVASIR_RETURN_IF_ERROR(CheckModel(call.model));
  const Caller caller = CallerOf(request);
  if (call.pin != 0 && !caller.is_operator)
    return InvalidArgument(
        "pin: with API keys as tenants only the first key unpins by number; give the prompt or "
        "the session",
        "pin");
  call.cache.tenant = caller.tenant;
  PreparedCacheCall prepared;
  CacheRequest command;
  command.tenant = call.cache.tenant;
  command.salt = call.cache.salt;
  command.session = call.session;
  command.ttl_s = call.ttl_s;
  command.pin = call.pin;
  command.drop_pins = call.drop_pins;
  command.kind = kind == Kind::kReset   ? CacheRequest::Kind::kReset
                 : kind == Kind::kUnpin ? CacheRequest::Kind::kUnpin
                                        : CacheRequest::Kind::kPin;
  if (call.has_prompt) {
    KVASIR_ASSIGN_OR_RETURN(std::vector<GenerationParams> built, prompts_.Build(call.prompt));
    command.tokens = built.front().prompt;
    if (kind == Kind::kWarm) {
      prepared.warm = std::move(built.front());
      prepared.warm->cache = call.cache;
      prepared.warm->warm = true;
      prepared.warm->queue_timeout_s = QueueTimeout(call.prompt);
    }
  }
  if (kind != Kind::kWarm || call.ttl_s > 0) prepared.request = std::move(command);
  return prepared;
}

void Api::RunCache(PreparedCacheCall prepared, std::shared_ptr<ResponseWriter> writer) {
  if (prepared.warm && draining())
    return writer->Send(
        ErrorResponse(Unavailable("the server is shutting down and takes no new requests")));
  auto runner = std::make_shared<CacheRunner>(model_, metrics_, std::move(prepared), writer);
  writer->Attach(runner);
  runner->Start();
}

}  // namespace kvasir
