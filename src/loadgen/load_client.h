// Many streamed completions at once on one thread: non-blocking sockets and epoll, one connection a
// request. The generator shares its cores with the server it measures, so a waiting request costs a
// socket and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "loadgen/completion.h"

namespace kvasir {

// Not thread-safe; one thread calls everything.
class LoadClient {
 public:
  struct Finished {
    uint64_t tag = 0;
    Outcome outcome;
  };

  // Resolves the target's name; of several addresses, keeps the first one that takes a connection.
  // At most `connections_max` sockets are open at once; the limit of open files is raised for them
  // where that is allowed, and connections_max() is what came of it. kUnavailable: no address.
  static Result<std::unique_ptr<LoadClient>> Create(const Target& target, int connections_max);
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // Starts an exchange: `bytes` are the whole request (Bytes(job), made before it is due). Never
  // waits. False, and nothing is done, if connections_max are open. A connection that cannot be
  // made comes out of Poll as an outcome with an error.
  bool Send(std::string bytes, const CompletionJob& job, uint64_t tag, int64_t due_ns);
  std::string Bytes(const CompletionJob& job) const;

  // Moves on what is ready and appends what finished; waits until wake_ns (steady clock) at most,
  // returns earlier whenever something happened.
  void Poll(int64_t wake_ns, std::vector<Finished>* finished);

  // Closes everything that is open; each comes out with the error "cut" and what it had got so far.
  void CutAll(std::vector<Finished>* finished);

  int open() const { return open_; }
  int open_max() const { return open_max_; }  // most at once since ResetOpenMax
  void ResetOpenMax() { open_max_ = open_; }
  int connections_max() const { return connections_max_; }

 private:
  struct Connection;
  struct Address;

  LoadClient(const Target& target, int connections_max);
  Status Resolve();
  size_t FreeSlot();
  void Start(Connection* connection, size_t slot);
  void OnReady(size_t slot, uint32_t events);
  bool SendMore(Connection* connection, size_t slot);
  void Receive(size_t slot);
  void Watch(const Connection& connection, size_t slot, bool writing);
  void End(size_t slot, const Status& status);
  void EndOverdue(int64_t now_ns);
  void SetTimer(int64_t wake_ns);

  Target target_;
  int connections_max_;
  std::unique_ptr<Address> address_;
  int epoll_ = -1;
  int timer_ = -1;
  int64_t timer_at_ns_ = 0;
  int64_t next_overdue_check_ns_ = 0;
  int open_ = 0, open_max_ = 0;
  std::vector<std::unique_ptr<Connection>> slots_;
  std::vector<size_t> free_slots_;
  std::vector<Finished> finished_;
};

}  // namespace kvasir
