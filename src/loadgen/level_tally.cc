#include <algorithm>
#include <cmath>

#include "loadgen/report.h"
#include "loadgen/sweep_report.h"

namespace kvasir {
namespace {

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

int64_t SweepLevel::errors_total() const {
  int64_t sum = 0;
  for (const auto& [kind, count] : errors) sum += count;
  return sum;
}

double SweepLevel::refused_share() const {
  return offered == 0 ? 0 : static_cast<double>(refused()) / static_cast<double>(offered);
}

double SweepLevel::PerSecond(int64_t count) const {
  return window_s > 0 ? static_cast<double>(count) / window_s : 0;
}

Quantiles QuantilesOf(const std::vector<double>& values, const std::vector<double>& waiting) {
  std::vector<double> all = values;
  all.insert(all.end(), waiting.begin(), waiting.end());
  Quantiles q;
  q.p50 = Percentile(all, 0.50);
  q.p99 = Percentile(all, 0.99);
  // A wait that ended above the percentile cannot move it, one that was below may.
  for (const double age : waiting) {
    q.p50_at_least |= age <= q.p50;
    q.p99_at_least |= age <= q.p99;
  }
  return q;
}

LevelTally::LevelTally(double slo_ttft_s, double slo_itl_s, int64_t window_start_ns,
                       int64_t window_end_ns)
    : slo_ttft_s_(slo_ttft_s),
      slo_itl_s_(slo_itl_s),
      start_ns_(window_start_ns),
      end_ns_(window_end_ns) {}

// By when they came, whoever's they are: a stream that began in the ramp goes on into the window.
void LevelTally::AddTokens(const Outcome& outcome) {
  for (size_t i = 0; i < outcome.token_ns.size(); ++i) {
    const int64_t at_ns = outcome.token_ns[i];
    if (at_ns < start_ns_ || at_ns >= end_ns_) continue;
    ++window_chunks_;
    if (i > 0) gaps_.push_back(Seconds(at_ns - outcome.token_ns[i - 1]));
  }
  if (outcome.ok()) {
    chunks_ += static_cast<int64_t>(outcome.token_ns.size());
    tokens_ += outcome.output_tokens;
  }
}

bool LevelTally::Good(const Outcome& outcome, double ttft_s) const {
  if (ttft_s > slo_ttft_s_) return false;
  if (outcome.output_tokens < 2) return true;
  const double span_s = Seconds(outcome.token_ns.back() - outcome.token_ns.front());
  return span_s / static_cast<double>(outcome.output_tokens - 1) <= slo_itl_s_;
}

void LevelTally::Add(const Outcome& outcome) {
  AddTokens(outcome);
  if (outcome.due_ns < start_ns_ || outcome.due_ns >= end_ns_) return;
  ++counts_.offered;
  if (outcome.error == "not sent") {
    ++counts_.not_sent;
    return;
  }
  lags_.push_back(Seconds(outcome.start_ns - outcome.due_ns));
  if (outcome.http_status == 429 || outcome.http_status == 503) {
    ++(outcome.http_status == 429 ? counts_.refused_429 : counts_.refused_503);
    if (!outcome.retry_after) ++counts_.refused_no_retry;
    if (counts_.first_refusal.empty()) {
      counts_.first_refusal = outcome.error + ": " + outcome.detail;
    }
    return;
  }
  if (!outcome.ok() && outcome.error != "cut") {
    ++counts_.errors[outcome.error];
    if (counts_.first_error.empty()) counts_.first_error = outcome.error + ": " + outcome.detail;
    return;
  }
  ++(outcome.ok() ? counts_.completed : counts_.unfinished);
  if (outcome.token_ns.empty()) {
    const double age_s = Seconds(outcome.end_ns - outcome.due_ns);
    waiting_.push_back(age_s);
    if (outcome.hot) hot_waiting_.push_back(age_s);
    return;
  }
  const double ttft_s = Seconds(outcome.token_ns.front() - outcome.due_ns);
  ttft_.push_back(ttft_s);
  if (outcome.hot) hot_ttft_.push_back(ttft_s);
  if (!outcome.ok()) return;
  if (outcome.hot) ++counts_.hot_completed;
  if (Good(outcome, ttft_s)) ++counts_.good;
  if (outcome.queue_ms >= 0) queue_.push_back(outcome.queue_ms * 1e-3);
  counts_.prompt_tokens += outcome.prompt_tokens;
  counts_.cached_tokens += outcome.cached_tokens;
}

void LevelTally::Fill(SweepLevel* level) const {
  const SweepLevel given = *level;
  *level = counts_;
  level->load = given.load;
  level->rate = given.rate;
  level->client_cpu = given.client_cpu;
  level->open_max = given.open_max;
  level->server = given.server;
  level->window_s = Seconds(end_ns_ - start_ns_);
  // A server may put several tokens into a chunk; only usage, at the end, tells how many.
  const double per_chunk =
      chunks_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(chunks_) : 1;
  level->out_tps = level->PerSecond(window_chunks_) * per_chunk;
  level->ttft = QuantilesOf(ttft_, waiting_);
  level->hot_ttft = QuantilesOf(hot_ttft_, hot_waiting_);
  level->gap = QuantilesOf(gaps_);
  level->queue = QuantilesOf(queue_);
  level->send_lag_p99 = Percentile(lags_, 0.99);
}

}  // namespace kvasir
