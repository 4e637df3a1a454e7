// How the rows of X are cut into the groups that a kernel computes together.
#pragma once

namespace kvasir::internal {

inline constexpr int kGroupRows = 8;       // activation rows that share one read of a tile's block
inline constexpr int kWideGroupRows = 16;  // the same where there are tile registers (AMX)
inline constexpr int kNarrowRows = 24;     // up to so many, groups of 8 are faster all the same

// Rows of X go through the kernels in groups of 8, the rest in one or two smaller groups. A group
// of 3 or 7 is padded with a row whose result is dropped, so that the cost never falls when a row
// is added. With tile registers (wide) more than kNarrowRows rows go in groups of 16 first, and a
// rest of more than kGroupRows is one of them, padded.
struct RowGroup {
  int first;
  int rows;
  int width;  // rows the kernel computes: 1, 2, 4, 8 or 16
};
inline int WideGroupCount(int m) {
  if (m <= kNarrowRows) return 0;
  return m / kWideGroupRows + (m % kWideGroupRows > kGroupRows ? 1 : 0);
}
inline int RowGroupCount(int m, bool wide) {
  if (wide) {
    const int groups = WideGroupCount(m);
    const int rest = m - groups * kWideGroupRows;
    return groups + (rest > 0 ? RowGroupCount(rest, false) : 0);
  }
  const int rest = m % kGroupRows;
  return m / kGroupRows + (rest == 0 ? 0 : rest == 5 || rest == 6 ? 2 : 1);
}
inline RowGroup RowGroupAt(int m, bool wide, int index) {
  if (wide) {
    const int groups = WideGroupCount(m);
    const int first = (index < groups ? index : groups) * kWideGroupRows;
    if (index < groups) {
      return {first, m - first < kWideGroupRows ? m - first : kWideGroupRows, kWideGroupRows};
    }
    RowGroup group = RowGroupAt(m - first, false, index - groups);
    group.first += first;
    return group;
  }
  const int full = m / kGroupRows;
  const int first = full * kGroupRows;
  const int rest = m - first;
  if (index < full) return {index * kGroupRows, kGroupRows, kGroupRows};
  if (rest == 5 || rest == 6) {
    return index == full ? RowGroup{first, 4, 4} : RowGroup{first + 4, rest - 4, rest - 4};
  }
  return {first, rest, rest == 3 ? 4 : rest == 7 ? 8 : rest};
}

}  // namespace kvasir::internal
