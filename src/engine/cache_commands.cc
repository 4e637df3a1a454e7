// /v1/kvcache* as the engine answers it, between two steps.
#include <algorithm>

#include "engine/engine_core.h"

namespace kvasir {

CacheReply EngineCore::Cache(const CacheRequest& request) {
  CacheReply reply;
  reply.now_ns = clock_->NowNs();
  cache_->Expire(reply.now_ns);
  const int32_t space = cache_->OpenSpace(request.tenant, request.salt);
  switch (request.kind) {
    case CacheRequest::Kind::kState:
      reply.hottest = cache_->Hottest(request.most);
      reply.owners = cache_->owners(request.most);
      reply.pins = cache_->pins();
      break;
    case CacheRequest::Kind::kPin:
      Pin(request, space, &reply);
      break;
    case CacheRequest::Kind::kUnpin:
      if (request.pin != 0) {
        reply.unpinned = cache_->Unpin(request.pin) ? 1 : 0;
      } else if (!request.session.empty()) {
        reply.unpinned = cache_->UnpinSession(space, request.session);
      } else {
        reply.unpinned = cache_->UnpinTokens(space, request.tokens);
      }
      break;
    case CacheRequest::Kind::kReset:
      reply.reset = cache_->Reset(request.drop_pins);
      break;
  }
  cache_->CloseSpace(space);
  reply.pin_budget_blocks = cache_->pin_budget();
  reply.evict = cache_->evict();
  reply.books = cache_->books();
  reply.counts = cache_->counts();
  reply.slots_allocated = cache_->slots_allocated();
  reply.slots_used = cache_->slots_used();
  return reply;
}

void EngineCore::Pin(const CacheRequest& request, int32_t space, CacheReply* reply) {
  if (!(request.ttl_s > 0)) {
    reply->status = InvalidArgument("ttl_s must be more than 0", "ttl_s");
    return;
  }
  constexpr double kTtlMost = 1e9;  // seconds; beyond it the clock would run over
  const int64_t expires_ns =
      reply->now_ns + static_cast<int64_t>(std::min(request.ttl_s, kTtlMost) * 1e9);
  const Result<PinInfo> pin = request.session.empty()
                                  ? cache_->Pin(space, request.tokens, expires_ns)
                                  : cache_->PinSession(space, request.session, expires_ns);
  if (pin.ok()) {
    reply->pin = *pin;
  } else {
    reply->status = pin.status();
  }
}

}  // namespace kvasir
