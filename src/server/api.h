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

  // What can be said before the body is read (404, 405, 401, 415, 503): then the body is not read
  // at all.
  std::optional<HttpResponse> Early(const HttpRequest& head) const;
  // Answers, now or later.
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer);

  void BeginDrain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }

 private:
  enum class Route : uint8_t;
  std::optional<Route> Find(const std::string& path) const;
  HttpResponse Health() const;
  HttpResponse Metrics() const;
  HttpResponse Models(const std::string& path) const;
  HttpResponse Tokenize(const std::string& body) const;
  HttpResponse Detokenize(const std::string& body) const;
  Result<PreparedCall> PrepareCall(const HttpRequest& request, bool chat) const;
  HttpResponse Failure(const Status& status) const;
  Status CheckModel(const std::string& name) const;
  Result<Json> ParseBody(const std::string& body) const;
  void HandlePost(Route route, HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  bool Authorized(const std::string& authorization) const;

  ServerOptions options_;
  ServedModel model_;
  ServerMetrics* metrics_;
  Prepare prepare_;
  PromptBuilder prompts_;
  std::atomic<bool> draining_{false};
};

}  // namespace kvasir
