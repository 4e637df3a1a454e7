#include "server/cache_fields.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr size_t kNameShownMax = 64;

Retain ReadRetain(FieldReader* in) {
  std::string name;
  if (!in->String("retain", kSessionBytesMax, &name) || name == "normal") return Retain::kNormal;
  if (name == "low") return Retain::kLow;
  if (name == "high") return Retain::kHigh;
  in->Fail("retain", "must be low, normal or high, not \"" + name.substr(0, kNameShownMax) + "\"");
  return Retain::kNormal;
}

}  // namespace

bool ReadSession(FieldReader* in, std::string* out) {
  if (!in->String("session", kSessionBytesMax, out)) return false;
  if (!out->empty()) return true;
  in->Fail("session", "must not be empty");
  return false;
}

bool OnlyMembers(FieldReader* in, const Json& object, std::string_view field,
                 std::initializer_list<std::string_view> known) {
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    std::string list;
    for (const std::string_view name : known)
      list += (list.empty() ? "" : ", ") + std::string(name);
    const std::string shown = item.key().substr(0, kNameShownMax);
    in->Fail(field.empty() ? std::string_view(shown) : field,
             "has no member \"" + shown + "\"; it has " + list);
    return false;
  }
  return true;
}

void ReadCacheFields(FieldReader* in, CacheWish* wish) {
  if (in->String("cache_salt", kSaltBytesMax, &wish->salt) && wish->salt.empty())
    in->Fail("cache_salt", "must not be empty; leave it out to share with all who give none");
  in->Bool("cache_prompt", &wish->read);
  const Json* hint = in->Find("kv_hint");
  if (hint == nullptr) return;
  if (!hint->is_object()) return in->Fail("kv_hint", "must be an object, not " + Describe(*hint));
  if (!OnlyMembers(in, *hint, "kv_hint", {"retain", "ttl_s", "session", "last_use"})) return;
  FieldReader inner(*hint, "kv_hint.");
  wish->retain = ReadRetain(&inner);
  float ttl_s = 0;
  if (inner.Number("ttl_s", 0, 1e9, &ttl_s, true)) wish->ttl_s = static_cast<double>(ttl_s);
  ReadSession(&inner, &wish->session);
  inner.Bool("last_use", &wish->last_use);
  if (!inner.status().ok()) in->FailWith(inner.status(), "kv_hint");
}

}  // namespace kvasir
