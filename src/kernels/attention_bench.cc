// kernels_attention_bench [threads] [part ...]: paged attention in the shape of SmolLM2-135M (9
// query heads on 3 KV heads of 64 channels, blocks of 16 tokens that hold 30 layers), two threads.
// A measurement walks all layers it has touched, as a model step does, so K and V come from memory
// when they are larger than the caches. Beside each the machine's limits in the same run, with the
// same threads: read bandwidth, and a loop of nothing but multiply-adds. Nothing here is asserted.
//
// Parts (all unless told): depth (decode and prefill over the cache's depth), shared (sequences
// that name the same blocks against the same that do not), table (what the block table costs), plan
// (finding who shares).
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "kernels/attention.h"
#include "kernels/attention_kernels.h"
#include "kernels/attention_plan.h"
#include "kernels/isa.h"
#include "kernels/spin_executor_bench.h"
#include "kernels/unroll.h"

namespace kvasir {
namespace {

constexpr int kLayers = 30;
constexpr int kQueryHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kDim = 64;
constexpr size_t kTouchBytes =
    size_t{256} << 20;  // K and V of one measurement, at least (if 30 layers have as much)

// Wall time; with one thread the process's CPU time, which a busy machine disturbs less.
bool g_cpu_time = false;

double Now() {
  if (g_cpu_time) {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Huge pages if the system gives them, as the engine's arena has.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    madvise(at, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(at);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

// GB/s at which all threads together read `pages` in pieces of `piece` bytes, taken in the order of
// their addresses or in any order.
double ReadBandwidth(const Pages& pages, size_t piece, bool shuffled, Executor& executor) {
  constexpr size_t kPart = size_t{3} << 18;
  std::vector<uint32_t> order(pages.bytes() / kPart * (kPart / piece));
  std::iota(order.begin(), order.end(), 0U);
  Rng rng(1);
  for (size_t i = order.size(); shuffled && i > 1; --i)
    std::swap(order[i - 1], order[rng.Below(i)]);
  std::atomic<int64_t> sink{0};
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = Now();
    executor.ParallelFor(pages.bytes() / kPart, [&](size_t part, int) {
      __m128i sum[8] = {};
      for (size_t n = 0; n < kPart / piece; ++n) {
        const std::byte* first = pages.data() + order[part * (kPart / piece) + n] * piece;
        const auto* at = reinterpret_cast<const __m128i*>(first);
        for (size_t m = 0; m < piece / 16; m += 8) {
          KVASIR_UNROLL for (size_t j = 0; j < 8; ++j) {
            sum[j] = _mm_xor_si128(sum[j], _mm_load_si128(at + m + j));
          }
        }
      }
      for (int j = 1; j < 8; ++j) sum[0] = _mm_xor_si128(sum[0], sum[j]);
      sink += _mm_cvtsi128_si64(sum[0]);
    });
    best = std::max(best, static_cast<double>(pages.bytes()) / (Now() - start) / 1e9);
  }
  return best;
}

__attribute__((target("avx2,fma"), noinline)) double FmaLoop8(int64_t rounds) {
  __m256 acc[12];
  KVASIR_UNROLL for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.999F);
  const __m256 y = _mm256_set1_ps(0.5F);
  for (int64_t n = 0; n < rounds; ++n) {
    KVASIR_UNROLL for (int i = 0; i < 12; ++i) {
      acc[i] = _mm256_fmadd_ps(acc[i], x, y);
      __asm__ volatile("" : "+v"(acc[i]));
    }
  }
  return static_cast<double>(rounds) * 12 * 2 * 8;
}
__attribute__((target("avx512f"), noinline)) double FmaLoop16(int64_t rounds) {
  __m512 acc[12];
  KVASIR_UNROLL for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.999F);
  const __m512 y = _mm512_set1_ps(0.5F);
  for (int64_t n = 0; n < rounds; ++n) {
    KVASIR_UNROLL for (int i = 0; i < 12; ++i) {
      acc[i] = _mm512_fmadd_ps(acc[i], x, y);
      __asm__ volatile("" : "+v"(acc[i]));
    }
  }
  return static_cast<double>(rounds) * 12 * 2 * 16;
}

// GFLOP/s of all threads with operands in registers; 0 for the portable path.
double FmaPeak(Executor& executor) {
  if (CurrentIsa() == Isa::kPortable) return 0;
  constexpr int64_t kRounds = 1 << 20;
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    std::atomic<int64_t> flops{0};
    const double start = Now();
    executor.ParallelFor(static_cast<size_t>(executor.workers()) * 4, [&](size_t, int) {
      flops += static_cast<int64_t>(CurrentIsa() >= Isa::kAvx512 ? FmaLoop16(kRounds)
                                                                 : FmaLoop8(kRounds));
    });
    best = std::max(best, static_cast<double>(flops) / (Now() - start) / 1e9);
  }
  return best;
}

struct Shape {
  const char* name;
  int sequences;
  int tokens;      // new ones of each
  int depth;       // tokens before them
  int shared = 0;  // leading tokens whose blocks all sequences name
  int block_tokens = 16;
  bool in_order = false;  // blocks one after the other, else anywhere in the arena
};

class Bench {
 public:
  Bench(KvType type, const Shape& shape, Executor& executor)
      : type_(type),
        shape_(shape),
        executor_(executor),
        half_(static_cast<size_t>(kKvHeads * shape.block_tokens * kDim) *
              internal::KvElementBytes(type)),
        per_sequence_((shape.depth + shape.tokens + shape.block_tokens - 1) / shape.block_tokens),
        shared_(shape.shared / shape.block_tokens),
        used_(shared_ + (per_sequence_ - shared_) * shape.sequences),
        layers_(LayersToTouch(half_ * 2 * static_cast<size_t>(used_))),
        pages_(half_ * 2 * static_cast<size_t>(layers_ * used_)) {
    Rng rng(1);
    std::vector<int32_t> blocks(static_cast<size_t>(used_));
    std::iota(blocks.begin(), blocks.end(), 0);
    for (size_t i = blocks.size(); !shape.in_order && i > 1; --i) {
      std::swap(blocks[i - 1], blocks[rng.Below(i)]);
    }
    auto next = blocks.begin() + shared_;
    for (int s = 0; s < shape.sequences; ++s) {
      tables_.emplace_back(blocks.begin(), blocks.begin() + shared_);
      tables_.back().insert(tables_.back().end(), next, next + (per_sequence_ - shared_));
      next += per_sequence_ - shared_;
    }
    const auto rows = static_cast<size_t>(shape.sequences * std::max(shape.tokens, 64));
    q_.resize(rows * kQueryHeads * kDim);
    out_.resize(q_.size());
    for (float& x : q_) x = static_cast<float>(rng.Uniform() * 2 - 1);
    for (int l = 0; l < layers_; ++l) Fill(l);
    for (int s = 0; s < shape_.sequences; ++s) {
      rows_.push_back(
          {tables_[static_cast<size_t>(s)].data(), shape_.depth, shape_.tokens, s * shape_.tokens});
    }
  }

  // Of K and V that have to be read once.
  size_t bytes_per_layer() const {
    const int tokens = shape_.depth + shape_.tokens;
    const int once = shared_ * shape_.block_tokens;
    return static_cast<size_t>(once + (tokens - once) * shape_.sequences) * kKvHeads * kDim * 2 *
           internal::KvElementBytes(type_);
  }
  double flops_per_layer() const {
    const double pairs =
        shape_.sequences * shape_.tokens * (shape_.depth + (shape_.tokens + 1) / 2.0);
    return pairs * kQueryHeads * kDim * 4;
  }

  // Seconds per layer of one walk over the layers.
  double Walk() {
    const double start = Now();
    for (int l = 0; l < layers_; ++l) {
      PagedAttention(View(l), rows_, kQueryHeads, 0.125F, q_.data(), kQueryHeads * kDim,
                     out_.data(), kQueryHeads * kDim, scratch_, executor_);
    }
    return (Now() - start) / layers_;
  }

 private:
  static int LayersToTouch(size_t layer_bytes) {
    return static_cast<int>(
        std::min<size_t>((kTouchBytes + layer_bytes - 1) / layer_bytes, kLayers));
  }
  PagedKv View(int layer) const {
    PagedKv kv;
    kv.base = pages_.data();
    kv.block_stride = half_ * 2 * static_cast<size_t>(layers_);
    kv.k_offset = half_ * 2 * static_cast<size_t>(layer);
    kv.v_offset = kv.k_offset + half_;
    kv.block_tokens = shape_.block_tokens;
    kv.kv_heads = kKvHeads;
    kv.k_dim = kv.v_dim = kDim;
    kv.k_type = kv.v_type = type_;
    return kv;
  }
  void Fill(int layer) {
    for (const std::vector<int32_t>& table : tables_) {
      for (int t = 0; t < shape_.depth + shape_.tokens; t += 64) {
        const int n = std::min(64, shape_.depth + shape_.tokens - t);
        const AttentionSpanOfSequence rows[] = {{table.data(), t, n, 0}};
        WriteKv(View(layer), rows, q_.data(), kKvHeads * kDim, q_.data() + 64, kKvHeads * kDim,
                executor_);
      }
    }
  }

  KvType type_;
  Shape shape_;
  Executor& executor_;
  size_t half_;                       // bytes of K of one layer in a block
  int per_sequence_, shared_, used_;  // blocks
  int layers_;
  Pages pages_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSpanOfSequence> rows_;
  std::vector<float> q_, out_;
  AttentionScratch scratch_;
};

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Medians of walks taken in turn, for about `seconds`, after one of each that is not counted.
std::pair<double, double> InTurn(Bench& a, Bench& b, double seconds) {
  std::vector<double> one, two;
  a.Walk();
  b.Walk();
  const double end = Now() + seconds;
  while (one.size() < 5 || (Now() < end && one.size() < 200)) {
    one.push_back(a.Walk());
    two.push_back(b.Walk());
  }
  return {Median(one), Median(two)};
}

struct Limits {
  double read = 0;    // GB/s, from one end to the other
  double blocks = 0;  // GB/s, in the pieces that a layer has in a block of 16 tokens, in any order
  double fma = 0;     // GFLOP/s
};

Limits Measure(const Pages& pages, Executor& executor) {
  constexpr size_t kPiece = size_t{2} * kKvHeads * 16 * kDim * 2;
  return {ReadBandwidth(pages, kPiece, false, executor),
          ReadBandwidth(pages, kPiece, true, executor), FmaPeak(executor)};
}

void PrintLimits(const Limits& limits) {
  std::printf("limits: read %.1f GB/s, %.1f GB/s by shuffled blocks, multiply-add %.0f GFLOP/s\n",
              limits.read, limits.blocks, limits.fma);
}

void DepthPart(const Pages& pages, Executor& executor) {
  constexpr Shape kShapes[] = {
      {"decode", 1, 1, 511},  {"decode", 1, 1, 4095},    {"decode", 1, 1, 8191},
      {"decode", 16, 1, 511}, {"decode", 16, 1, 4095},   {"decode", 16, 1, 8191},
      {"prefill", 1, 256, 0}, {"prefill", 1, 256, 4096},
  };
  std::printf("\n%-8s %5s %6s %6s %4s | %9s | %8s %7s %7s | %8s %7s\n", "what", "seqs", "tokens",
              "depth", "KV", "us/layer", "K+V GB/s", "of read", "blocks", "GFLOP/s", "of fma");
  Limits limits;
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const Shape& shape : kShapes) {
      Bench bench(type, shape, executor);
      limits = Measure(pages, executor);
      std::vector<double> times;
      bench.Walk();
      const double end = Now() + 0.3;
      while (times.size() < 5 || (Now() < end && times.size() < 200)) times.push_back(bench.Walk());
      const double seconds = Median(times);
      const double rate = static_cast<double>(bench.bytes_per_layer()) / seconds / 1e9;
      const double gflops = bench.flops_per_layer() / seconds / 1e9;
      std::printf("%-8s %5d %6d %6d %4s | %9.1f | %8.1f %7.2f %7.2f | %8.1f %7.2f\n", shape.name,
                  shape.sequences, shape.tokens, shape.depth, std::string(KvTypeName(type)).c_str(),
                  seconds * 1e6, rate, rate / limits.read, rate / limits.blocks, gflops,
                  limits.fma > 0 ? gflops / limits.fma : 0);
      std::fflush(stdout);
    }
  }
  PrintLimits(limits);
}

// Everyone decodes 32 tokens after what is shared.
void SharedPart(const Pages& pages, Executor& executor) {
  std::printf("\nshared prefix, f16, 32 tokens of each one's own\n");
  std::printf("%5s %6s | %14s %12s %8s | %12s\n", "seqs", "shared", "alone us/layer", "us/layer",
              "speed-up", "GFLOP/s");
  for (const int shared : {2000, 4000}) {
    for (const int sequences : {1, 2, 4, 8, 16}) {
      Bench alone(KvType::kF16, {"alone", sequences, 1, shared + 31}, executor);
      Bench together(KvType::kF16, {"shared", sequences, 1, shared + 31, shared}, executor);
      const auto [a, b] = InTurn(alone, together, 0.5);
      std::printf("%5d %6d | %14.1f %12.1f %8.2f | %12.1f\n", sequences, shared, a * 1e6, b * 1e6,
                  a / b, together.flops_per_layer() / b / 1e9);
      std::fflush(stdout);
    }
  }
  PrintLimits(Measure(pages, executor));
}

void TablePart(const Pages& pages, Executor& executor) {
  std::printf("\nblock table, decode f16: time over that of blocks of 256 in order\n");
  std::printf("%5s %6s | %12s %12s %12s %12s\n", "seqs", "depth", "256 us/layer", "16 in order",
              "16 shuffled", "256 shuffled");
  for (const int sequences : {1, 16}) {
    Bench base(KvType::kF16, {"base", sequences, 1, 4095, 0, 256, true}, executor);
    double us = 0;
    double ratio[3];
    const Shape others[] = {{"in order", sequences, 1, 4095, 0, 16, true},
                            {"shuffled", sequences, 1, 4095, 0, 16, false},
                            {"shuffled", sequences, 1, 4095, 0, 256, false}};
    for (int i = 0; i < 3; ++i) {
      Bench other(KvType::kF16, others[i], executor);
      const auto [a, b] = InTurn(base, other, 1.0);
      us = a * 1e6;
      ratio[i] = b / a;
    }
    std::printf("%5d %6d | %12.1f %12.3f %12.3f %12.3f\n", sequences, 4095, us, ratio[0], ratio[1],
                ratio[2]);
    std::fflush(stdout);
  }
  PrintLimits(Measure(pages, executor));
}

// 256 sequences of 8,192 tokens: nothing shared, half of it, all but the last block.
void PlanPart(Executor& executor) {
  constexpr int kSequences = 256;
  constexpr int kBlocks = 512;
  std::printf("\nplan of one call, %d sequences of %d blocks\n", kSequences, kBlocks);
  for (const int shared : {0, kBlocks / 2, kBlocks - 1}) {
    Rng rng(1);
    std::vector<int32_t> table(static_cast<size_t>(kSequences * kBlocks));
    for (int32_t& block : table) block = static_cast<int32_t>(rng.Below(1 << 20));
    std::vector<AttentionSpanOfSequence> rows;
    for (int s = 0; s < kSequences; ++s) {
      const auto own = table.begin() + s * kBlocks;
      std::copy(table.begin(), table.begin() + shared, own);
      rows.push_back({&*own, kBlocks * 16 - 1, 1, s});
    }
    internal::AttentionOrder order;
    AttentionScratch scratch;
    std::vector<double> sorts, plans;
    for (int i = 0; i < 200; ++i) {
      const double start = Now();
      order.Sort(rows, 16);
      const double sorted = Now();
      scratch.rep().Plan({kQueryHeads, kKvHeads, kDim, kDim, 16, 12, executor.workers()}, rows);
      sorts.push_back(sorted - start);
      plans.push_back(Now() - sorted);
    }
    std::printf("%4d blocks shared: finding them %6.1f us, the whole plan %6.1f us\n", shared,
                Median(sorts) * 1e6, Median(plans) * 1e6);
  }
}

void Main(int threads, const std::vector<std::string>& parts) {
  g_cpu_time = threads == 1;
  SpinExecutor executor(threads);
  Pages pages(size_t{512} << 20);
  std::memset(pages.data(), 1, pages.bytes());
  std::printf("path %s, %d threads, %d query heads, %d KV heads of %d, blocks of 16 tokens\n",
              std::string(IsaName(CurrentIsa())).c_str(), threads, kQueryHeads, kKvHeads, kDim);
  const auto wanted = [&parts](const char* name) {
    return parts.empty() || std::find(parts.begin(), parts.end(), name) != parts.end();
  };
  if (wanted("depth")) DepthPart(pages, executor);
  if (wanted("shared")) SharedPart(pages, executor);
  if (wanted("table")) TablePart(pages, executor);
  if (wanted("plan")) PlanPart(executor);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (threads < 1 || threads > 256) {
    std::fprintf(stderr, "kernels_attention_bench [threads] [part ...]: threads is 1 to 256\n");
    return 2;
  }
  std::vector<std::string> parts;
  for (int i = 2; i < argc; ++i) parts.emplace_back(argv[i]);
  kvasir::Main(threads, parts);
  return 0;
}
