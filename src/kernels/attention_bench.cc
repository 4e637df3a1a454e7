// kernels_attention_bench: paged attention in the shape of SmolLM2-135M (9 query heads on 3 KV
// heads of 64 channels, blocks of 16 tokens that hold 30 layers), two threads. A measurement walks
// all layers it has touched, as a model step does, so K and V come from memory when they are larger
// than the caches. Beside each: the read bandwidth of the same run, measured just before with the
// same threads. Nothing here is asserted.
#include <emmintrin.h>
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
#include <thread>
#include <vector>

#include "base/hash.h"
#include "kernels/attention.h"
#include "kernels/attention_kernels.h"
#include "kernels/isa.h"

namespace kvasir {
namespace {

constexpr int kLayers = 30;
constexpr int kQueryHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kDim = 64;
constexpr int kBlockTokens = 16;
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

// The caller and workers - 1 threads that spin between calls.
class SpinExecutor final : public Executor {
 public:
  explicit SpinExecutor(int workers) {
    for (int w = 1; w < workers; ++w) threads_.emplace_back([this, w] { Loop(w); });
  }
  ~SpinExecutor() override {
    stop_ = true;
    ++round_;
    for (std::thread& thread : threads_) thread.join();
  }
  SpinExecutor(const SpinExecutor&) = delete;
  SpinExecutor& operator=(const SpinExecutor&) = delete;
  int workers() const override { return static_cast<int>(threads_.size()) + 1; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    body_ = &body;
    parts_ = parts;
    next_ = 0;
    running_ = static_cast<int>(threads_.size());
    ++round_;
    Take(0);
    while (running_ != 0) _mm_pause();
  }

 private:
  void Take(int worker) {
    for (size_t part; (part = next_.fetch_add(1)) < parts_;) (*body_)(part, worker);
  }
  void Loop(int worker) {
    for (int seen = 0;;) {
      for (int spins = 0; round_ == seen; ++spins) {
        if (spins < 10000) {
          _mm_pause();
        } else {
          std::this_thread::yield();
        }
      }
      ++seen;
      if (stop_) return;
      Take(worker);
      --running_;
    }
  }

  FunctionRef<void(size_t part, int worker)>* body_ = nullptr;
  size_t parts_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<int> running_{0}, round_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

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

// GB/s at which all threads together read `pages`.
double ReadBandwidth(const Pages& pages, Executor& executor) {
  constexpr size_t kPart = size_t{1} << 20;
  std::atomic<int64_t> sink{0};
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = Now();
    executor.ParallelFor(pages.bytes() / kPart, [&](size_t part, int) {
      const auto* at = reinterpret_cast<const __m128i*>(pages.data() + part * kPart);
      __m128i sum[8] = {};
      for (size_t n = 0; n < kPart / 16; n += 8) {
        for (size_t j = 0; j < 8; ++j) sum[j] = _mm_xor_si128(sum[j], _mm_load_si128(at + n + j));
      }
      for (int j = 1; j < 8; ++j) sum[0] = _mm_xor_si128(sum[0], sum[j]);
      sink += _mm_cvtsi128_si64(sum[0]);
    });
    best = std::max(best, static_cast<double>(pages.bytes()) / (Now() - start) / 1e9);
  }
  return best;
}

struct Shape {
  const char* name;
  int sequences;
  int tokens;  // new ones
  int depth;   // tokens before them
};

class Bench {
 public:
  Bench(KvType type, const Shape& shape, Executor& executor)
      : type_(type),
        shape_(shape),
        executor_(executor),
        half_(static_cast<size_t>(kKvHeads * kBlockTokens * kDim) * internal::KvElementBytes(type)),
        per_sequence_((shape.depth + shape.tokens + kBlockTokens - 1) / kBlockTokens),
        layers_(LayersToTouch(half_ * 2 * static_cast<size_t>(per_sequence_ * shape.sequences))),
        pages_(half_ * 2 * static_cast<size_t>(layers_ * per_sequence_ * shape.sequences)) {
    Rng rng(1);
    blocks_.resize(static_cast<size_t>(per_sequence_ * shape.sequences));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (size_t i = blocks_.size(); i > 1; --i) std::swap(blocks_[i - 1], blocks_[rng.Below(i)]);
    const auto rows = static_cast<size_t>(shape.sequences * std::max(shape.tokens, 64));
    q_.resize(rows * kQueryHeads * kDim);
    out_.resize(q_.size());
    for (float& x : q_) x = static_cast<float>(rng.Uniform() * 2 - 1);
    for (int l = 0; l < layers_; ++l) Fill(l);
  }

  size_t bytes_per_layer() const {
    return static_cast<size_t>(shape_.sequences) *
           static_cast<size_t>(shape_.depth + shape_.tokens) * kKvHeads * kDim * 2 *
           internal::KvElementBytes(type_);
  }

  // Seconds per layer: the middle of several walks over the layers.
  double Run() {
    std::vector<AttentionSpanOfSequence> rows;
    for (int s = 0; s < shape_.sequences; ++s) {
      rows.push_back(
          {blocks_.data() + s * per_sequence_, shape_.depth, shape_.tokens, s * shape_.tokens});
    }
    std::vector<double> times;
    const double end = Now() + 0.3;
    while (times.size() < 4 || (Now() < end && times.size() < 200)) {
      const double start = Now();
      for (int l = 0; l < layers_; ++l) {
        PagedAttention(View(l), rows, kQueryHeads, 0.125F, q_.data(), kQueryHeads * kDim,
                       out_.data(), kQueryHeads * kDim, scratch_, executor_);
      }
      times.push_back((Now() - start) / layers_);
    }
    std::sort(times.begin() + 1, times.end());
    return times[1 + (times.size() - 1) / 2];
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
    kv.block_tokens = kBlockTokens;
    kv.kv_heads = kKvHeads;
    kv.k_dim = kv.v_dim = kDim;
    kv.k_type = kv.v_type = type_;
    return kv;
  }
  void Fill(int layer) {
    for (int s = 0; s < shape_.sequences; ++s) {
      for (int t = 0; t < shape_.depth + shape_.tokens; t += 64) {
        const int n = std::min(64, shape_.depth + shape_.tokens - t);
        const AttentionSpanOfSequence rows[] = {{blocks_.data() + s * per_sequence_, t, n, 0}};
        WriteKv(View(layer), rows, q_.data(), kKvHeads * kDim, q_.data() + 64, kKvHeads * kDim,
                executor_);
      }
    }
  }

  KvType type_;
  Shape shape_;
  Executor& executor_;
  size_t half_;  // bytes of K of one layer in a block
  int per_sequence_;
  int layers_;
  Pages pages_;
  std::vector<int32_t> blocks_;
  std::vector<float> q_, out_;
  AttentionScratch scratch_;
};

constexpr Shape kShapes[] = {
    {"decode", 1, 1, 511},  {"decode", 1, 1, 4095},    {"decode", 1, 1, 8191},
    {"decode", 16, 1, 511}, {"decode", 16, 1, 4095},   {"decode", 16, 1, 8191},
    {"prefill", 1, 256, 0}, {"prefill", 1, 256, 4096},
};

void Main(int threads) {
  g_cpu_time = threads == 1;
  SpinExecutor executor(threads);
  Pages pages(size_t{512} << 20);
  std::memset(pages.data(), 1, pages.bytes());
  std::printf("path %s, %d threads, %d query heads, %d KV heads of %d, blocks of %d tokens\n",
              std::string(IsaName(CurrentIsa())).c_str(), threads, kQueryHeads, kKvHeads, kDim,
              kBlockTokens);
  std::printf("%-9s %5s %6s %6s %5s | %10s %9s %9s %6s %9s\n", "what", "seqs", "tokens", "depth",
              "KV", "us/layer", "K+V GB/s", "read GB/s", "ratio", "GFLOP/s");
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const Shape& shape : kShapes) {
      Bench bench(type, shape, executor);
      const double bandwidth = ReadBandwidth(pages, executor);
      const double seconds = bench.Run();
      const double rate = static_cast<double>(bench.bytes_per_layer()) / seconds / 1e9;
      const double pairs =
          shape.sequences * shape.tokens * (shape.depth + (shape.tokens + 1) / 2.0);
      std::printf("%-9s %5d %6d %6d %5s | %10.1f %9.1f %9.1f %6.2f %9.1f\n", shape.name,
                  shape.sequences, shape.tokens, shape.depth, std::string(KvTypeName(type)).c_str(),
                  seconds * 1e6, rate, bandwidth, rate / bandwidth,
                  pairs * kQueryHeads * kDim * 4 / seconds / 1e9);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace kvasir

// [threads], 2 unless told.
int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (threads < 1 || threads > 256) {
    std::fprintf(stderr, "kernels_attention_bench [threads]: threads is 1 to 256\n");
    return 2;
  }
  kvasir::Main(threads);
  return 0;
}
