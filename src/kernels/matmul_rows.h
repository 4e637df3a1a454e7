// How the rows of X are cut into the groups that a kernel computes together.
#pragma once

namespace kvasir::internal {

inline constexpr int kGroupRows = 8;       // activation rows that share one read of a tile's block
inline constexpr int kWideGroupRows = 16;  // the same where there are tile registers (AMX)
inline constexpr int kFewRows = 4;         // so many left over are no work for tile registers
inline constexpr int kNarrowRows = 24;     // up to so many unpack codes in vector registers

// Rows of X go through the kernels in groups of 8, the rest in one or two smaller groups. A group
// of 3 or 7 is padded with a row whose result is dropped, so that the cost never falls when a row
// is added. With tile registers (wide) they go in groups of 16 first, and a rest of more than
// kFewRows is a padded group of 8 or 16; 9 or 10 rows in all are better off without.
struct RowGroup {
  int first;
  int rows;
  int width;  // rows the kernel computes: 1, 2, 4, 8 or 16
};
// Rows that go through tile registers, and the groups they make.
inline int WideRows(int m) {
  if (m == kGroupRows + 1 || m == kGroupRows + 2) return 0;
  const int rest = m % kWideGroupRows;
  return rest > kFewRows ? m : m - rest;
}
inline int WideGroupCount(int m) {
  return (WideRows(m) + kWideGroupRows - 1) / kWideGroupRows;
}
inline int RowGroupCount(int m, bool wide) {
  if (wide) return WideGroupCount(m) + RowGroupCount(m - WideRows(m), false);
  const int rest = m % kGroupRows;
  return m / kGroupRows + (rest == 0 ? 0 : rest == 5 || rest == 6 ? 2 : 1);
}
inline RowGroup RowGroupAt(int m, bool wide, int index) {
  if (wide) {
    const int groups = WideGroupCount(m);
    if (index < groups) {
      const int first = index * kWideGroupRows;
      const int rows = m - first < kWideGroupRows ? m - first : kWideGroupRows;
      return {first, rows, rows > kGroupRows ? kWideGroupRows : kGroupRows};
    }
    const int first = WideRows(m);
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
