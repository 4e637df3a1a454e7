// What taking one token from a row of logits costs, one thread: microseconds a row by the way of
// sampling, on a vocabulary of 49,152 and logits shaped like a model's (a few likely tokens over a
// broad rest) or flat (close to the worst case).
//
//   engine_sampler_bench [vocabulary]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "env/clock.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

constexpr int kRows = 16;

std::vector<float> Rows(size_t vocab, bool peaked) {
  Rng rng(1);
  std::vector<float> rows(kRows * vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double normal = rng.Uniform() + rng.Uniform() + rng.Uniform() + rng.Uniform() - 2;
    rows[i] = static_cast<float>(normal * (peaked ? 3.5 : 1.0));
    if (peaked && rng.Below(1000) == 0) rows[i] += static_cast<float>(10 * rng.Uniform());
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t vocab = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 49152;
  struct Way {
    std::string name;
    SamplingParams params;
  };
  std::vector<Way> ways(8);
  ways[0].name = "greedy";
  ways[0].params.temperature = 0;
  ways[1].name = "temperature 1";
  ways[2].name = "top_p 0.95";
  ways[2].params.top_p = 0.95F;
  ways[3].name = "top_k 40";
  ways[3].params.top_k = 40;
  ways[4].name = "min_p 0.05";
  ways[4].params.min_p = 0.05F;
  ways[5].name = "top_k 40, top_p 0.9";
  ways[5].params.top_k = 40;
  ways[5].params.top_p = 0.9F;
  ways[6].name = "repetition_penalty 1.1";
  ways[6].params.repetition_penalty = 1.1F;
  ways[7].name = "greedy, logprobs 5";
  ways[7].params.temperature = 0;
  ways[7].params.logprobs = 5;
  const SteadyClock clock;
  std::vector<TokenId> tokens(300);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 37 % vocab);
  std::printf("| us a row | like a model's | flat |\n| --- | ---: | ---: |\n");
  const std::vector<float> rows[2] = {Rows(vocab, true), Rows(vocab, false)};
  Sampler sampler(static_cast<int32_t>(vocab));
  for (const Way& way : ways) {
    double us[2] = {1e9, 1e9};
    for (int shape = 0; shape < 2; ++shape) {
      for (int round = 0; round < 15; ++round) {
        const int64_t start_ns = clock.NowNs();
        for (size_t i = 0; i < kRows; ++i) {
          const std::span<const float> row = std::span(rows[shape]).subspan(i * vocab, vocab);
          SampleInput input;
          input.params = &way.params;
          input.tokens = tokens;
          input.prompt_tokens = 100;
          input.seed = static_cast<uint64_t>(round) * kRows + i;
          const Result<TokenId> token = sampler.Sample(row, input);
          if (way.params.logprobs >= 0) ComputeLogprobs(row, *token, way.params.logprobs);
        }
        us[shape] =
            std::min(us[shape], static_cast<double>(clock.NowNs() - start_ns) / 1e3 / kRows);
      }
    }
    std::printf("| %s | %.1f | %.1f |\n", way.name.c_str(), us[0], us[1]);
  }
}
