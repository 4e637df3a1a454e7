#include "calibrate/two_term_finder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "calibrate/own_text.h"

namespace kvasir {
namespace {

constexpr size_t kBlock = 32;
constexpr int64_t kNormRows = 1024;
constexpr size_t kNormChunk = 64;  // rows summed together: fixes the order of the sums

// Adds to norm[c] the squares of column c over evenly spaced rows, scaled to all rows.
void AddColumnNorms(const PackedMatrix& matrix, Executor& executor, std::vector<double>* norm) {
  const int64_t rows = std::min(matrix.rows(), kNormRows);
  const auto columns = static_cast<size_t>(matrix.columns());
  const size_t chunks = (static_cast<size_t>(rows) + kNormChunk - 1) / kNormChunk;
  std::vector<double> partial(chunks * columns, 0.0);
  executor.ParallelFor(chunks, [&](size_t chunk, int) {
    std::vector<float> row(columns);
    double* sums = partial.data() + chunk * columns;
    const int64_t last = std::min(rows, static_cast<int64_t>((chunk + 1) * kNormChunk));
    for (auto i = static_cast<int64_t>(chunk * kNormChunk); i < last; ++i) {
      matrix.Row(i * matrix.rows() / rows, row);
      for (size_t c = 0; c < columns; ++c) {
        sums[c] += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      }
    }
  });
  const double scale = static_cast<double>(matrix.rows()) / static_cast<double>(rows);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    for (size_t c = 0; c < columns; ++c) (*norm)[c] += scale * partial[chunk * columns + c];
  }
}

std::vector<double> ColumnNorms(std::span<const PackedMatrix> matrices, Executor& executor) {
  std::vector<double> norm(static_cast<size_t>(matrices[0].columns()), 0.0);
  for (const PackedMatrix& matrix : matrices) AddColumnNorms(matrix, executor, &norm);
  return norm;
}

}  // namespace

namespace internal {

void RoundingLoss::OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
                           int columns) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  auto& sums = sums_[InputIndex(static_cast<size_t>(layer), site)];
  const auto n = static_cast<size_t>(columns);
  sums.resize(n, 0.0);
  for (int r = 0; r < rows; ++r) {
    const float* row = x + static_cast<size_t>(r) * ldx;
    for (size_t first = 0; first < n; first += kBlock) {
      const size_t last = std::min(n, first + kBlock);
      float top = 0;
      for (size_t c = first; c < last; ++c) top = std::max(top, std::fabs(row[c]));
      if (!(top > 0) || !std::isfinite(top)) continue;
      const float scale = top / 127.0F;
      const float inverse = 127.0F / top;
      for (size_t c = first; c < last; ++c) {
        const float q = (row[c] * inverse + kRound) - kRound;
        const auto lost = static_cast<double>(row[c] - scale * q);
        if (std::isfinite(lost)) sums[c] += lost * lost;
      }
    }
  }
}

std::vector<uint8_t> ChooseBlocks(std::span<const double> loss, std::span<const double> norm,
                                  double share) {
  KVASIR_CHECK(loss.size() == norm.size());
  const size_t blocks = (loss.size() + kBlock - 1) / kBlock;
  std::vector<double> score(blocks, 0.0);
  for (size_t c = 0; c < loss.size(); ++c) score[c / kBlock] += loss[c] * norm[c];
  std::vector<size_t> order(blocks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] > score[b]; });
  std::vector<uint8_t> chosen(blocks, 0);
  const auto count = static_cast<size_t>(share * static_cast<double>(blocks) + 0.5);
  for (size_t i = 0; i < std::min(count, blocks); ++i) chosen[order[i]] = 1;
  return chosen;
}

}  // namespace internal

std::array<double, kInputSites> TwoTermShares(const Model& model) {
  std::array<double, kInputSites> shares = {0.28, 0, 0.06, 0.12, 0.17};
  const size_t layers = model.layers.size();
  double all = 0;
  double twice = 0;
  for (size_t input = 0; input < InputCount(layers); ++input) {
    for (const PackedMatrix& matrix : ReadersOf(model, input)) {
      const double work =
          static_cast<double>(matrix.rows()) * static_cast<double>(matrix.columns());
      all += work;
      twice += shares[static_cast<size_t>(SiteOf(input, layers))] * work;
    }
  }
  const double shrink = std::min(1.0, kTwoTermWork * all / twice);
  for (double& share : shares) share *= shrink;
  return shares;
}

TwoTermBlocks ChooseTwoTermBlocks(const Model& model, const internal::RoundingLoss& loss,
                                  Executor& executor) {
  TwoTermBlocks found;
  const std::array<double, kInputSites> shares = TwoTermShares(model);
  const size_t layers = model.layers.size();
  for (size_t input = 0; input < InputCount(layers); ++input) {
    const std::vector<double> norm = ColumnNorms(ReadersOf(model, input), executor);
    std::vector<double> sums = loss.sums()[input];
    sums.resize(norm.size(), 0.0);
    const double share = shares[static_cast<size_t>(SiteOf(input, layers))];
    found.blocks.push_back(internal::ChooseBlocks(sums, norm, share));
  }
  return found;
}

Result<TwoTermBlocks> FindTwoTermBlocks(const Model& model, Executor& executor) {
  internal::RoundingLoss loss(model.config().layers);
  OwnTextOptions text;
  text.tokens = std::min(text.tokens, model.config().context);
  text.observer = &loss;
  KVASIR_RETURN_IF_ERROR(WriteOwnText(model, text, executor).status());
  return ChooseTwoTermBlocks(model, loss, executor);
}

}  // namespace kvasir
