// Products in the shapes of SmolLM2-135M beside what the machine can do in the same run: bytes of
// packed weights read per second against a plain sum over memory, and operations per second against
// a loop of vpdpbusd and nothing else.
//
//   kernels_matmul_bench [seconds per figure, default 0.2] [threads, 2 or 1; default 2]
//
// With one thread the clock is that thread's CPU time, so a busy neighbour on the same cores does
// not count. Weights are copied until they fill 256 MiB, so that m = 1 reads them from memory (or
// from a last-level cache that large) and never from a near one. Every figure is the median of
// five.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/kernel_test_util.h"
#include "kernels/matmul.h"
#include "kernels/unroll.h"

namespace kvasir {
namespace {

using testing_util::RandomFloats;
using testing_util::RandomWeights;

constexpr size_t kWorkingSet = size_t{256} << 20;

bool one_thread = false;

// The caller and one more thread, which spin between calls; or the caller alone.
class PairExecutor final : public Executor {
 public:
  PairExecutor() {
    if (!one_thread) thread_ = std::thread([this] { Loop(); });
  }
  ~PairExecutor() override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int workers() const override { return one_thread ? 1 : 2; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    body_ = &body;
    parts_ = parts;
    next_ = 0;
    const uint64_t round = ++round_;
    Take(0);
    while (!one_thread && done_ != round) _mm_pause();
  }

 private:
  void Take(int worker) {
    for (size_t part = next_++; part < parts_; part = next_++) (*body_)(part, worker);
  }
  void Loop() {
    uint64_t seen = 0;
    while (!stop_) {
      if (round_ == seen) {
        _mm_pause();
        continue;
      }
      ++seen;
      Take(1);
      done_ = seen;
    }
  }
  FunctionRef<void(size_t, int)>* body_ = nullptr;
  size_t parts_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> round_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

double Now() {
  timespec t = {};
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Calls per second, the median of five slices.
template <typename Call>
double Rate(double seconds, Call call) {
  call();
  std::vector<double> rates;
  for (int slice = 0; slice < 5; ++slice) {
    const double start = Now();
    int calls = 0;
    double took = 0;
    do {
      call();
      ++calls;
      took = Now() - start;
    } while (took < seconds / 5);
    rates.push_back(calls / took);
  }
  std::sort(rates.begin(), rates.end());
  return rates[2];
}

std::atomic<uint64_t> sink{0};

double ReadBandwidth(double seconds, PairExecutor& pair) {
  std::vector<uint64_t> memory(kWorkingSet / 8);
  std::iota(memory.begin(), memory.end(), 0);
  const size_t half = memory.size() / 2;
  return static_cast<double>(kWorkingSet) * Rate(seconds * 4, [&] {
           pair.ParallelFor(2, [&](size_t part, int) {
             const __m128i* p = reinterpret_cast<const __m128i*>(memory.data() + part * half);
             __m128i sum[4] = {};
             for (size_t i = 0; i < half / 2; i += 4) {
               for (size_t k = 0; k < 4; ++k)
                 sum[k] = _mm_xor_si128(sum[k], _mm_loadu_si128(p + i + k));
             }
             const __m128i all =
                 _mm_xor_si128(_mm_xor_si128(sum[0], sum[1]), _mm_xor_si128(sum[2], sum[3]));
             sink += static_cast<uint64_t>(_mm_cvtsi128_si64(all));
           });
         });
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// Twelve sums that do not wait for each other; they start different, or the compiler would compute
// only one.
__attribute__((target("avx512f,avx512vnni"))) void DotLoop(int rounds) {
  const __m512i a = _mm512_set1_epi32(0x01020304 + rounds);
  __m512i sums[12];
  KVASIR_UNROLL for (int k = 0; k < 12; ++k) sums[k] = _mm512_set1_epi32(rounds + k);
  for (int i = 0; i < rounds; ++i) {
    KVASIR_UNROLL for (int k = 0; k < 12; ++k) sums[k] = _mm512_dpbusd_epi32(sums[k], a, a);
  }
  __m512i all = sums[0];
  KVASIR_UNROLL for (int k = 1; k < 12; ++k) all = _mm512_xor_si512(all, sums[k]);
  sink += static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(all)));
}

// Multiplications and additions per second, counted as two.
double IntegerPeak(double seconds, PairExecutor& pair) {
  if (!IsaSupported(Isa::kAvx512)) return 0;
  constexpr int kRounds = 20000;
  return 2.0 * kRounds * 12 * 128 *
         Rate(seconds * 2, [&] { pair.ParallelFor(2, [&](size_t, int) { DotLoop(kRounds); }); });
}

struct Shape {
  const char* name;
  WeightType type;
  int64_t rows;
  int64_t columns;
};

void Measure(const Shape& shape, ActMode mode, double seconds, double bandwidth, double peak,
             PairExecutor& pair) {
  Rng rng(1);
  const std::vector<std::byte> bytes = RandomWeights(rng, shape.type, shape.rows, shape.columns);
  const WeightView view = {shape.type, bytes.data(), shape.rows, shape.columns};
  std::vector<PackedMatrix> copies;
  size_t held = 0;
  const double start = Now();
  do {
    copies.push_back(PackedMatrix::Pack(std::span(&view, 1), pair).value());
    held += copies.back().bytes();
  } while (held < kWorkingSet);
  const double pack = static_cast<double>(bytes.size() * copies.size()) / (Now() - start);
  const char* mode_names[] = {"int8", "int8x2", "f32"};
  std::printf("\n%s %s %lldx%lld %s  (packing %.2f GB/s of file bytes)\n", shape.name,
              GetWeightType(shape.type).name, static_cast<long long>(shape.rows),
              static_cast<long long>(shape.columns), mode_names[static_cast<int>(mode)],
              pack * 1e-9);
  std::printf("    m     us/call     GB/s  of read     GOPS  of peak\n");
  MatmulScratch scratch;
  for (const int m : {1, 2, 4, 8, 16, 64, 512}) {
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * shape.columns));
    std::vector<float> y(static_cast<size_t>(m * shape.rows));
    size_t turn = 0;
    const double rate = Rate(seconds, [&] {
      Matmul(copies[turn++ % copies.size()], mode, x.data(), static_cast<size_t>(shape.columns), m,
             y.data(), static_cast<size_t>(shape.rows), {}, scratch, pair);
    });
    const double gbs = rate * static_cast<double>(copies[0].bytes());
    const double ops = rate * 2 * m * static_cast<double>(shape.rows * shape.columns);
    std::printf("  %3d  %10.1f  %7.1f   %4.0f %%  %7.1f   %4.0f %%\n", m, 1e6 / rate, gbs * 1e-9,
                100 * gbs / bandwidth, ops * 1e-9, peak > 0 ? 100 * ops / peak : 0.0);
  }
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
  one_thread = argc > 2 && std::atoi(argv[2]) == 1;
  PairExecutor pair;
  const double bandwidth = ReadBandwidth(seconds, pair);
  const double peak = IntegerPeak(seconds, pair);
  std::printf("instruction set %.*s; %d thread(s) read %.1f GB/s; vpdpbusd peak %.0f GOPS\n",
              static_cast<int>(IsaName(CurrentIsa()).size()), IsaName(CurrentIsa()).data(),
              pair.workers(), bandwidth * 1e-9, peak * 1e-9);
  const Shape shapes[] = {{"qkv", WeightType::kQ4_1, 960, 576},
                          {"gate-up", WeightType::kQ4_1, 3072, 576},
                          {"down", WeightType::kQ4_1, 576, 1536},
                          {"head", WeightType::kQ8_0, 49152, 576}};
  for (const Shape& shape : shapes) Measure(shape, ActMode::kInt8, seconds, bandwidth, peak, pair);
  Measure(shapes[1], ActMode::kInt8x2, seconds, bandwidth, peak, pair);
  const Shape others[] = {
      {"gate-up", WeightType::kQ4_0, 3072, 576}, {"gate-up", WeightType::kQ5_1, 3072, 576},
      {"gate-up", WeightType::kQ4_K, 3072, 768}, {"gate-up", WeightType::kQ5_K, 3072, 768},
      {"gate-up", WeightType::kQ6_K, 3072, 768}, {"gate-up", WeightType::kF16, 3072, 576},
      {"gate-up", WeightType::kBf16, 3072, 576}};
  for (const Shape& shape : others) Measure(shape, ActMode::kInt8, seconds, bandwidth, peak, pair);
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Main(argc, argv);
}
