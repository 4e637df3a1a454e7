// Products in the shapes of SmolLM2-135M beside what the machine can do in the same run: bytes of
// packed weights read per second against a plain sum over memory, and operations per second against
// a loop of vpdpbusd and nothing else.
//
//   kernels_matmul_bench [seconds per figure, default 0.2] [threads, 2 or 1; default 2]
//                        [only tables whose title contains this] [instruction sets, e.g.
//                        avx512,amx]
//
// With one thread the clock is that thread's CPU time, so a busy neighbour on the same cores does
// not count. Weights are copied until they fill 256 MiB, so that m = 1 reads them from memory (or
// from a last-level cache that large) and never from a near one. Every figure is the median of
// five slices; columns of one table take turns slice by slice, so their ratio holds on a machine
// whose speed drifts.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <string>
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

// Calls per second of each, the medians of five slices taken in turn.
std::vector<double> Rates(double seconds, std::span<const std::function<void()>> calls) {
  std::vector<std::vector<double>> rates(calls.size());
  for (const auto& call : calls) call();
  for (int slice = 0; slice < 5; ++slice) {
    for (size_t k = 0; k < calls.size(); ++k) {
      const size_t i = slice % 2 == 0 ? k : calls.size() - 1 - k;
      const double start = Now();
      int count = 0;
      double took = 0;
      do {
        calls[i]();
        ++count;
        took = Now() - start;
      } while (took < seconds / 5);
      rates[i].push_back(count / took);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& r : rates) {
    std::sort(r.begin(), r.end());
    medians.push_back(r[2]);
  }
  return medians;
}

double Rate(double seconds, std::function<void()> call) {
  return Rates(seconds, std::span(&call, 1))[0];
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

// One column of a table.
struct Variant {
  std::string name;
  Isa isa;
  Activations activations;
};

struct Limits {
  double bandwidth;
  double peak;
};

std::vector<PackedMatrix> PackCopies(const Shape& shape, Rng& rng, PairExecutor& pair) {
  const std::vector<std::byte> bytes = RandomWeights(rng, shape.type, shape.rows, shape.columns);
  const WeightView view = {shape.type, bytes.data(), shape.rows, shape.columns};
  std::vector<PackedMatrix> copies;
  size_t held = 0;
  std::vector<double> rates;
  do {
    const double start = Now();
    copies.push_back(PackedMatrix::Pack(std::span(&view, 1), pair).value());
    rates.push_back(static_cast<double>(bytes.size()) / (Now() - start));
    held += copies.back().bytes();
  } while (held < kWorkingSet);
  std::sort(rates.begin(), rates.end());
  std::printf("  packed at %.2f GB/s of file bytes, %.2f bits a weight\n",
              rates[rates.size() / 2] * 1e-9,
              8.0 * static_cast<double>(copies[0].bytes()) /
                  static_cast<double>(shape.rows * shape.columns));
  return copies;
}

void Measure(const Shape& shape, std::span<const Variant> variants, double seconds, Limits limits,
             PairExecutor& pair) {
  std::printf("\n%s %s %lldx%lld\n", shape.name, GetWeightType(shape.type).name,
              static_cast<long long>(shape.rows), static_cast<long long>(shape.columns));
  Rng rng(1);
  const std::vector<PackedMatrix> copies = PackCopies(shape, rng, pair);
  std::printf("    m");
  for (const Variant& v : variants) std::printf(" |%14s us  read  peak", v.name.c_str());
  std::printf("\n");
  MatmulScratch scratch;
  for (const int m : {1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 20, 24, 25, 32, 40, 64, 512}) {
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(m * shape.columns));
    std::vector<float> y(static_cast<size_t>(m * shape.rows));
    size_t turn = 0;
    std::vector<std::function<void()>> calls;
    for (const Variant& v : variants) {
      calls.push_back([&, chosen = &v] {
        if (CurrentIsa() != chosen->isa)
          static_cast<void>(SetIsa(chosen->isa));  // asks the CPU: slow
        Matmul(copies[turn++ % copies.size()], chosen->activations, x.data(),
               static_cast<size_t>(shape.columns), m, y.data(), static_cast<size_t>(shape.rows), {},
               scratch, pair);
      });
    }
    std::printf("  %3d", m);
    double base = 0;
    for (const double rate : Rates(seconds, calls)) {
      const double read = rate * static_cast<double>(copies[0].bytes()) / limits.bandwidth;
      const double ops = rate * 2 * m * static_cast<double>(shape.rows * shape.columns);
      std::printf(" |%11.1f", 1e6 / rate);
      if (base != 0) {
        std::printf(" %4.2f", base / rate);
      } else {
        std::printf("     ");
      }
      base = base != 0 ? base : rate;
      std::printf(" %4.0f%% %4.0f%%", 100 * read, limits.peak > 0 ? 100 * ops / limits.peak : 0.0);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::vector<Isa> ChosenIsas(const char* list) {
  std::vector<Isa> isas;
  for (const Isa isa : testing_util::SupportedIsas()) {
    const std::string all = "," + std::string(list) + ",";
    if (all.find("," + std::string(IsaName(isa)) + ",") != std::string::npos) isas.push_back(isa);
  }
  return isas.empty() ? std::vector<Isa>{CurrentIsa()} : isas;
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
  one_thread = argc > 2 && std::atoi(argv[2]) == 1;
  const std::string only = argc > 3 ? argv[3] : "";
  const std::vector<Isa> isas = ChosenIsas(argc > 4 ? argv[4] : "");
  PairExecutor pair;
  const Limits limits = {ReadBandwidth(seconds, pair), IntegerPeak(seconds, pair)};
  std::printf("%d thread(s) read %.1f GB/s; vpdpbusd peak %.0f GOPS\n", pair.workers(),
              limits.bandwidth * 1e-9, limits.peak * 1e-9);
  std::printf("read, peak: share of those two; beside the microseconds: times the first column\n");
  const auto wanted = [&](const Shape& shape, const std::string& how) {
    const std::string title = std::string(shape.name) + " " + GetWeightType(shape.type).name + how;
    return title.find(only) != std::string::npos;
  };
  const Shape shapes[] = {
      {"qkv", WeightType::kQ4_1, 960, 576},      {"gate-up", WeightType::kQ4_1, 3072, 576},
      {"down", WeightType::kQ4_1, 576, 1536},    {"head", WeightType::kQ8_0, 49152, 576},
      {"gate-up", WeightType::kQ4_0, 3072, 576}, {"gate-up", WeightType::kQ5_0, 3072, 576},
      {"gate-up", WeightType::kQ5_1, 3072, 576}, {"gate-up", WeightType::kQ8_0, 3072, 576},
      {"gate-up", WeightType::kQ4_K, 3072, 768}, {"gate-up", WeightType::kQ5_K, 3072, 768},
      {"gate-up", WeightType::kQ6_K, 3072, 768}, {"gate-up", WeightType::kF16, 3072, 576},
      {"gate-up", WeightType::kBf16, 3072, 576}, {"gate-up", WeightType::kF32, 3072, 576}};
  for (const Shape& shape : shapes) {
    if (!wanted(shape, " int8")) continue;
    std::vector<Variant> variants;
    for (const Isa isa : isas) variants.push_back({std::string(IsaName(isa)), isa, ActMode::kInt8});
    Measure(shape, variants, seconds, limits, pair);
  }
  // What a second term costs, for an eighth of the blocks and for all.
  for (const Shape& shape : {shapes[1], shapes[3], shapes[7], shapes[10]}) {
    if (!wanted(shape, " terms")) continue;
    std::vector<uint8_t> blocks(static_cast<size_t>(shape.columns / 32), 0);
    for (size_t b = 3; b < blocks.size(); b += 8) blocks[b] = 1;
    const Variant variants[] = {{"1 term", isas[0], ActMode::kInt8},
                                {"2 for 1 of 8", isas[0], {ActMode::kInt8, blocks}},
                                {"2 terms", isas[0], ActMode::kInt8x2}};
    Measure(shape, variants, seconds, limits, pair);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Main(argc, argv);
}
