#include "server/cache_call.h"

#include <limits>
#include <utility>

#include "server/cache_fields.h"
#include "server/field_reader.h"

namespace kvasir {
namespace {

using Kind = CacheCall::Kind;

// What would be generated is not: one prompt with its cache fields is left.
ApiCall PromptOnly(ApiCall call) {
  call.sampling = {};
  call.sampling.max_tokens = 0;
  call.max_tokens = 0;
  call.bad_words.clear();
  call.stop.clear();
  call.n = 1;
  call.stream = call.echo = call.want_prompt_logprobs = false;
  return call;
}

Status ReadPrompt(const Json& body, const FieldReader& in, const CallLimits& limits,
                  CacheCall* out) {
  const bool chat = in.Find("messages") != nullptr;
  if (chat && in.Find("prompt") != nullptr)
    return InvalidArgument("prompt: give either prompt or messages", "prompt");
  KVASIR_ASSIGN_OR_RETURN(ApiCall call, ParseCall(body, chat, limits));
  if (!chat && call.prompts.size() != 1)
    return InvalidArgument("prompt: one prompt a call, not " + std::to_string(call.prompts.size()),
                           "prompt");
  out->has_prompt = true;
  out->prompt = PromptOnly(std::move(call));
  out->cache = out->prompt.cache;
  return Status::Ok();
}

// Exactly one way to say which prefix.
Status ReadTarget(const Json& body, FieldReader* in, const CallLimits& limits, CacheCall* out) {
  const bool prompt = in->Find("prompt") != nullptr || in->Find("messages") != nullptr;
  int64_t pin = 0;
  const bool by_pin =
      out->kind == Kind::kUnpin && in->Int("pin", 1, std::numeric_limits<int64_t>::max(), &pin);
  out->pin = static_cast<uint64_t>(pin);
  const bool by_session = out->kind != Kind::kWarm && ReadSession(in, &out->session);
  KVASIR_RETURN_IF_ERROR(in->status());
  const int given = (prompt ? 1 : 0) + (by_pin ? 1 : 0) + (by_session ? 1 : 0);
  if (given != 1) {
    std::string ways = "prompt or messages";
    if (out->kind != Kind::kWarm) ways = "prompt, messages or session";
    if (out->kind == Kind::kUnpin) ways = "prompt, messages, session or pin";
    return InvalidArgument("prompt: say which prefix by one of " + ways, "prompt");
  }
  if (prompt) return ReadPrompt(body, *in, limits, out);
  ReadCacheFields(in, &out->cache);
  return in->status();
}

void ReadTtl(FieldReader* in, CacheCall* out) {
  float ttl_s = 0;
  if (in->Number("ttl_s", 0, kPinTtlMaxS, &ttl_s, true)) {
    out->ttl_s = static_cast<double>(ttl_s);
  } else if (out->kind == Kind::kPin && in->status().ok()) {
    in->Fail("ttl_s", "is missing: a pin lasts for above 0 to " +
                          std::to_string(static_cast<int64_t>(kPinTtlMaxS)) + " seconds");
  }
}

}  // namespace

Result<CacheCall> ParseCacheCall(const Json& body, Kind kind, const CallLimits& limits) {
  if (!body.is_object())
    return InvalidArgument("the body must be a JSON object, not " + Describe(body));
  CacheCall call;
  call.kind = kind;
  FieldReader in(body);
  if (kind == Kind::kReset) {
    OnlyMembers(&in, body, "", {"pins"});
    in.Bool("pins", &call.drop_pins);
    KVASIR_RETURN_IF_ERROR(in.status());
    return call;
  }
  if (kind != Kind::kUnpin) ReadTtl(&in, &call);
  KVASIR_RETURN_IF_ERROR(in.status());
  KVASIR_RETURN_IF_ERROR(ReadTarget(body, &in, limits, &call));
  if (call.has_prompt)
    call.model = call.prompt.model;
  else
    in.String("model", kSessionBytesMax, &call.model);
  KVASIR_RETURN_IF_ERROR(in.status());
  const Json* hint = in.Find("kv_hint");
  // Warmed by somebody who knows that it will be used: kept longer, unless they say otherwise.
  if (kind == Kind::kWarm && (hint == nullptr || FieldReader(*hint).Find("retain") == nullptr))
    call.cache.retain = Retain::kHigh;
  return call;
}

}  // namespace kvasir
