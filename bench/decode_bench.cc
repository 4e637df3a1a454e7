// Speed of the whole engine on one model, without HTTP: prefill and decode at any depth and for any
// number of users, beside the bytes that a decode step must read and the read bandwidth of the same
// process. To be laid beside llama-bench and llama-batched-bench; `--help` lists the flags.
//
// Each round runs every test once. The depth is computed once and then found in the prefix cache,
// so that only the rows in question are timed: for prefill the --prompt tokens behind it (checked:
// a depth that is not found ends the program), for decode the steps after every user's first token.
// With --json each test prints one line: its samples in order of the rounds, and what they mean.
#include <sys/mman.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "engine/cpu_stack.h"
#include "env/clock.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "decode_bench: %s\n", what.c_str());
  std::exit(1);
}

struct Flags {
  StackOptions stack;
  std::string precision = "default";
  std::vector<int32_t> prompt = {512}, depth = {0}, users = {1, 2, 4, 8, 16};
  int32_t output = 128;
  int32_t rounds = 3;
  int32_t read_mib = 256;
  bool json = false;
};

struct Test {
  int32_t prompt = 0;  // > 0: prefill of so many tokens; 0: decode
  int32_t depth = 0;
  int32_t users = 1;
  std::vector<double> tokens_s, step_ms, read_gbs, read_same_gbs;
};

struct Counter final : EventSink {
  void OnTokens(std::vector<TokenEvent>& events) override {
    for (const TokenEvent& event : events) {
      if (event.finish == FinishReason::kError) Die(event.error.ToString());
      tokens += event.token >= 0 ? 1 : 0;
      if (event.scheduled_ns != 0) cached = event.cached_tokens;
    }
  }
  int64_t tokens = 0;
  int32_t cached = 0;
};

// `shared` tokens that are the same for one stream in every call, then `own` fresh ones.
std::vector<TokenId> Tokens(int32_t vocab, uint64_t stream, int32_t shared, int32_t own) {
  static uint64_t calls = 0;
  ++calls;
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < shared + own; ++i) {
    const uint64_t seed = i < shared ? 1 : 2 + calls;
    tokens.push_back(static_cast<TokenId>(CounterRandom(seed, stream, static_cast<uint64_t>(i)) %
                                          static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

void Send(Engine& engine, std::vector<TokenId> prompt, int32_t output,
          const std::shared_ptr<Counter>& counter) {
  static uint64_t next_id = 1;
  Request request;
  request.id = RequestId(next_id++);
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = output;
  const Status status = engine.Submit(std::move(request), counter);
  if (!status.ok()) Die(status.ToString());
}

void RunAll(Engine& engine) {
  while (engine.Step()) {
  }
}

double Seconds(const Clock& clock, int64_t start_ns) {
  return static_cast<double>(clock.NowNs() - start_ns) * 1e-9;
}

typedef uint64_t Wide __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)

// Sums up `words` words of 64 bytes with the widest loads there are, in four streams side by side.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t SumWide(const Wide* at,
                                                                              size_t words) {
  const size_t part = words / 16 * 4;  // of a stream
  Wide sums[4] = {};
  for (size_t i = 0; i < part; i += 4) {
    for (size_t k = 0; k < 4; ++k) {
      const Wide* from = at + k * part + i;
      for (size_t j = 0; j < 4; ++j) __builtin_prefetch(from + j + 32);
      sums[k] += (from[0] ^ from[1]) + (from[2] ^ from[3]);
    }
  }
  const Wide sum = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t total = 0;
  for (size_t i = 0; i < 8; ++i) total += sum[i];
  return total;
}

// GB/s that `threads` threads read together, each its own part of the same `bytes` bytes, again and
// again: the best of seven runs, since this is the limit that others are held against.
class ReadMeter {
 public:
  ReadMeter(size_t mib, int threads) : size_(mib << 20), threads_(threads) {
    if (size_ == 0) return;
    data_.reset(static_cast<Wide*>(std::aligned_alloc(kPage, (size_ + kPage - 1) / kPage * kPage)));
    if (data_ == nullptr) Die("no memory for the buffer of --read-mib");
    madvise(data_.get(), size_, MADV_HUGEPAGE);  // as the engine asks for its weights
    std::fill_n(reinterpret_cast<uint64_t*>(data_.get()), size_ / 8, uint64_t{1});
  }
  double Gbs(size_t bytes) {
    const size_t words =
        std::clamp(bytes, static_cast<size_t>(threads_) * 4096, size_) / sizeof(Wide);
    const size_t passes = 1 + (size_t{128} << 20) / (words * sizeof(Wide));
    double best = 0;
    for (int i = 0; i < 7; ++i) {
      const auto start = std::chrono::steady_clock::now();
      std::vector<std::thread> team;
      team.reserve(static_cast<size_t>(threads_));
      for (int t = 0; t < threads_; ++t) team.emplace_back([=, this] { Sum(t, words, passes); });
      for (std::thread& thread : team) thread.join();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best =
          std::max(best, static_cast<double>(words * sizeof(Wide) * passes) * 1e-9 / took.count());
    }
    return best;
  }

 private:
  static constexpr size_t kPage = size_t{2} << 20;
  struct Free {
    void operator()(Wide* p) const { std::free(p); }
  };
  void Sum(int thread, size_t words, size_t passes) {
    const size_t part = words / static_cast<size_t>(threads_);
    for (size_t pass = 0; pass < passes; ++pass) {
      volatile uint64_t keep = SumWide(data_.get() + part * static_cast<size_t>(thread), part);
      (void)keep;
    }
  }
  std::unique_ptr<Wide, Free> data_;
  size_t size_;
  int threads_;
};

void Prefill(Engine& engine, const Clock& clock, Test& test) {
  const int32_t vocab = engine.info().vocab;
  if (test.depth > 0) {
    Send(engine, Tokens(vocab, 0, test.depth, 0), 1, std::make_shared<Counter>());
    RunAll(engine);
  }
  const auto counter = std::make_shared<Counter>();
  Send(engine, Tokens(vocab, 0, test.depth, test.prompt), 1, counter);
  const int64_t start_ns = clock.NowNs();
  RunAll(engine);
  const double seconds = Seconds(clock, start_ns);
  if (counter->tokens != 1 || counter->cached != test.depth) {
    Die("of " + std::to_string(test.depth) + " tokens " + std::to_string(counter->cached) +
        " were found in the cache");
  }
  test.tokens_s.push_back(test.prompt / seconds);
  test.step_ms.push_back(seconds * 1e3);
}

void Decode(Engine& engine, const Clock& clock, int32_t output, Test& test) {
  const int32_t vocab = engine.info().vocab;
  const int32_t depth = std::max(test.depth, 1);
  for (int32_t u = 0; u < test.users; ++u) {
    Send(engine, Tokens(vocab, static_cast<uint64_t>(u), depth, 0), 1, std::make_shared<Counter>());
  }
  RunAll(engine);
  const auto counter = std::make_shared<Counter>();
  for (int32_t u = 0; u < test.users; ++u) {
    Send(engine, Tokens(vocab, static_cast<uint64_t>(u), depth, 0), output, counter);
  }
  while (counter->tokens < test.users && engine.Step()) {
  }
  const int64_t before = counter->tokens;
  const int64_t start_ns = clock.NowNs();
  int64_t steps = 0;
  while (counter->tokens < int64_t{test.users} * output && engine.Step()) ++steps;
  const double seconds = Seconds(clock, start_ns);
  RunAll(engine);
  if (before != test.users || steps != output - 1)
    Die("the users did not decode side by side: a larger pool?");
  test.tokens_s.push_back(static_cast<double>(counter->tokens - before) / seconds);
  test.step_ms.push_back(seconds * 1e3 / static_cast<double>(steps));
}

// Bytes that one decode step cannot do without: every layer's weights, the head, and K and V of
// each user at the middle of the measured stretch.
double StepBytes(const CpuStack& stack, const WorkerInfo& info, int32_t output, const Test& test) {
  const Model& model = stack.model();
  double bytes = static_cast<double>(model.weight_bytes());
  if (!model.config().tied_output) bytes -= static_cast<double>(model.embedding.bytes());
  const double tokens = std::max(test.depth, 1) + 0.5 * output;
  return bytes + info.kv_bytes_per_token * tokens * test.users;
}

std::string List(const std::vector<double>& values) {
  std::string out = "[";
  for (const double v : values) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%.6g", out.size() > 1 ? ", " : "", v);
    out += text;
  }
  return out + "]";
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void Print(const Test& test, const Flags& flags, const WorkerInfo& info, double bytes,
           double weights) {
  const bool decode = test.prompt == 0;
  if (!flags.json) {
    char share[64] = "";
    if (decode && !test.read_gbs.empty()) {
      std::snprintf(share, sizeof share, "%.1f of %.1f GB/s read",
                    bytes * 1e-6 / Median(test.step_ms), Median(test.read_gbs));
    }
    std::printf("| %s %d, depth %d, %d user%s | %.1f | %.3f | %s |\n",
                decode ? "decode" : "prefill", decode ? flags.output : test.prompt, test.depth,
                test.users, test.users == 1 ? "" : "s", Median(test.tokens_s), Median(test.step_ms),
                share);
    return;
  }
  std::printf(
      "{\"test\": \"%s\", \"prompt\": %d, \"depth\": %d, \"users\": %d, \"output\": %d, "
      "\"tokens_s\": %s, \"step_ms\": %s, \"step_bytes\": %.0f, \"weight_bytes\": %.0f, "
      "\"kv_bytes_token\": %.1f, \"read_gbs\": %s, \"read_same_gbs\": %s, \"threads\": %d, "
      "\"isa\": \"%s\", \"precision\": \"%s\", \"kv_type\": \"%s/%s\"}\n",
      decode ? "decode" : "prefill", test.prompt, test.depth, test.users, decode ? flags.output : 0,
      List(test.tokens_s).c_str(), List(test.step_ms).c_str(), bytes, weights,
      info.kv_bytes_per_token, List(test.read_gbs).c_str(), List(test.read_same_gbs).c_str(),
      info.threads, info.isa.c_str(), info.precision.c_str(), info.kv_type_k.c_str(),
      info.kv_type_v.c_str());
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("MODEL", flags.stack.model_path, "GGUF file")->required();
  app.add_option("--threads", flags.stack.threads, "0: physical cores allowed");
  app.add_option("--precision", flags.precision)
      ->check(CLI::IsMember({"fast", "default", "exact"}));
  app.add_option("--kv-type-k", flags.stack.kv_type_k)->capture_default_str();
  app.add_option("--kv-type-v", flags.stack.kv_type_v)->capture_default_str();
  app.add_option("--prompt", flags.prompt, "tokens of a prefill, several by comma; 0: none")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--depth", flags.depth, "tokens in the cache before, several by comma")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--users", flags.users, "decode for so many at once, several; 0: no decode")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--output", flags.output, "tokens a user decodes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--read-mib", flags.read_mib, "read bandwidth over so many MiB; 0: not measured")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "a JSON line for each test");
}

std::vector<Test> Plan(const Flags& flags) {
  std::vector<Test> tests;
  for (const int32_t depth : flags.depth) {
    for (const int32_t prompt : flags.prompt) {
      if (prompt > 0) tests.push_back({prompt, depth, 1, {}, {}, {}, {}});
    }
    for (const int32_t users : flags.users) {
      if (users > 0) tests.push_back({0, depth, users, {}, {}, {}, {}});
    }
  }
  return tests;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Prefill and decode speed of the engine, without HTTP");
  AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  StackOptions& options = flags.stack;
  options.precision = flags.precision == "fast"    ? Precision::kFast
                      : flags.precision == "exact" ? Precision::kExact
                                                   : Precision::kDefault;
  std::vector<Test> tests = Plan(flags);
  int64_t tokens = 0;
  for (const Test& t : tests)
    tokens += int64_t{t.users} * (t.depth + t.prompt + flags.output + 2 * options.block_tokens);
  // Room for everything once more, so that nothing of a depth is evicted between rounds.
  options.kv_blocks = 2 * tokens / options.block_tokens + 64;
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  auto stack = CpuStack::Make(options, nullptr);
  if (!stack.ok()) Die(stack.status().ToString());
  Engine& engine = (*stack)->engine();
  const WorkerInfo& info = engine.info();
  if (!flags.json) {
    std::printf("%s: loaded in %.2f s, %d threads, %s, precision %s, KV %s/%s\n\n",
                options.model_path.c_str(), Seconds(clock, start_ns), info.threads,
                info.isa.c_str(), info.precision.c_str(), info.kv_type_k.c_str(),
                info.kv_type_v.c_str());
    std::printf("| test | tokens/s | ms a step | bytes a step |\n| --- | ---: | ---: | --- |\n");
  }
  ReadMeter meter(static_cast<size_t>(flags.read_mib), info.threads);
  for (int32_t round = 0; round < flags.rounds; ++round) {
    for (Test& test : tests) {
      if (test.prompt == 0 && flags.read_mib > 0) {
        const double bytes = StepBytes(**stack, info, flags.output, test);
        test.read_gbs.push_back(meter.Gbs(static_cast<size_t>(flags.read_mib) << 20));
        test.read_same_gbs.push_back(meter.Gbs(static_cast<size_t>(bytes)));
      }
      if (test.prompt > 0) {
        Prefill(engine, clock, test);
      } else {
        Decode(engine, clock, flags.output, test);
      }
    }
  }
  for (const Test& test : tests) {
    Print(test, flags, info, StepBytes(**stack, info, flags.output, test),
          static_cast<double>((*stack)->model().weight_bytes()));
  }
  return 0;
}
