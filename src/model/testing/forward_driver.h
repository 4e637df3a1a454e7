// For tests: drives a ForwardPass over a PagedCache: feeds tokens of one or several sequences in
// any cut.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/testing/paged_cache.h"

namespace kvasir::testing {

// `count` tokens of a sequence, from the first that was not fed yet.
struct Feed {
  int sequence = 0;
  std::vector<int32_t> tokens;
  bool all_logits = false;  // else those of the last token
};

class ForwardDriver {
 public:
  static constexpr int kMaxRows = 256;

  ForwardDriver(const Model& model, Precision precision, KvType type, int block_tokens,
                int sequences, int max_tokens, Executor& executor)
      : ForwardDriver(model, precision, KvPair{type, type}, block_tokens, sequences, max_tokens,
                      executor) {}
  ForwardDriver(const Model& model, Precision precision, KvPair types, int block_tokens,
                int sequences, int max_tokens, Executor& executor)
      : vocab_(static_cast<size_t>(model.config().vocab)),
        cache_(model.config(), types, block_tokens, sequences, max_tokens),
        lengths_(static_cast<size_t>(sequences), 0) {
    auto pass = ForwardPass::Make(model, {precision, kMaxRows, max_tokens, {}, nullptr}, executor);
    KVASIR_CHECK(pass.ok());
    pass_ = std::move(pass).value();
  }

  // One call. Returns the wanted rows of logits in order.
  std::vector<std::vector<float>> Step(const std::vector<Feed>& feeds) {
    std::vector<int32_t> tokens, positions, wanted;
    std::vector<AttentionSpanOfSequence> spans;
    for (const Feed& feed : feeds) {
      int32_t& length = lengths_[static_cast<size_t>(feed.sequence)];
      const auto count = static_cast<int32_t>(feed.tokens.size());
      const auto row = static_cast<int32_t>(tokens.size());
      spans.push_back({cache_.table(feed.sequence), length, count, row});
      for (int32_t i = 0; i < count; ++i) {
        tokens.push_back(feed.tokens[static_cast<size_t>(i)]);
        positions.push_back(length + i);
        if (feed.all_logits || i + 1 == count) wanted.push_back(row + i);
      }
      length += count;
    }
    std::vector<std::vector<float>> out;
    const ForwardInput input{tokens, positions, spans, cache_.layers(), wanted};
    const Status status = pass_->Run(input, [&](int first, int count, float* logits) {
      KVASIR_CHECK(static_cast<size_t>(first) == out.size() && count <= kLogitGroup);
      for (int i = 0; i < count; ++i) {
        float* row = logits + static_cast<size_t>(i) * vocab_;
        out.emplace_back(row, row + vocab_);
      }
      std::fill_n(logits, static_cast<size_t>(count) * vocab_,
                  -1e30F);  // the sink may write into it
    });
    KVASIR_CHECK(status.ok() && out.size() == wanted.size());
    return out;
  }

  // Feeds a prompt in chunks and returns the logits of its last token.
  std::vector<float> Prefill(int sequence, const std::vector<int32_t>& prompt,
                             size_t chunk = kMaxRows) {
    std::vector<float> last;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(at);
      const auto n = static_cast<std::ptrdiff_t>(std::min(chunk, prompt.size() - at));
      last = Step({{sequence, {begin, begin + n}}}).front();
    }
    return last;
  }

  // Greedy continuation of `count` tokens after a prompt.
  std::vector<int32_t> Greedy(int sequence, const std::vector<int32_t>& prompt, int count,
                              size_t chunk = kMaxRows) {
    std::vector<int32_t> out;
    std::vector<float> logits = Prefill(sequence, prompt, chunk);
    while (true) {
      out.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (static_cast<int>(out.size()) == count) return out;
      logits = Step({{sequence, {out.back()}}}).front();
    }
  }

  ForwardPass& pass() { return *pass_; }
  const PagedCache& cache() const { return cache_; }

 private:
  size_t vocab_;
  PagedCache cache_;
  std::vector<int32_t> lengths_;
  std::unique_ptr<ForwardPass> pass_;
};

}  // namespace kvasir::testing
