#include "loadgen/load_driver.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir {
namespace {

constexpr uint64_t kArrivalStream = 8;
constexpr double kNsPerS = 1e9;
// A user of the closed loop that was refused comes back after this.
constexpr int64_t kBackOffNs = 200'000'000;

int64_t Nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * kNsPerS);
}

double ThreadCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

}  // namespace

PoissonProcess::PoissonProcess(double rate, uint64_t seed)
    : rate_(rate), rng_(CounterRandom(seed, kArrivalStream, 0)) {}

double PoissonProcess::Next() {
  at_ += -std::log1p(-rng_.Uniform()) / rate_;
  return at_;
}

LoadDriver::LoadDriver(LoadClient* client, const Traffic* traffic, OnOutcome on_outcome,
                       OnTick on_tick)
    : client_(client),
      traffic_(traffic),
      on_outcome_(std::move(on_outcome)),
      on_tick_(std::move(on_tick)) {}

void LoadDriver::Plan(int64_t at_ns, Session session) {
  if (at_ns >= end_ns_) return;
  session.bytes = client_->Bytes(session.job);
  const uint64_t tag = next_tag_++;
  sessions_.emplace(tag, std::move(session));
  due_.push({at_ns, tag});
}

void LoadDriver::PlanFirst(int64_t at_ns, bool arrived) {
  Session session;
  session.index = next_index_++;
  session.arrived = arrived;
  session.job = traffic_->First(session.index);
  Plan(at_ns, std::move(session));
}

// The next arrival is built while the one before it is on its way.
void LoadDriver::PlanArrival() {
  PlanFirst(start_ns_ + Nanoseconds(arrivals_.Next()), true);
}

void LoadDriver::SendDue(int64_t now_ns) {
  while (!due_.empty() && due_.top().at_ns <= now_ns) {
    const Due due = due_.top();
    due_.pop();
    Session& session = sessions_.at(due.tag);
    const bool arrived = session.arrived && session.turn == 0;
    if (!client_->Send(std::move(session.bytes), session.job, due.tag, due.at_ns)) {
      Outcome outcome;
      outcome.error = "not sent";
      outcome.detail = "too many requests in flight";
      outcome.due_ns = due.at_ns;
      outcome.hot = session.job.hot;
      sessions_.erase(due.tag);
      on_outcome_(outcome);
    }
    if (arrived) PlanArrival();
  }
}

void LoadDriver::OnFinished(const LoadClient::Finished& finished, int64_t now_ns) {
  on_outcome_(finished.outcome);
  const auto node = sessions_.extract(finished.tag);
  Session& session = node.mapped();
  const bool ok = finished.outcome.ok();
  if (ok && session.turn + 1 < traffic_->options().turns) {
    ++session.turn;
    session.job = traffic_->Next(session.index, session.turn, session.job, finished.outcome);
    Plan(now_ns + Nanoseconds(traffic_->options().think_s), std::move(session));
  } else if (!session.arrived) {
    PlanFirst(now_ns + (ok ? 0 : kBackOffNs), false);
  }
}

void LoadDriver::Tick(int64_t now_ns) {
  if (!on_tick_ || now_ns < next_tick_ns_) return;
  next_tick_ns_ = now_ns + Nanoseconds(0.1);
  on_tick_();
}

DriveResult LoadDriver::Run(const DriveOptions& options) {
  options_ = options;
  next_index_ = options.first_index;
  client_->ResetOpenMax();
  start_ns_ = SteadyNowNs();
  end_ns_ = start_ns_ + Nanoseconds(options.duration_s);
  const double cpu_start_s = ThreadCpuSeconds();
  DriveResult result;
  result.start_ns = start_ns_;
  result.end_ns = end_ns_;
  if (options.rate > 0) {
    arrivals_ = PoissonProcess(options.rate / traffic_->options().turns, options.seed);
    PlanArrival();
  } else {
    for (int32_t user = 0; user < options.users; ++user) PlanFirst(start_ns_, false);
  }
  const int64_t cut_ns = end_ns_ + Nanoseconds(options.drain_s);
  std::vector<LoadClient::Finished> finished;
  bool sending = true;
  for (;;) {
    const int64_t now_ns = SteadyNowNs();
    if (sending && now_ns >= end_ns_) {
      SendDue(end_ns_);  // arrivals before the end that this thread has not come to
      result.client_cpu_s = ThreadCpuSeconds() - cpu_start_s;
      sending = false;
    }
    if (!sending && (client_->open() == 0 || now_ns >= cut_ns)) break;
    if (sending) SendDue(now_ns);
    int64_t wake_ns = sending ? end_ns_ : cut_ns;
    if (sending && !due_.empty()) wake_ns = std::min(wake_ns, due_.top().at_ns);
    if (on_tick_) wake_ns = std::min(wake_ns, std::max(next_tick_ns_, now_ns + 1'000'000));
    client_->Poll(wake_ns, &finished);
    for (const LoadClient::Finished& one : finished) OnFinished(one, SteadyNowNs());
    finished.clear();
    Tick(SteadyNowNs());
  }
  client_->CutAll(&finished);
  for (const LoadClient::Finished& one : finished) on_outcome_(one.outcome);
  sessions_.clear();
  due_ = {};
  result.open_max = client_->open_max();
  return result;
}

}  // namespace kvasir
