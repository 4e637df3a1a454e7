// Bytes to JSON to a checked call, as a client's body goes: no crash, no endless work, every
// refusal with a message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/api_call.h"
#include "server/cache_call.h"
#include "server/chat_messages.h"

namespace {

template <typename T>
void Check(const kvasir::Result<T>& result) {
  if (!result.ok() && result.status().message().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;  // NOLINT(google-build-using-namespace): a fuzz target's own file
  JsonLimits json_limits;
  json_limits.values_max = 20000;
  const Result<Json> body = ParseJson({reinterpret_cast<const char*>(data), size}, json_limits);
  Check(body);
  if (!body.ok()) return 0;
  // What we read we can write, and read again as the same value.
  const Result<Json> again = ParseJson(DumpJson(*body), json_limits);
  if (!again.ok() || *again != *body) std::abort();
  CallLimits limits;
  limits.vocab = 305;
  const Result<ApiCall> text = ParseCall(*body, false, limits);
  Check(text);
  if (text.ok()) {
    for (const PromptInput& prompt : text->prompts)
      for (const TokenId token : prompt.tokens)
        if (token < 0 || token >= limits.vocab) std::abort();
    if (text->prompts.empty() || text->n < 1 || text->sampling.temperature < 0) std::abort();
  }
  const Result<ApiCall> chat = ParseCall(*body, true, limits);
  Check(chat);
  if (chat.ok()) {
    for (const Json& message : chat->chat_prompt.messages)
      if (!message["content"].is_string() || !message["role"].is_string()) std::abort();
  }
  using Kind = CacheCall::Kind;
  for (const Kind kind : {Kind::kWarm, Kind::kPin, Kind::kUnpin, Kind::kReset}) {
    const Result<CacheCall> cache = ParseCacheCall(*body, kind, limits);
    Check(cache);
    if (!cache.ok()) continue;
    if (kind == Kind::kPin && !(cache->ttl_s > 0)) std::abort();
    if (cache->has_prompt && cache->prompt.max_tokens != 0) std::abort();
  }
  Check(ParseTokenizeCall(*body));
  Check(ParseDetokenizeCall(*body, limits.vocab));
  return 0;
}
