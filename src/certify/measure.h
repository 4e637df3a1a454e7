// The measurements of a certification. Each runs the base and all contenders side by side and gives
// one PartResult per contender, in their order.
//
// "Prefill mode": whole chunks at once. "Decode mode": token by token, each token's K and V read
// back before the next is computed, so that errors accumulate as they do for a user. By promise 3
// both must give the same numbers; that they do is part of what a certificate says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "certify/contest.h"
#include "certify/part_result.h"

namespace kvasir {

using Tokens = std::vector<int32_t>;
using PartResults = Result<std::vector<PartResult>>;

// Divergence at every position of one sequence.
PartResults MeasurePrefill(const MeasureContext& context, std::span<const Contender> contenders,
                           const Tokens& text, int sequence);
// The same for several sequences in one batch; indexes: what to call them. A shorter one stops.
PartResults MeasureDecode(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const Tokens> texts, std::span<const int> indexes);
// Greedy texts of `tokens` tokens after each prompt: index of the first token that differs from the
// base's own, `tokens` where none does. Up to there both have read the same tokens, so the
// contender is fed the base's text. Prompts have one length.
PartResults MeasureGreedy(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const Tokens> prompts, int tokens);

// A random sequence of `distance` tokens comes twice; in the second copy each next token is asked
// for, at up to 16 places. Tokens are drawn from `pool`; `first` begins the sequence.
PartResults MeasureRepeat(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const int32_t> pool, int32_t first, int distance,
                          uint64_t seed);
// `text` with keys of four random tokens, each followed by a value, written over it at eight
// depths, two a depth; at the end each key is given and its value asked for. text: 256 tokens or
// more.
PartResults MeasureNeedles(const MeasureContext& context, std::span<const Contender> contenders,
                           Tokens text, std::span<const int32_t> pool, uint64_t seed);

inline constexpr int kKeyTokens = 4;
inline constexpr int kRepeatAsked = 20;  // tokens of the second copy that are read

}  // namespace kvasir
