#include "kvcache/ghost_list.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

template <typename Mark>
BasicGhostList<Mark>::BasicGhostList(int32_t capacity) {
  KVASIR_CHECK(capacity >= 0);
  const size_t entries = static_cast<size_t>(capacity);
  chains_.resize(entries);
  marks_.resize(entries);
  live_.resize(entries);
  table_.assign(entries + entries / 2 + 2, kEmpty);
}

// Fibonacci hashing: takes the top bits of a product, so weak hashes are spread as well; a second
// product brings them into a table of any length.
template <typename Mark>
size_t BasicGhostList<Mark>::Home(uint64_t chain) const {
  return static_cast<size_t>((((chain * 0x9E3779B97F4A7C15u) >> 32) * table_.size()) >> 32);
}

template <typename Mark>
size_t BasicGhostList<Mark>::Locate(uint64_t chain) const {
  size_t place = Home(chain);
  while (table_[place] != kEmpty && chains_[static_cast<size_t>(table_[place])] != chain)
    place = After(place);
  return place;
}

template <typename Mark>
void BasicGhostList<Mark>::Vacate(size_t place) {
  live_[static_cast<size_t>(table_[place])] = false;
  --size_;
  const auto steps = [&](size_t from, size_t to) {
    return to >= from ? to - from : to + table_.size() - from;
  };
  size_t hole = place;
  for (size_t at = After(place); table_[at] != kEmpty; at = After(at)) {
    const size_t home = Home(chains_[static_cast<size_t>(table_[at])]);
    // Its run starts at or before the hole: it may close it.
    if (steps(home, at) >= steps(hole, at)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = kEmpty;
}

template <typename Mark>
std::optional<Mark> BasicGhostList<Mark>::Insert(uint64_t chain, Mark mark) {
  if (chains_.empty()) return std::nullopt;
  if (const size_t place = Locate(chain); table_[place] != kEmpty) Vacate(place);
  std::optional<Mark> forgotten;
  const size_t slot = static_cast<size_t>(next_);
  if (live_[slot]) {
    forgotten = marks_[slot];
    Vacate(Locate(chains_[slot]));
  }
  chains_[slot] = chain;
  marks_[slot] = mark;
  live_[slot] = true;
  table_[Locate(chain)] = next_;
  ++size_;
  next_ = next_ + 1 == capacity() ? 0 : next_ + 1;
  return forgotten;
}

template <typename Mark>
std::optional<Mark> BasicGhostList<Mark>::Find(uint64_t chain) const {
  const size_t place = Locate(chain);
  if (table_[place] == kEmpty) return std::nullopt;
  return marks_[static_cast<size_t>(table_[place])];
}

template <typename Mark>
std::optional<Mark> BasicGhostList<Mark>::Erase(uint64_t chain) {
  const size_t place = Locate(chain);
  if (table_[place] == kEmpty) return std::nullopt;
  const Mark mark = marks_[static_cast<size_t>(table_[place])];
  Vacate(place);
  return mark;
}

template <typename Mark>
void BasicGhostList<Mark>::Clear() {
  std::fill(table_.begin(), table_.end(), kEmpty);
  std::fill(live_.begin(), live_.end(), false);
  next_ = size_ = 0;
}

template <typename Mark>
int64_t BasicGhostList<Mark>::bytes() const {
  return static_cast<int64_t>(chains_.size() * (sizeof(uint64_t) + sizeof(Mark)) +
                              live_.size() / 8 + table_.size() * sizeof(int32_t));
}

template class BasicGhostList<EvictReason>;
template class BasicGhostList<uint8_t>;

}  // namespace kvasir
