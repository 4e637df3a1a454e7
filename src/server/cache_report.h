// The JSON of /v1/kvcache and of its commands.
#pragma once

#include "engine/worker.h"
#include "server/json_reader.h"
#include "server/served_model.h"

namespace kvasir {

struct CacheReportOptions {
  double pin_budget = 0.5;    // as the engine's
  double tenant_quota = 0.5;  // as the engine's
  // Prefixes, pins and owners: false for a client that shares the server with other tenants.
  bool everything = true;
  // Text of prefixes (of those without a salt: the engine gives no tokens of others) and names of
  // sessions. Only where all who may ask are one party.
  bool texts = false;
};

// The miss reason salt is counted as cold here: who asks may be one of those that it separates.
Json CacheStateJson(const CacheReply& reply, const ServedModel& model,
                    const CacheReportOptions& options);

// id, tokens, blocks, expires_in_s (not below 0; null: never).
Json PinJson(const PinInfo& pin, int64_t now_ns, bool with_session);

Json ResetJson(const ResetInfo& reset);

}  // namespace kvasir
