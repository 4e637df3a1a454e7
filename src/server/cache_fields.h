// The fields of a body that say whose its cached blocks are and what becomes of them: cache_salt,
// cache_prompt, kv_hint. Ranges and meaning: docs/api.md.
#pragma once

#include <cstddef>

#include "engine/request.h"
#include "server/field_reader.h"

namespace kvasir {

inline constexpr size_t kSaltBytesMax = 1024;
inline constexpr size_t kSessionBytesMax = 256;
inline constexpr double kPinTtlMaxS = 30 * 86'400;  // of a pin; one that is kept is pinned again

// All of *wish but the tenant, which is the API key's.
void ReadCacheFields(FieldReader* in, CacheWish* wish);

// session: a name of 1 to kSessionBytesMax bytes. As FieldReader's: true if given and right.
bool ReadSession(FieldReader* in, std::string* out);

// Fails on the first member that is not in the list, naming it and the list. field: the object's
// own name, "" for the body. True: all are known.
bool OnlyMembers(FieldReader* in, const Json& object, std::string_view field,
                 std::initializer_list<std::string_view> known);

}  // namespace kvasir
