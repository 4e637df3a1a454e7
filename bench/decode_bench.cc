// Speed of the whole engine on one model, to be laid beside llama-bench: decode for one user,
// prefill of 512 tokens, and decode for 2 to 16 users.
//
//   decode_bench MODEL [threads] [precision: fast|default|exact]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/cpu_stack.h"
#include "env/clock.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

struct Counter final : EventSink {
  void OnTokens(std::vector<TokenEvent> events) override {
    for (const TokenEvent& event : events) {
      tokens += event.token >= 0 ? 1 : 0;
      if (event.finish == FinishReason::kError)
        std::fprintf(stderr, "%s\n", event.error.ToString().c_str());
    }
  }
  int64_t tokens = 0;
};

uint64_t next_id = 1;

void Send(Engine& engine, int32_t prompt, int32_t output, const std::shared_ptr<Counter>& counter) {
  Rng rng(next_id);
  Request request;
  request.id = RequestId(next_id++);
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(
        static_cast<TokenId>(rng.Below(static_cast<uint64_t>(engine.info().vocab))));
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = output;
  const Status status = engine.Submit(std::move(request), counter);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }
}

double Seconds(const Clock& clock, int64_t start_ns) {
  return static_cast<double>(clock.NowNs() - start_ns) * 1e-9;
}

// Tokens a second; the best of three, since these hosts are shared.
double Prefill(Engine& engine, const Clock& clock, int32_t prompt) {
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto counter = std::make_shared<Counter>();
    Send(engine, prompt, 1, counter);
    const int64_t start_ns = clock.NowNs();
    while (engine.Step()) {
    }
    best = std::max(best, prompt / Seconds(clock, start_ns));
  }
  return best;
}

double Decode(Engine& engine, const Clock& clock, int32_t users, int32_t output) {
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto counter = std::make_shared<Counter>();
    for (int32_t u = 0; u < users; ++u) Send(engine, 8, output, counter);
    while (counter->tokens < users) engine.Step();
    const int64_t before = counter->tokens;
    const int64_t start_ns = clock.NowNs();
    while (engine.Step()) {
    }
    best = std::max(best, static_cast<double>(counter->tokens - before) / Seconds(clock, start_ns));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: decode_bench MODEL [threads] [fast|default|exact]\n");
    return 2;
  }
  StackOptions options;
  options.model_path = argv[1];
  if (argc > 2) options.threads = std::atoi(argv[2]);
  const std::string precision = argc > 3 ? argv[3] : "default";
  if (precision == "fast") options.precision = Precision::kFast;
  if (precision == "exact") options.precision = Precision::kExact;
  options.kv_bytes = 512ULL << 20;
  const SteadyClock clock;
  const int64_t start_ns = clock.NowNs();
  auto stack = CpuStack::Make(options, nullptr);
  if (!stack.ok()) {
    std::fprintf(stderr, "%s\n", stack.status().ToString().c_str());
    return 3;
  }
  Engine& engine = (*stack)->engine();
  std::printf("%s: loaded in %.2f s, %d threads, %s, precision %s, KV %s\n", argv[1],
              Seconds(clock, start_ns), engine.info().threads, engine.info().isa.c_str(),
              engine.info().precision.c_str(), engine.info().kv_type_k.c_str());
  std::printf("| test | tokens/s |\n| --- | ---: |\n");
  std::printf("| prefill 512 | %.1f |\n", Prefill(engine, clock, 512));
  for (const int32_t users : {1, 2, 4, 8, 16}) {
    std::printf("| decode 128, %d user%s | %.1f |\n", users, users == 1 ? "" : "s",
                Decode(engine, clock, users, 128));
    std::fflush(stdout);
  }
  return 0;
}
