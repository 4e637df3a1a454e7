// Strong ids: a block, a request and a worker are never mixed up by accident. Tokens are plain
// ints, as every library around us has them.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace kvasir {

template <typename Tag, typename T>
struct StrongId {
  T value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(T v) : value(v) {}
  auto operator<=>(const StrongId&) const = default;
};

using TokenId = int32_t;
using BlockId = StrongId<struct BlockTag, int32_t>;         // index into the pool; -1: none
using RequestId = StrongId<struct RequestTag, uint64_t>;    // unique in one process
using SequenceId = StrongId<struct SequenceTag, uint64_t>;  // one choice of one request

inline constexpr BlockId kNoBlock{-1};

}  // namespace kvasir

template <typename Tag, typename T>
struct std::hash<kvasir::StrongId<Tag, T>> {
  size_t operator()(const kvasir::StrongId<Tag, T>& id) const { return std::hash<T>()(id.value); }
};
