#include "loadgen/sweep.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "loadgen/load_driver.h"

namespace kvasir {
namespace {

// Sessions of different levels have numbers of their own, so that no level finds its prompts cached
// by another; the same level of another run has the same ones.
constexpr int64_t kSessionsPerLevel = 100'000'000;
constexpr double kIdleWaitMaxS = 90;

// What is worth seeing beside the client's own times, with short names.
constexpr std::pair<const char*, const char*> kServerCounters[] = {
    {"vllm:num_preemptions_total", "preemptions"},
    {"vllm:prefix_cache_queries_total", "prefix_queries"},
    {"vllm:prefix_cache_hits_total", "prefix_hits"},
    {"vllm:generation_tokens_total", "generated"},
    {"kvasir_prefill_rows_total", "prefill_rows"},
    {"kvasir_steps_total", "steps"}};

Status CheckRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return Status::Ok();
  char text[160];
  std::snprintf(text, sizeof(text), "--%s %g: must be %g to %g", flag, value, low, high);
  return InvalidArgument(text, flag);
}

int64_t Nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

std::string Words(const LengthRange& range) {
  if (range.low == range.high) return std::to_string(range.low);
  return std::to_string(range.low) + " to " + std::to_string(range.high);
}

std::string DescribeTraffic(const TrafficOptions& traffic) {
  std::string text;
  if (traffic.prefix_tokens > 0) {
    char share[48];
    std::snprintf(share, sizeof(share), " (common to %g %%) + ", traffic.hot_share * 100);
    text = std::to_string(traffic.prefix_tokens) + share;
  }
  if (!traffic.trace.empty()) {
    text += "lengths of a trace, " + std::to_string(traffic.trace.size()) + " rows";
  } else {
    text += Words(traffic.input) + " prompt tokens, " + Words(traffic.output) + " output";
  }
  if (traffic.shared_tokens > 0) text += ", " + std::to_string(traffic.shared_tokens) + " shared";
  if (traffic.turns > 1) text += ", " + std::to_string(traffic.turns) + " turns";
  return text;
}

class Sweeper {
 public:
  Sweeper(const SweepOptions& options, const Target& target, const LoadShape& shape,
          LoadClient* client, std::ostream* log, bool terminal)
      : options_(options),
        target_(target),
        shape_(shape),
        traffic_(options.traffic, target, shape),
        client_(client),
        log_(log),
        terminal_(terminal) {}

  Result<double> MeasureCapacity();
  SweepLevel RunLevel(size_t number, double load, double rate);
  void Settle();

 private:
  std::map<std::string, double> Scrape() const;
  void ShowLine(const std::string& line) const;

  const SweepOptions& options_;
  const Target& target_;
  LoadShape shape_;
  Traffic traffic_;
  LoadClient* client_;
  std::ostream* log_;
  bool terminal_;
};

// Empty where the server has no metrics.
std::map<std::string, double> Sweeper::Scrape() const {
  HttpRequest request;
  request.path = "/metrics";
  request.api_key = target_.api_key;
  request.timeout_s = 10;
  const Result<HttpReply> reply = HttpExchange(target_.url, request);
  if (!reply.ok() || reply->status != 200) return {};
  return PrometheusSums(reply->body);
}

void Sweeper::ShowLine(const std::string& line) const {
  if (terminal_) *log_ << "\r\x1b[K" << line << std::flush;
}

void Sweeper::Settle() {
  const int64_t give_up_ns = SteadyNowNs() + Nanoseconds(kIdleWaitMaxS);
  std::this_thread::sleep_for(std::chrono::duration<double>(options_.settle_s));
  while (SteadyNowNs() < give_up_ns) {
    const std::map<std::string, double> now = Scrape();
    const auto value = [&now](const char* name) {
      const auto it = now.find(name);
      return it == now.end() ? 0.0 : it->second;
    };
    if (value("vllm:num_requests_running") + value("vllm:num_requests_waiting") == 0) return;
    ShowLine("waiting until the server is idle");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Result<double> Sweeper::MeasureCapacity() {
  std::vector<Outcome> outcomes;
  int64_t done = 0;
  LoadDriver driver(
      client_, &traffic_,
      [&](const Outcome& outcome) {
        outcomes.push_back(outcome);
        if (outcome.ok()) ++done;
      },
      [&] { ShowLine("measuring the capacity: " + std::to_string(done) + " answered"); });
  DriveOptions drive;
  drive.users = std::min(options_.capacity_users, client_->connections_max());
  drive.duration_s = options_.capacity_s;
  drive.first_index = kSessionsPerLevel / 2;
  const DriveResult ran = driver.Run(drive);
  const int64_t ramp_ns = (ran.end_ns - ran.start_ns) / 3;
  const double capacity = CapacityOf(outcomes, ran.start_ns + ramp_ns, ran.end_ns);
  if (capacity > 0) return capacity;
  std::string why = "no request was completed in " + std::to_string(options_.capacity_s) +
                    " s; give --capacity or a longer --capacity-time";
  for (const Outcome& outcome : outcomes) {
    if (outcome.ok() || outcome.error == "cut") continue;
    why = outcome.error + ": " + outcome.detail;
    break;
  }
  return Unavailable("measuring the capacity: " + why);
}

SweepLevel Sweeper::RunLevel(size_t number, double load, double rate) {
  SweepLevel level;
  level.load = load;
  level.rate = rate;
  const double duration_s = options_.level_requests > 0
                                ? static_cast<double>(options_.level_requests) / rate
                                : options_.level_s;
  const std::map<std::string, double> before = Scrape();
  std::unique_ptr<LevelTally> tally;
  int64_t total = 0, answered = 0;
  const int64_t begin_ns = SteadyNowNs();
  const int64_t window_start_ns = begin_ns + Nanoseconds(duration_s * options_.ramp);
  const int64_t window_end_ns = begin_ns + Nanoseconds(duration_s);
  tally = std::make_unique<LevelTally>(options_.slo_ttft_s, options_.slo_itl_s, window_start_ns,
                                       window_end_ns);
  LoadDriver driver(
      client_, &traffic_,
      [&](const Outcome& outcome) {
        tally->Add(outcome);
        ++total;
        if (outcome.ok()) ++answered;
      },
      [&] {
        char line[160];
        std::snprintf(line, sizeof(line), "load %g: %.0f of %.0f s, %lld answered, %d open", load,
                      static_cast<double>(SteadyNowNs() - begin_ns) * 1e-9, duration_s,
                      static_cast<long long>(answered), client_->open());
        ShowLine(line);
      });
  DriveOptions drive;
  drive.rate = rate;
  drive.duration_s = duration_s;
  drive.drain_s = options_.drain_s;
  drive.seed = shape_.seed + number;
  drive.first_index = kSessionsPerLevel * static_cast<int64_t>(number + 1);
  const DriveResult ran = driver.Run(drive);
  level.client_cpu = ran.client_cpu_s / duration_s;
  level.open_max = ran.open_max;
  const std::map<std::string, double> after = Scrape();
  for (const auto& [name, short_name] : kServerCounters) {
    const auto was = before.find(name), is = after.find(name);
    if (was != before.end() && is != after.end()) {
      level.server[short_name] = is->second - was->second;
    }
  }
  tally->Fill(&level);
  return level;
}

}  // namespace

Status SweepOptions::Validate() const {
  if (loads.empty() || loads.size() > 100) {
    return InvalidArgument("--loads: must be 1 to 100 multiples of the capacity", "loads");
  }
  for (const double load : loads) KVASIR_RETURN_IF_ERROR(CheckRange("loads", load, 0.001, 1000));
  if (capacity != 0) KVASIR_RETURN_IF_ERROR(CheckRange("capacity", capacity, 0.001, 100'000));
  KVASIR_RETURN_IF_ERROR(CheckRange("capacity-users", capacity_users, 1, 4096));
  KVASIR_RETURN_IF_ERROR(CheckRange("capacity-time", capacity_s, 0.1, 3600));
  KVASIR_RETURN_IF_ERROR(CheckRange("duration", level_s, 0.1, 3600));
  KVASIR_RETURN_IF_ERROR(CheckRange("requests", static_cast<double>(level_requests), 0, 1e6));
  KVASIR_RETURN_IF_ERROR(CheckRange("ramp", ramp, 0, 0.9));
  KVASIR_RETURN_IF_ERROR(CheckRange("drain", drain_s, 0, 3600));
  KVASIR_RETURN_IF_ERROR(CheckRange("settle", settle_s, 0, 3600));
  KVASIR_RETURN_IF_ERROR(CheckRange("slo-ttft", slo_ttft_s * 1e3, 0.001, 1e9));
  KVASIR_RETURN_IF_ERROR(CheckRange("slo-itl", slo_itl_s * 1e3, 0.001, 1e9));
  KVASIR_RETURN_IF_ERROR(CheckRange("in-flight", connections_max, 1, 20'000));
  return traffic.Validate();
}

double CapacityOf(const std::vector<Outcome>& outcomes, int64_t window_start_ns,
                  int64_t window_end_ns) {
  int64_t in_window = 0, chunks = 0, completed = 0;
  for (const Outcome& outcome : outcomes) {
    for (const int64_t at_ns : outcome.token_ns) {
      if (at_ns >= window_start_ns && at_ns < window_end_ns) ++in_window;
    }
    if (!outcome.ok()) continue;
    ++completed;
    chunks += static_cast<int64_t>(outcome.token_ns.size());
  }
  if (chunks == 0 || window_end_ns <= window_start_ns) return 0;
  const double per_request = static_cast<double>(chunks) / static_cast<double>(completed);
  const double window_s = static_cast<double>(window_end_ns - window_start_ns) * 1e-9;
  return static_cast<double>(in_window) / window_s / per_request;
}

std::map<std::string, double> PrometheusSums(std::string_view text) {
  std::map<std::string, double> sums;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line[0] == '#') continue;
    const size_t name_end = line.find_first_of("{ ");
    // A label's value may hold blanks and braces; the sample's value follows the last brace.
    const size_t labels_end = line.rfind('}');
    const size_t value_at = labels_end == std::string::npos ? name_end : labels_end + 1;
    if (name_end == 0 || name_end == std::string::npos || value_at >= line.size()) continue;
    const char* value_text = line.c_str() + value_at;
    char* value_end = nullptr;
    const double value = std::strtod(value_text, &value_end);
    if (value_end != value_text) sums[line.substr(0, name_end)] += value;
  }
  return sums;
}

Result<SweepReport> RunSweep(const SweepOptions& options, const Target& target,
                             const LoadShape& shape, std::ostream& log, bool log_is_terminal) {
  KVASIR_RETURN_IF_ERROR(options.Validate());
  Result<std::unique_ptr<LoadClient>> client = LoadClient::Create(target, options.connections_max);
  if (!client.ok()) {
    return Status(client.status().code(), target.url.ToString() + ": " + client.status().message());
  }
  if ((*client)->connections_max() < options.connections_max) {
    log << "open files are limited: at most " << (*client)->connections_max()
        << " connections at once\n";
  }
  SweepReport report;
  report.label = options.label;
  report.url = target.url.ToString();
  report.model = target.model;
  report.seed = shape.seed;
  report.slo_ttft_s = options.slo_ttft_s;
  report.slo_itl_s = options.slo_itl_s;
  report.workload = DescribeTraffic(options.traffic);
  Sweeper sweeper(options, target, shape, client->get(), &log, log_is_terminal);
  report.capacity = options.capacity;
  report.capacity_measured = options.capacity == 0;
  if (report.capacity_measured) {
    KVASIR_ASSIGN_OR_RETURN(report.capacity, sweeper.MeasureCapacity());
    sweeper.Settle();
  }
  char line[240];
  std::snprintf(
      line, sizeof(line),
      "%scapacity %.3g requests/s (%s); good: first token within %g ms, then %g ms a token",
      log_is_terminal ? "\r\x1b[K" : "", report.capacity,
      report.capacity_measured ? "measured" : "given", options.slo_ttft_s * 1e3,
      options.slo_itl_s * 1e3);
  log << report.workload << "\n" << line << "\n" << SweepTableHeader() << std::endl;
  for (size_t i = 0; i < options.loads.size(); ++i) {
    report.levels.push_back(
        sweeper.RunLevel(i, options.loads[i], options.loads[i] * report.capacity));
    log << (log_is_terminal ? "\r\x1b[K" : "") << SweepTableRow(report.levels.back()) << std::endl;
    if (i + 1 < options.loads.size()) sweeper.Settle();
  }
  return report;
}

}  // namespace kvasir
