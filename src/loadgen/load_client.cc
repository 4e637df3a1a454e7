#include "loadgen/load_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "loadgen/http_response.h"

namespace kvasir {
namespace {

constexpr uint64_t kTimerTag = UINT64_MAX;
constexpr int64_t kNsPerS = 1'000'000'000;

// Open files allowed, after raising the soft limit to what `wanted` connections need.
int FilesAllowed(int wanted) {
  constexpr int kOthers = 32;  // what the process has open besides
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto needed = static_cast<rlim_t>(wanted + kOthers);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < needed) {
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? needed : std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) return wanted;
  return std::max(1, static_cast<int>(limit.rlim_cur) - kOthers);
}

bool TakesConnections(const addrinfo& address, Status* failure) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  const bool connected = fd >= 0 && connect(fd, address.ai_addr, address.ai_addrlen) == 0;
  if (!connected) *failure = Unavailable(std::string("connect: ") + strerror(errno));
  if (fd >= 0) close(fd);
  return connected;
}

}  // namespace

struct LoadClient::Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  int family = 0, type = 0, protocol = 0;
};

struct LoadClient::Connection {
  Connection(uint64_t the_tag, std::string the_bytes, bool keep_answer)
      : tag(the_tag), bytes(std::move(the_bytes)), receiver(&outcome, keep_answer) {}
  ~Connection() {
    if (fd >= 0) close(fd);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd = -1;
  uint64_t tag;
  bool connecting = true;
  std::string bytes;  // of the request
  size_t sent = 0;
  int64_t deadline_ns = 0;
  Outcome outcome;
  HttpResponseParser parser;
  CompletionReceiver receiver;
};

LoadClient::LoadClient(const Target& target, int connections_max)
    : target_(target), connections_max_(connections_max), address_(std::make_unique<Address>()) {}

LoadClient::~LoadClient() {
  slots_.clear();
  if (timer_ >= 0) close(timer_);
  if (epoll_ >= 0) close(epoll_);
}

Result<std::unique_ptr<LoadClient>> LoadClient::Create(const Target& target, int connections_max) {
  KVASIR_CHECK(connections_max >= 1);
  std::unique_ptr<LoadClient> client(new LoadClient(target, FilesAllowed(connections_max)));
  KVASIR_RETURN_IF_ERROR(client->Resolve());
  client->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  client->timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kTimerTag;
  if (client->epoll_ < 0 || client->timer_ < 0 ||
      epoll_ctl(client->epoll_, EPOLL_CTL_ADD, client->timer_, &event) != 0) {
    return Unavailable(std::string("epoll: ") + strerror(errno));
  }
  return client;
}

Status LoadClient::Resolve() {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const HttpUrl& url = target_.url;
  if (const int error = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found);
      error != 0) {
    return Unavailable("cannot resolve " + url.host + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Status last = Unavailable("no address for " + url.host);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(address_->bytes)) continue;
    if (found->ai_next != nullptr && !TakesConnections(*a, &last)) continue;
    std::memcpy(&address_->bytes, a->ai_addr, a->ai_addrlen);
    address_->size = a->ai_addrlen;
    address_->family = a->ai_family;
    address_->type = a->ai_socktype;
    address_->protocol = a->ai_protocol;
    return Status::Ok();
  }
  return last;
}

std::string LoadClient::Bytes(const CompletionJob& job) const {
  return HttpRequestText(target_.url, CompletionRequest(target_, job));
}

size_t LoadClient::FreeSlot() {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    return slots_.size() - 1;
  }
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

bool LoadClient::Send(std::string bytes, const CompletionJob& job, uint64_t tag, int64_t due_ns) {
  if (open_ >= connections_max_) return false;
  auto connection = std::make_unique<Connection>(tag, std::move(bytes), job.keep_answer);
  Outcome* outcome = &connection->outcome;
  outcome->prompt_tokens = static_cast<int64_t>(job.prompt.size());
  outcome->hot = job.hot;
  outcome->due_ns = due_ns;
  outcome->start_ns = SteadyNowNs();
  connection->deadline_ns =
      outcome->start_ns + static_cast<int64_t>(target_.timeout_s * static_cast<double>(kNsPerS));
  const size_t slot = FreeSlot();
  slots_[slot] = std::move(connection);
  open_max_ = std::max(open_max_, ++open_);
  Start(slots_[slot].get(), slot);
  return true;
}

void LoadClient::Start(Connection* connection, size_t slot) {
  const int type = address_->type | SOCK_NONBLOCK | SOCK_CLOEXEC;
  connection->fd = socket(address_->family, type, address_->protocol);
  if (connection->fd < 0) {
    return End(slot, Unavailable(std::string("socket: ") + strerror(errno)));
  }
  const int on = 1;
  setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT;
  event.data.u64 = slot;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, connection->fd, &event) != 0) {
    return End(slot, Unavailable(std::string("epoll: ") + strerror(errno)));
  }
  const auto* address = reinterpret_cast<const sockaddr*>(&address_->bytes);
  if (connect(connection->fd, address, address_->size) == 0) {
    connection->connecting = false;
    SendMore(connection, slot);
  } else if (errno != EINPROGRESS) {
    End(slot, Unavailable(std::string("connect: ") + strerror(errno)));
  }
}

void LoadClient::Watch(const Connection& connection, size_t slot, bool writing) {
  epoll_event event{};
  event.events = writing ? (EPOLLIN | EPOLLOUT) : EPOLLIN;
  event.data.u64 = slot;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
}

// False: the connection has ended.
bool LoadClient::SendMore(Connection* connection, size_t slot) {
  while (connection->sent < connection->bytes.size()) {
    const ssize_t sent = send(connection->fd, connection->bytes.data() + connection->sent,
                              connection->bytes.size() - connection->sent, MSG_NOSIGNAL);
    if (sent > 0) {
      connection->sent += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno == EPIPE || errno == ECONNRESET) {
      break;  // it may have answered (429, 503) before reading everything
    } else if (errno != EINTR) {
      End(slot, DataLoss(std::string("send: ") + strerror(errno)));
      return false;
    }
  }
  std::string().swap(connection->bytes);
  connection->sent = 0;
  Watch(*connection, slot, false);
  return true;
}

void LoadClient::OnReady(size_t slot, uint32_t events) {
  Connection* connection = slots_[slot].get();
  if (connection == nullptr) return;
  if (connection->connecting && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return End(slot, Unavailable(std::string("connect: ") + strerror(error)));
    connection->connecting = false;
  }
  if (!connection->connecting && !connection->bytes.empty() && !SendMore(connection, slot)) return;
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) Receive(slot);
}

void LoadClient::Receive(size_t slot) {
  Connection* connection = slots_[slot].get();
  std::array<char, 16384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const ssize_t got = recv(connection->fd, buffer.data(), buffer.size(), 0);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
    return End(slot, DataLoss(std::string("connection broken: ") + strerror(errno)));
  }
  if (got == 0) return End(slot, connection->parser.Close());
  const int64_t now_ns = SteadyNowNs();
  std::string body;
  HttpResponseParser& parser = connection->parser;
  const Status pushed = parser.Push({buffer.data(), static_cast<size_t>(got)}, &body);
  if (!pushed.ok()) return End(slot, pushed);
  if (parser.head_done()) {
    connection->outcome.retry_after = !parser.header("retry-after").empty();
  }
  const bool more = body.empty() || connection->receiver.OnBody(parser.status(), body, now_ns);
  if (!more || parser.done()) End(slot, Status::Ok());
}

void LoadClient::End(size_t slot, const Status& status) {
  Connection* connection = slots_[slot].get();
  connection->receiver.Finish(connection->parser.status(), status, SteadyNowNs());
  finished_.push_back({connection->tag, std::move(connection->outcome)});
  slots_[slot].reset();  // closes, which also takes it out of epoll
  free_slots_.push_back(slot);
  --open_;
}

void LoadClient::EndOverdue(int64_t now_ns) {
  if (now_ns < next_overdue_check_ns_) return;
  next_overdue_check_ns_ = now_ns + kNsPerS / 4;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] != nullptr && slots_[slot]->deadline_ns <= now_ns) {
      End(slot, DeadlineExceeded("timed out"));
    }
  }
}

void LoadClient::SetTimer(int64_t wake_ns) {
  if (wake_ns == timer_at_ns_) return;
  timer_at_ns_ = wake_ns;
  const int64_t at = std::max<int64_t>(1, wake_ns);
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(at / kNsPerS);
  spec.it_value.tv_nsec = static_cast<decltype(spec.it_value.tv_nsec)>(at % kNsPerS);
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

void LoadClient::Poll(int64_t wake_ns, std::vector<Finished>* finished) {
  const int64_t now_ns = SteadyNowNs();
  EndOverdue(now_ns);
  int wait_ms = 250;  // deadlines are looked at this often
  if (!finished_.empty() || wake_ns <= now_ns) {
    wait_ms = 0;
  } else {
    SetTimer(wake_ns);
  }
  std::array<epoll_event, 128> events;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kTimerTag) {
      uint64_t expirations = 0;
      if (read(timer_, &expirations, sizeof(expirations)) > 0) timer_at_ns_ = 0;
    } else {
      OnReady(static_cast<size_t>(event.data.u64), event.events);
    }
  }
  std::move(finished_.begin(), finished_.end(), std::back_inserter(*finished));
  finished_.clear();
}

void LoadClient::CutAll(std::vector<Finished>* finished) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] != nullptr) End(slot, Status(StatusCode::kCancelled, "cut"));
  }
  std::move(finished_.begin(), finished_.end(), std::back_inserter(*finished));
  finished_.clear();
}

}  // namespace kvasir
