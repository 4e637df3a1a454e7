#include "server/api.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>
#include <utility>

#include "server/api_route.h"
#include "server/page.h"

namespace kvasir {

namespace {

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Takes the same time wherever the texts differ.
bool SameSecret(std::string_view given, std::string_view secret) {
  size_t difference = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % secret.size()]);
  return difference == 0;
}

bool IsJson(std::string_view content_type) {
  std::string media(content_type.substr(0, content_type.find(';')));
  while (!media.empty() && (media.back() == ' ' || media.back() == '\t')) media.pop_back();
  for (char& c : media) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return media == "application/json" ||
         (StartsWith(media, "application/") && media.ends_with("+json"));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
                        HexDigit(text[i + 2]) >= 0;
    if (!escape) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
    i += 2;
  }
  return out;
}

HttpResponse JsonResponse(const Json& body) {
  HttpResponse response;
  response.body = DumpJson(body);
  return response;
}

constexpr std::string_view kModelsPath = "/v1/models";

}  // namespace

Api::Api(const ServerOptions& options, const ServedModel& model, ServerMetrics* metrics,
         Prepare prepare)
    : options_(options),
      model_(model),
      metrics_(metrics),
      prepare_(std::move(prepare)),
      prompts_(model) {}

std::optional<Api::Route> Api::Find(const std::string& path) const {
  static constexpr std::array<std::pair<std::string_view, Route>, 14> kRoutes = {{
      {"/v1/chat/completions", Route::kChat},
      {"/v1/completions", Route::kCompletions},
      {"/v1/kvcache/warm", Route::kWarm},
      {"/v1/kvcache/pin", Route::kPin},
      {"/v1/kvcache/unpin", Route::kUnpin},
      {"/v1/kvcache/reset", Route::kReset},
      {"/v1/kvcache", Route::kCacheState},
      {"/tokenize", Route::kTokenize},
      {"/detokenize", Route::kDetokenize},
      {kModelsPath, Route::kModels},
      {"/health", Route::kHealth},
      {"/metrics", Route::kMetrics},
      {"/version", Route::kVersion},
      {"/", Route::kPage},
  }};
  for (const auto& [known, route] : kRoutes)
    if (path == known) return route;
  if (StartsWith(path, "/v1/models/")) return Route::kModels;
  return std::nullopt;
}

std::optional<size_t> Api::KeyOf(const std::string& authorization) const {
  if (options_.api_keys.empty()) return 0;
  constexpr std::string_view kBearer = "bearer ";
  std::string scheme = authorization.substr(0, kBearer.size());
  for (char& c : scheme) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string_view given = scheme == kBearer
                                     ? std::string_view(authorization).substr(kBearer.size())
                                     : std::string_view();
  std::optional<size_t> found;
  for (size_t i = 0; i < options_.api_keys.size(); ++i)
    if (SameSecret(given, options_.api_keys[i]) && !found) found = i;
  return found;
}

int64_t Api::RetryAfterSeconds() const {
  constexpr double kMost = 3600;
  const double seconds = model_.worker->stats().retry_after_s;
  return seconds > 1 ? static_cast<int64_t>(std::ceil(std::min(seconds, kMost))) : 1;
}

std::optional<HttpResponse> Api::Early(const HttpRequest& head) const {
  const std::optional<Route> route = Find(head.path);
  const bool guarded =
      StartsWith(head.path, "/v1/") || route == Route::kTokenize || route == Route::kDetokenize;
  if (head.method != "OPTIONS" && guarded && !KeyOf(head.authorization)) {
    HttpResponse response = ErrorResponse(
        401, "a valid API key is needed: Authorization: Bearer KEY", "", "invalid_api_key");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (!route) return ErrorResponse(404, "there is no such path", "", "not_found");
  if (*route == Route::kReset && !CallerOf(head).is_operator)
    return ErrorResponse(
        403, "with API keys as tenants only the first key may reset the cache of all of them", "",
        "operator_only");
  const bool post = *route <= Route::kDetokenize;
  if (head.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    return response;
  }
  const bool fits = post ? head.method == "POST" : head.method == "GET" || head.method == "HEAD";
  if (!fits) {
    HttpResponse response = ErrorResponse(
        405, std::string("this path takes ") + (post ? "POST" : "GET"), "", "method_not_allowed");
    response.headers.emplace_back("Allow", post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    return response;
  }
  if (!post) return std::nullopt;
  if (!IsJson(head.content_type))
    return ErrorResponse(415, "the body must be sent as Content-Type: application/json", "",
                         "unsupported_media_type");
  if (draining() && *route <= Route::kWarm)
    return ErrorResponse(Unavailable("the server is shutting down and takes no new requests"));
  return std::nullopt;
}

void Api::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const std::optional<Route> route = Find(request.path);
  if (!route) return writer->Send(ErrorResponse(404, "there is no such path", "", "not_found"));
  switch (*route) {
    case Route::kChat:
    case Route::kCompletions:
    case Route::kWarm:
    case Route::kPin:
    case Route::kUnpin:
    case Route::kReset:
    case Route::kTokenize:
    case Route::kDetokenize:
      return HandlePost(*route, std::move(request), std::move(writer));
    case Route::kCacheState:
      return RunCache(PrepareCacheState(request), std::move(writer));
    case Route::kModels:
      return writer->Send(Models(request.path));
    case Route::kHealth:
      return writer->Send(Health());
    case Route::kMetrics:
      return writer->Send(Metrics());
    case Route::kVersion:
      return writer->Send(JsonResponse({{"version", options_.version}}));
    case Route::kPage:
      break;
  }
  HttpResponse page;
  page.content_type = "text/html; charset=utf-8";
  const WorkerInfo& info = model_.worker->info();
  page.body = PageHtml(model_.name, options_.version,
                       "K in " + info.kv_type_k + ", V in " + info.kv_type_v +
                           (info.kv_verdict.empty() ? "" : ": " + info.kv_verdict));
  page.headers.emplace_back("Content-Security-Policy", kPagePolicy);
  writer->Send(std::move(page));
}

void Api::HandlePost(Route route, HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  // What would be refused in the end is refused before it is parsed and tokenised: beyond capacity
  // that work would come from those who are served.
  if (route == Route::kChat || route == Route::kCompletions) {
    const WorkerStats stats = model_.worker->stats();
    if (stats.queue_full) {
      return writer->Send(ErrorResponse(
          ResourceExhausted("the queue is full: " + std::to_string(stats.queued) +
                            " requests wait, the limit is " + std::to_string(options_.max_queue))));
    }
  }
  // A copyable handle: std::function wants that, and the body is not copied.
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  const bool taken =
      prepare_(shared->body.size(), [this, route, shared, writer] { Run(route, *shared, writer); });
  if (!taken)
    writer->Send(ErrorResponse(ResourceExhausted("too many requests are being prepared")));
}

// In a prepare thread; what it makes goes on on the connection's strand.
void Api::Run(Route route, const HttpRequest& request,
              const std::shared_ptr<ResponseWriter>& writer) {
  if (route == Route::kTokenize || route == Route::kDetokenize) {
    auto response = std::make_shared<HttpResponse>(
        route == Route::kTokenize ? Tokenize(request.body) : Detokenize(request.body));
    writer->Post([writer, response] { writer->Send(std::move(*response)); });
    return;
  }
  if (route != Route::kChat && route != Route::kCompletions) {
    auto prepared = std::make_shared<Result<PreparedCacheCall>>(PrepareCacheCall(request, route));
    writer->Post([this, writer, prepared] {
      if (!writer->open()) return;
      if (!prepared->ok()) return writer->Send(ErrorResponse(prepared->status()));
      RunCache(std::move(**prepared), writer);
    });
    return;
  }
  auto prepared =
      std::make_shared<Result<PreparedCall>>(PrepareCall(request, route == Route::kChat));
  writer->Post([this, writer, prepared] {
    if (!writer->open()) return;
    if (!prepared->ok()) return writer->Send(ErrorResponse(prepared->status()));
    if (draining())
      return writer->Send(
          ErrorResponse(Unavailable("the server is shutting down and takes no new requests")));
    auto runner = std::make_shared<CallRunner>(model_, metrics_, std::move(**prepared), writer);
    writer->Attach(runner);
    runner->Start();
  });
}

Result<Json> Api::ParseBody(const std::string& body) const {
  JsonLimits limits;
  limits.values_max = options_.json_values_max;
  return ParseJson(body, limits);
}

Status Api::CheckModel(const std::string& name) const {
  if (name.empty() || name == model_.name) return Status::Ok();
  return Status(StatusCode::kNotFound,
                "model: " + name + " is not served here; " + model_.name + " is", "model");
}

CallLimits Api::Limits() const {
  CallLimits limits;
  limits.vocab = model_.worker->info().vocab;
  limits.choices_max = options_.choices_max;
  limits.default_seed = options_.default_seed;
  return limits;
}

// A request may be more impatient than the server, not more patient.
double Api::QueueTimeout(const ApiCall& call) const {
  const double most = options_.queue_timeout_s;
  if (call.queue_timeout_s <= 0) return most;
  return most > 0 ? std::min(call.queue_timeout_s, most) : call.queue_timeout_s;
}

Result<PreparedCall> Api::PrepareCall(const HttpRequest& request, bool chat) const {
  KVASIR_ASSIGN_OR_RETURN(const Json body, ParseBody(request.body));
  PreparedCall prepared;
  KVASIR_ASSIGN_OR_RETURN(prepared.call, ParseCall(body, chat, Limits()));
  KVASIR_RETURN_IF_ERROR(CheckModel(prepared.call.model));
  prepared.call.cache.tenant = CallerOf(request).tenant;
  KVASIR_ASSIGN_OR_RETURN(prepared.generations, prompts_.Build(prepared.call));
  const int64_t most = int64_t{model_.worker->info().seats} + options_.max_queue;
  if (options_.max_queue > 0 && static_cast<int64_t>(prepared.generations.size()) > most) {
    return InvalidArgument("prompt: " + std::to_string(prepared.generations.size()) +
                               " prompts in one call; at most " + std::to_string(most) +
                               " can run and wait here (--max-num-seqs and --max-queue)",
                           "prompt");
  }
  for (GenerationParams& params : prepared.generations)
    params.queue_timeout_s = QueueTimeout(prepared.call);
  const std::string& given = prepared.call.request_id;
  prepared.id = (chat ? "chatcmpl-" : "cmpl-") + (given.empty() ? request.request_id : given);
  return prepared;
}

HttpResponse Api::Tokenize(const std::string& body) const {
  const auto make = [&]() -> Result<Json> {
    KVASIR_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
    KVASIR_ASSIGN_OR_RETURN(const TokenizeCall call, ParseTokenizeCall(json));
    KVASIR_RETURN_IF_ERROR(CheckModel(call.model));
    KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                            call.chat
                                ? prompts_.EncodeChat(call.chat_prompt, call.add_special_tokens)
                                : prompts_.EncodeAny(call.prompt, call.add_special_tokens));
    Json out = {
        {"count", tokens.size()}, {"max_model_len", model_.ContextTokens()}, {"tokens", tokens}};
    Json strings = nullptr;
    if (call.return_token_strs) {
      strings = Json::array();
      for (const TokenId token : tokens)
        strings.push_back(std::string(model_.tokenizer->TokenBytes(token)));
    }
    out["token_strs"] = std::move(strings);
    return out;
  };
  const Result<Json> made = make();
  return made.ok() ? JsonResponse(*made) : ErrorResponse(made.status());
}

HttpResponse Api::Detokenize(const std::string& body) const {
  const auto make = [&]() -> Result<Json> {
    KVASIR_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
    KVASIR_ASSIGN_OR_RETURN(const DetokenizeCall call,
                            ParseDetokenizeCall(json, model_.worker->info().vocab));
    KVASIR_RETURN_IF_ERROR(CheckModel(call.model));
    Json out = Json::object();
    out["prompt"] = model_.tokenizer->Decode(call.tokens, false);
    return out;
  };
  const Result<Json> made = make();
  return made.ok() ? JsonResponse(*made) : ErrorResponse(made.status());
}

HttpResponse Api::Health() const {
  if (draining()) return ErrorResponse(Unavailable("the server is shutting down"));
  if (options_.max_queue > 0 && model_.worker->stats().waiting >= options_.max_queue)
    return ErrorResponse(Unavailable("the queue is full"));
  return JsonResponse({{"status", "ok"}});
}

HttpResponse Api::Metrics() const {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_->Serialize(model_.worker);
  return response;
}

HttpResponse Api::Models(const std::string& path) const {
  Json model = {{"id", model_.name},
                {"object", "model"},
                {"created", model_.created_unix_s},
                {"owned_by", "kvasir"},
                {"root", model_.name},
                {"parent", nullptr},
                {"max_model_len", model_.ContextTokens()}};
  if (path == kModelsPath) {
    Json list = {{"object", "list"}};
    list["data"] = Json::array({std::move(model)});
    return JsonResponse(list);
  }
  const std::string name = PercentDecode(std::string_view(path).substr(kModelsPath.size() + 1));
  if (name == model_.name) return JsonResponse(model);
  return ErrorResponse(404, "there is no such model here; " + model_.name + " is served", "model",
                       "model_not_found");
}

}  // namespace kvasir
