// What paging saves: memory in use without a token, sequences that fit and steps to finish, on the
// lengths of a public trace of conversations, beside reserving one contiguous range a sequence.
//
//   paging_waste [FILE] [slots]    default
//   ../shared/traces/azure/AzureLLMInferenceTrace_conv.csv.gz
//                                  and memory for 262,144 tokens
//
// All requests wait from the start, in file order. Each step every running sequence gets one token;
// before it as many are admitted as fit. Paged: the real KvCache without prefix caching, admission
// by prompt with 2 % kept free; if a token finds no block, the sequence admitted last is dropped
// and waits again, with what it has as prompt. Contiguous: the whole range is taken at admission,
// the power of two knows the final length, which no engine does. A step counts as one whatever is
// in it, so tokens a step are throughput only as long as a step's time does not depend on its
// sequences.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "base/check.h"
#include "paging_replay.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

// One range of `range` slots a sequence; 0: of its final length rounded up to a power of two.
Sums Contiguous(std::deque<Job> queue, int64_t slots, int32_t range) {
  struct Live {
    Job job;
    int64_t taken;
  };
  std::vector<Live> live;
  Sums sums;
  int64_t taken = 0, used = 0;
  while (!queue.empty() || !live.empty()) {
    while (!queue.empty()) {
      const int64_t need =
          range > 0 ? range
                    : std::bit_ceil(static_cast<uint32_t>(std::max(1, queue.front().total())));
      if (taken + need > slots) break;
      taken += need;
      used += queue.front().prompt;
      live.push_back({queue.front(), need});
      queue.pop_front();
    }
    KVASIR_CHECK(!live.empty());
    used += static_cast<int64_t>(live.size());
    ++sums.steps;
    sums.running += static_cast<int64_t>(live.size());
    sums.tokens += static_cast<int64_t>(live.size());
    sums.waste += 1 - static_cast<double>(used) / static_cast<double>(taken);
    sums.full += static_cast<double>(used) / static_cast<double>(slots);
    std::erase_if(live, [&](Live& at) {
      if (++at.job.have < at.job.output) return false;
      taken -= at.taken;
      used -= at.job.total();
      return true;
    });
  }
  return sums;
}

void Print(const std::string& name, const Sums& sums, double baseline_running) {
  const double steps = static_cast<double>(sums.steps);
  const double running = static_cast<double>(sums.running) / steps;
  std::printf("| %s | %.2f %% | %.1f %% | %.1f | %.2f | %lld | %.1f | %lld |\n", name.c_str(),
              100 * sums.waste / steps, 100 * sums.full / steps, running,
              running / baseline_running, static_cast<long long>(sums.steps),
              static_cast<double>(sums.tokens) / steps, static_cast<long long>(sums.dropped));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path =
      argc > 1 ? argv[1] : "../shared/traces/azure/AzureLLMInferenceTrace_conv.csv.gz";
  const int64_t slots = argc > 2 ? std::atoll(argv[2]) : 262144;
  const std::deque<Job> jobs = LoadLengths(path);
  int32_t longest = 0;
  int64_t tokens = 0;
  for (const Job& job : jobs) {
    longest = std::max(longest, job.total());
    tokens += job.total();
  }
  if (jobs.empty() || slots < longest) {
    std::fprintf(stderr, "%s: not there, not a trace, or a sequence that fits no memory\n",
                 path.c_str());
    return 1;
  }
  std::printf("%zu sequences of %.0f tokens on average, %d at most; memory for %lld tokens\n\n",
              jobs.size(), static_cast<double>(tokens) / static_cast<double>(jobs.size()), longest,
              static_cast<long long>(slots));
  std::printf(
      "| allocation | taken without a token | memory with a token | sequences running | against "
      "longest | steps | tokens a step | dropped |\n|---|---|---|---|---|---|---|---|\n");
  const Sums most = Contiguous(jobs, slots, longest);
  const double baseline = static_cast<double>(most.running) / static_cast<double>(most.steps);
  Print("contiguous, longest of the trace", most, baseline);
  std::deque<Job> shorter;
  for (const Job& job : jobs) {
    if (job.total() <= 8192) shorter.push_back(job);
  }
  Print("contiguous, 8,192 (" + std::to_string(jobs.size() - shorter.size()) + " left out)",
        Contiguous(shorter, slots, 8192), baseline);
  Print("contiguous, final length to a power of two", Contiguous(jobs, slots, 0), baseline);
  for (const int32_t block_tokens : {8, 16, 32, 64, 128, 256}) {
    Print("paged, blocks of " + std::to_string(block_tokens),
          Paged(slots, block_tokens, longest).Run(jobs), baseline);
  }
  return 0;
}
