// Server: the OpenAI-shaped HTTP front of one model. docs/api.md describes what it answers.
//
// Life: Start (listening when it returns) ... BeginDrain (health 503, new work refused with 503,
// running answers go on; the app then calls Worker::Drain) ... Stop. Signals are the app's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/metrics.h"
#include "server/served_model.h"
#include "server/server_options.h"

namespace kvasir {

class Server {
 public:
  // metrics outlives the server. Failures: options that do not hold (kInvalidArgument), an address
  // that cannot be bound (kUnavailable).
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                               const ServedModel& model, ServerMetrics* metrics);
  ~Server();  // Stop(0)

  int32_t port() const;         // the real one
  std::string url() const;      // http://host:port
  int32_t connections() const;  // open now

  void BeginDrain();
  // Closes the listener and idle connections, gives running answers flush_timeout_s to be written,
  // cancels the rest and joins the threads. Idempotent.
  void Stop(double flush_timeout_s);

 private:
  struct Rep;
  explicit Server(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvasir
