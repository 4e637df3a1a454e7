#include "server/server.h"

#include <malloc.h>

#include <spdlog/spdlog.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/access_log.h"
#include "server/api.h"
#include "server/http_connection.h"

namespace kvasir {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr size_t kLargeBodyBytes = 128u << 10;

struct Server::Rep {
  Rep(const ServerOptions& o, const ServedModel& model, ServerMetrics* metrics)
      : options(o),
        context(o.io_threads),
        acceptor(asio::make_strand(context)),
        retry(acceptor.get_executor()),
        prepare_pool(static_cast<size_t>(o.prepare_threads)),
        api(o, model, metrics,
            [this](size_t body_bytes, std::function<void()> work) {
              return Prepare(body_bytes, std::move(work));
            }),
        log(o.access_log, o.access_log_json) {
    host.options = &options;
    host.api = &api;
    host.metrics = metrics;
    host.log = &log;
    host.on_closed = [this](HttpConnection* connection) { Forget(connection); };
  }

  Status Listen();
  void Accept();
  void OnAccept(boost::system::error_code error, tcp::socket socket);
  bool Prepare(size_t body_bytes, std::function<void()> work);
  void Forget(HttpConnection* connection);
  std::vector<std::shared_ptr<HttpConnection>> Connections();
  std::vector<std::shared_ptr<HttpConnection>> Leaving();
  bool CloseOneIdle();
  void Stop(double flush_timeout_s);

  ServerOptions options;
  asio::io_context context;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::thread_pool prepare_pool;
  asio::thread_pool large_pool{1};     // bodies over kLargeBodyBytes: they never delay small ones
  std::atomic<bool> stopping = false;  // what is queued in the pools is let go
  std::atomic<int32_t> preparing{0};
  Api api;
  AccessLog log;
  ConnectionHost host;
  int32_t port = 0;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable closed;
  // Open connections, and closed ones that something still holds.
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections;
  std::vector<std::weak_ptr<HttpConnection>> leaving;
  bool stopped = false;
};

Status Server::Rep::Listen() {
  boost::system::error_code error;
  const std::string host_text = options.host == "localhost" ? "127.0.0.1" : options.host;
  const asio::ip::address address = asio::ip::make_address(host_text, error);
  if (error)
    return InvalidArgument("host: " + options.host + " is neither an address nor localhost",
                           "host");
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  const auto failed = [&](const char* what) {
    return Unavailable(std::string("cannot ") + what + " " + options.host + ":" +
                       std::to_string(options.port) + ": " + error.message());
  };
  acceptor.open(endpoint.protocol(), error);
  if (error) return failed("open a socket for");
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (error) return failed("bind");
  acceptor.listen(1024, error);
  if (error) return failed("listen on");
  port = acceptor.local_endpoint(error).port();
  return error ? failed("ask about") : Status::Ok();
}

void Server::Rep::Accept() {
  acceptor.async_accept(asio::make_strand(context),
                        [this](boost::system::error_code error, tcp::socket socket) {
                          OnAccept(error, std::move(socket));
                        });
}

void Server::Rep::OnAccept(boost::system::error_code error, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (error) {
    // Out of file descriptors or the like: not a reason to spin.
    retry.expires_after(std::chrono::milliseconds(50));
    retry.async_wait([this](boost::system::error_code stop) {
      if (!stop && acceptor.is_open()) Accept();
    });
    return;
  }
  auto connection = std::make_shared<HttpConnection>(std::move(socket), &host);
  size_t open = 0;
  {
    const std::lock_guard lock(mutex);
    open = connections.size();
  }
  const bool room = open < static_cast<size_t>(options.connections_max) || CloseOneIdle();
  {
    const std::lock_guard lock(mutex);
    connections.emplace(connection.get(), connection);
  }
  // Saying no takes a moment too: far above the limit there is only the door.
  if (room)
    connection->Start();
  else if (open < 2 * static_cast<size_t>(options.connections_max))
    connection->Refuse(ErrorResponse(503, "too many connections", "", "overloaded"));
  else
    connection->Abort();
  Accept();
}

// Makes room: the connection that has waited longest for its next request goes. False: all are
// busy.
bool Server::Rep::CloseOneIdle() {
  std::shared_ptr<HttpConnection> longest;
  int64_t since = 0;
  for (const auto& connection : Connections()) {
    const int64_t idle_since = connection->idle_since_ns();
    if (idle_since == 0 || (longest && idle_since >= since)) continue;
    longest = connection;
    since = idle_since;
  }
  if (!longest) return false;
  Forget(longest.get());
  longest->Shutdown();
  return true;
}

bool Server::Rep::Prepare(size_t body_bytes, std::function<void()> work) {
  if (preparing.fetch_add(1) >= options.prepare_queue_max) {
    preparing.fetch_sub(1);
    return false;
  }
  const bool large = body_bytes > kLargeBodyBytes;
  asio::post(large ? large_pool : prepare_pool, [this, large, work = std::move(work)]() mutable {
    if (!stopping) work();
    work = nullptr;
    if (large) malloc_trim(0);  // what a large body took goes back to the system
    preparing.fetch_sub(1);
  });
  return true;
}

void Server::Rep::Forget(HttpConnection* connection) {
  const std::lock_guard lock(mutex);
  const auto found = connections.find(connection);
  if (found == connections.end()) return;
  std::erase_if(leaving, [](const auto& weak) { return weak.expired(); });
  leaving.push_back(found->second);
  connections.erase(found);
  closed.notify_all();
}

std::vector<std::shared_ptr<HttpConnection>> Server::Rep::Leaving() {
  std::vector<std::shared_ptr<HttpConnection>> out;
  const std::lock_guard lock(mutex);
  for (const auto& weak : leaving)
    if (auto connection = weak.lock()) out.push_back(std::move(connection));
  return out;
}

std::vector<std::shared_ptr<HttpConnection>> Server::Rep::Connections() {
  std::vector<std::shared_ptr<HttpConnection>> out;
  const std::lock_guard lock(mutex);
  for (const auto& [pointer, weak] : connections)
    if (auto connection = weak.lock()) out.push_back(std::move(connection));
  return out;
}

void Server::Rep::Stop(double flush_timeout_s) {
  if (std::exchange(stopped, true)) return;
  api.BeginDrain();
  asio::post(acceptor.get_executor(), [this] {
    boost::system::error_code error;
    acceptor.close(error);
    retry.cancel();
  });
  for (const auto& connection : Connections()) connection->Shutdown();
  {
    std::unique_lock lock(mutex);
    closed.wait_for(lock, std::chrono::duration<double>(flush_timeout_s),
                    [this] { return connections.empty(); });
  }
  stopping = true;
  prepare_pool.join();
  large_pool.join();
  for (const auto& connection : Connections()) connection->Abort();
  for (const auto& connection : Leaving()) connection->Abort();
  // Without listener and sockets the context runs out of work.
  for (std::thread& thread : threads) thread.join();
  // An engine thread may just be posting to a connection that is closed: let go of the last ones
  // before the context goes.
  const auto all_gone = [this] {
    const std::lock_guard lock(mutex);
    std::erase_if(leaving, [](const auto& weak) { return weak.expired(); });
    std::erase_if(connections, [](const auto& entry) { return entry.second.expired(); });
    return leaving.empty() && connections.empty();
  };
  while (!all_gone()) {
    for (const auto& connection : Connections()) connection->Abort();
    context.restart();
    context.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Server::Server(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Server::~Server() {
  Stop(0);
}

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                              const ServedModel& model, ServerMetrics* metrics) {
  KVASIR_RETURN_IF_ERROR(options.Validate());
  KVASIR_CHECK(model.worker != nullptr && model.tokenizer != nullptr && metrics != nullptr);
  auto rep = std::make_unique<Rep>(options, model, metrics);
  KVASIR_RETURN_IF_ERROR(rep->Listen());
  rep->Accept();
  for (int32_t i = 0; i < options.io_threads; ++i)
    rep->threads.emplace_back([context = &rep->context] { context->run(); });
  return std::unique_ptr<Server>(new Server(std::move(rep)));
}

int32_t Server::port() const {
  return rep_->port;
}

std::string Server::url() const {
  const bool v6 = rep_->options.host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + rep_->options.host + "]" : rep_->options.host) + ":" +
         std::to_string(rep_->port);
}

int32_t Server::connections() const {
  const std::lock_guard lock(rep_->mutex);
  return static_cast<int32_t>(rep_->connections.size());
}

void Server::BeginDrain() {
  rep_->api.BeginDrain();
}
void Server::Stop(double flush_timeout_s) {
  rep_->Stop(flush_timeout_s);
}

}  // namespace kvasir
