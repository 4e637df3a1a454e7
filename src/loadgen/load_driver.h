// Drives a LoadClient through one stretch of load, closed or open, on the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "loadgen/load_client.h"
#include "loadgen/traffic.h"

namespace kvasir {

// Arrival times of a Poisson process from a seed, one at a time: memory does not grow with the
// rate.
class PoissonProcess {
 public:
  PoissonProcess(double rate, uint64_t seed);
  double Next();  // seconds from the start, ascending

 private:
  double rate_;
  double at_ = 0;
  Rng rng_;
};

struct DriveOptions {
  // Open loop: arrivals a second. With sessions of several turns, requests a second: sessions
  // arrive at rate / turns, and their later turns follow the answers.
  double rate = 0;
  int32_t users = 0;        // closed loop, if rate is 0: requests open at once
  double duration_s = 0;    // of sending
  double drain_s = 0;       // then what is open gets this long, and is cut
  uint64_t seed = 1;        // of the arrivals
  int64_t first_index = 0;  // number of the first session
};

struct DriveResult {
  int64_t start_ns = 0;     // steady clock; the first arrival comes after it
  int64_t end_ns = 0;       // of sending
  double client_cpu_s = 0;  // CPU time of this thread from start_ns to end_ns
  int64_t open_max = 0;     // sockets
};

class LoadDriver {
 public:
  // Called once for each request that was due: sent, or "not sent" because connections_max were
  // open.
  using OnOutcome = std::function<void(const Outcome&)>;
  using OnTick = std::function<void()>;  // about ten times a second

  LoadDriver(LoadClient* client, const Traffic* traffic, OnOutcome on_outcome, OnTick on_tick = {});
  // Leaves nothing open.
  DriveResult Run(const DriveOptions& options);

 private:
  // A request that is due at a time, built before.
  struct Due {
    int64_t at_ns = 0;
    uint64_t tag = 0;
    bool operator>(const Due& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : tag > other.tag;
    }
  };
  struct Session {
    int64_t index = 0;
    int32_t turn = 0;
    bool arrived = false;  // came by itself; otherwise its user waits for the answer
    CompletionJob job;
    std::string bytes;
  };

  void Plan(int64_t at_ns, Session session);
  void PlanFirst(int64_t at_ns, bool arrived);
  void PlanArrival();
  void SendDue(int64_t now_ns);
  void OnFinished(const LoadClient::Finished& finished, int64_t now_ns);
  void Tick(int64_t now_ns);

  LoadClient* client_;
  const Traffic* traffic_;
  OnOutcome on_outcome_;
  OnTick on_tick_;
  DriveOptions options_;
  int64_t start_ns_ = 0, end_ns_ = 0, next_tick_ns_ = 0;
  int64_t next_index_ = 0;
  uint64_t next_tag_ = 0;
  PoissonProcess arrivals_{1, 0};
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::unordered_map<uint64_t, Session> sessions_;  // due or open
};

}  // namespace kvasir
