// Api: which path and method does what. No sockets: requests come in as HttpRequest, answers leave
// through a ResponseWriter. Any thread (each call on its connection's strand). JSON, templates and
// tokenising run in the prepare function given.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/cache_runner.h"
#include "server/call_runner.h"
#include "server/http_message.h"
#include "server/prompt_builder.h"
#include "server/server_options.h"

namespace kvasir {

class Api {
 public:
  // Runs work on another thread, soon; false: too much is waiting already.
  using Prepare = std::function<bool(size_t body_bytes, std::function<void()> work)>;

  // metrics and what model points to outlive the Api.
  Api(const ServerOptions& options, const ServedModel& model, ServerMetrics* metrics,
      Prepare prepare);

  // Whole seconds for Retry-After: when the engine expects a place in its queue, at least 1.
  int64_t RetryAfterSeconds() const;

  // What can be said before the body is read (404, 405, 401, 415, 503): then the body is not read
  // at all.
  std::optional<HttpResponse> Early(const HttpRequest& head) const;
  // Answers, now or later.
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer);

  void BeginDrain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }

 private:
  enum class Route : uint8_t;
  // Who asks. With one namespace for all, everybody is the operator.
  struct Caller {
    std::string tenant;
    bool is_operator = true;  // may see and reset what is all tenants'
  };
  std::optional<Route> Find(const std::string& path) const;
  HttpResponse Health() const;
  HttpResponse Metrics() const;
  HttpResponse Models(const std::string& path) const;
  HttpResponse Tokenize(const std::string& body) const;
  HttpResponse Detokenize(const std::string& body) const;
  CallLimits Limits() const;
  double QueueTimeout(const ApiCall& call) const;
  Result<PreparedCall> PrepareCall(const HttpRequest& request, bool chat) const;
  Result<PreparedCacheCall> PrepareCacheCall(const HttpRequest& request, Route route) const;
  PreparedCacheCall PrepareCacheState(const HttpRequest& request) const;
  Status CheckModel(const std::string& name) const;
  Result<Json> ParseBody(const std::string& body) const;
  void HandlePost(Route route, HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  void Run(Route route, const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer);
  void RunCache(PreparedCacheCall prepared, std::shared_ptr<ResponseWriter> writer);
  // Which key it is; 0 if none is needed; nullopt: none of ours.
  std::optional<size_t> KeyOf(const std::string& authorization) const;
  Caller CallerOf(const HttpRequest& request) const;

  ServerOptions options_;
  ServedModel model_;
  ServerMetrics* metrics_;
  Prepare prepare_;
  PromptBuilder prompts_;
  std::atomic<bool> draining_{false};
};

}  // namespace kvasir
