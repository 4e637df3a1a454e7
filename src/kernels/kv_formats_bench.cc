// kernels_kv_formats_bench [threads] [seconds] [row]: attention over the cache's formats, taken in
// turn with f16: decode at 4,096 and 32,768 tokens with 3, 4 and 8 query heads a KV head, and
// prefill at depth. Medians of walks over as many layers as fill the caches several times. Nothing
// is asserted.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "kernels/spin_executor_bench.h"
#include "quant/kv_type_spec.h"

namespace kvasir {
namespace {

constexpr int kBlockTokens = 16;
constexpr size_t kTouchBytes = size_t{96} << 20;  // of a walk in f16, at least
constexpr KvPair kPairs[] = {{KvType::kF16, KvType::kF16},
                             {KvType::kI8, KvType::kI8},
                             {KvType::kI8, KvType::kI4},
                             {KvType::kI4, KvType::kI4},
                             {KvType::kFp8E4M3, KvType::kFp8E4M3}};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Shape {
  const char* name;
  int kv_heads, group, dim, tokens, depth;
  size_t bytes(KvPair pair) const {  // of a block's layer
    const auto heads = static_cast<size_t>(kv_heads);
    const size_t k = heads * KvKeyPlane(pair.k, kBlockTokens, dim).head();
    return (k + 63) / 64 * 64 +
           (heads * KvValuePlane(pair.v, kBlockTokens, dim).head() + 63) / 64 * 64;
  }
};

class Bench {
 public:
  Bench(const Shape& shape, KvPair pair, Executor& executor)
      : shape_(shape), pair_(pair), executor_(executor) {
    const int blocks = (shape.depth + shape.tokens + kBlockTokens - 1) / kBlockTokens;
    const size_t f16 = Shape(shape).bytes(kPairs[0]) * static_cast<size_t>(blocks);
    layers_ = static_cast<int>((kTouchBytes + f16 - 1) / f16);
    stride_ = shape.bytes(pair) * static_cast<size_t>(layers_);
    bytes_.resize(stride_ * static_cast<size_t>(blocks) + 64);
    table_.resize(static_cast<size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 0);
    Rng rng(1);
    for (size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[rng.Below(i)]);
    ldq_ = static_cast<size_t>(shape.kv_heads * shape.group * shape.dim);
    ldk_ = static_cast<size_t>(shape.kv_heads * shape.dim);
    q_.resize(static_cast<size_t>(std::max(shape.tokens, 64)) * ldq_);
    out_.resize(q_.size());
    for (float& x : q_) x = static_cast<float>(rng.Uniform() * 2 - 1);
    for (int l = 0; l < layers_; ++l) {
      for (int t = 0; t < shape.depth + shape.tokens; t += 64) {
        const int n = std::min(64, shape.depth + shape.tokens - t);
        const AttentionSpanOfSequence rows[] = {{table_.data(), t, n, 0}};
        WriteKv(View(l), rows, q_.data(), ldk_, q_.data() + 7, ldk_, executor);
      }
    }
  }
  double bytes_per_layer() const {
    return static_cast<double>(shape_.bytes(pair_)) * static_cast<double>(table_.size());
  }
  // Seconds per layer.
  double Walk() {
    const AttentionSpanOfSequence rows[] = {{table_.data(), shape_.depth, shape_.tokens, 0}};
    const double start = Now();
    for (int l = 0; l < layers_; ++l) {
      PagedAttention(View(l), rows, shape_.kv_heads * shape_.group, 0.1F, q_.data(), ldq_,
                     out_.data(), ldq_, scratch_, executor_);
    }
    return (Now() - start) / layers_;
  }

 private:
  PagedKv View(int layer) {
    PagedKv kv;
    kv.base = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
    kv.block_stride = stride_;
    kv.k_offset = shape_.bytes(pair_) * static_cast<size_t>(layer);
    const size_t k =
        static_cast<size_t>(shape_.kv_heads) * KvKeyPlane(pair_.k, kBlockTokens, shape_.dim).head();
    kv.v_offset = kv.k_offset + (k + 63) / 64 * 64;
    kv.block_tokens = kBlockTokens;
    kv.kv_heads = shape_.kv_heads;
    kv.k_dim = kv.v_dim = shape_.dim;
    kv.k_type = pair_.k;
    kv.v_type = pair_.v;
    return kv;
  }

  Shape shape_;
  KvPair pair_;
  Executor& executor_;
  int layers_ = 0;
  size_t stride_ = 0, ldq_ = 0, ldk_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<int32_t> table_;
  std::vector<float> q_, out_;
  AttentionScratch scratch_;
};

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Main(int threads, double seconds, int only) {
  constexpr Shape kShapes[] = {
      {"decode", 3, 3, 64, 1, 4095},    {"decode", 3, 3, 64, 1, 32767},
      {"decode", 4, 4, 128, 1, 4095},   {"decode", 4, 4, 128, 1, 32767},
      {"decode", 4, 8, 128, 1, 4095},   {"decode", 4, 8, 128, 1, 32767},
      {"prefill", 3, 3, 64, 256, 4096}, {"prefill", 4, 8, 128, 64, 4096},
  };
  SpinExecutor executor(threads);
  std::printf("path %s, %d threads, blocks of %d tokens; x f16: times faster than f16\n",
              std::string(IsaName(CurrentIsa())).c_str(), threads, kBlockTokens);
  for (const Shape& shape : kShapes) {
    if (only >= 0 && &shape != &kShapes[only]) continue;
    std::vector<std::unique_ptr<Bench>> benches;
    for (const KvPair pair : kPairs) {
      benches.push_back(std::make_unique<Bench>(shape, pair, executor));
      benches.back()->Walk();
    }
    std::vector<double> times[std::size(kPairs)];
    const double end = Now() + seconds;
    while (times[0].size() < 3 || Now() < end) {
      for (size_t i = 0; i < benches.size(); ++i) times[i].push_back(benches[i]->Walk());
    }
    const double f16 = Median(times[0]);
    for (size_t i = 0; i < benches.size(); ++i) {
      const double time = Median(times[i]);
      std::printf(
          "%-7s %d*%d heads of %3d, %3d new after %5d | %8s/%-8s %9.1f us %6.1f GB/s x f16 %5.2f\n",
          shape.name, shape.kv_heads, shape.group, shape.dim, shape.tokens, shape.depth,
          std::string(KvTypeName(kPairs[i].k)).c_str(),
          std::string(KvTypeName(kPairs[i].v)).c_str(), time * 1e6,
          benches[i]->bytes_per_layer() / time / 1e9, f16 / time);
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 2;
  const int row = argc > 3 ? std::atoi(argv[3]) : 0;
  if (threads < 1 || threads > 256 || !(seconds > 0) || row < 0 || row > 8) {
    std::fprintf(stderr, "kernels_kv_formats_bench [threads] [seconds a row] [row, 1 to 8]\n");
    return 2;
  }
  kvasir::Main(threads, seconds, row - 1);
  return 0;
}
