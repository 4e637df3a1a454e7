// For tests: a Worker that copies (test_fake_choice.h) and remembers what it was told.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/worker.h"
#include "server/test_fake_choice.h"

namespace kvasir {

class FakeWorker : public Worker {
 public:
  explicit FakeWorker(FakeWorkerOptions options = {});
  ~FakeWorker() override;

  Status Submit(Request request, std::shared_ptr<EventSink> sink) override;
  void Cancel(RequestId id) override;
  void FinishChoice(RequestId id, int32_t choice) override;
  void Cache(CacheRequest request, std::function<void(CacheReply)> done) override;
  std::mutex cache_mutex;
  std::vector<CacheRequest> cache_requests;
  CacheReply cache_reply;  // what the next ones are answered
  const WorkerInfo& info() const override { return info_; }
  WorkerStats stats() const override;
  void Drain(int64_t /*timeout_ns*/) override {}

  void Hold(bool held);

  // All that were submitted, in order.
  std::vector<Request> requests() const;
  std::vector<CacheRequest> commands();

  std::atomic<uint64_t> submitted{0}, cancelled{0}, finished_choices{0};

 private:
  struct Live {
    Request request;
    std::shared_ptr<EventSink> sink;
    std::vector<FakeChoice> choices;
  };
  using Map = std::map<uint64_t, Live>;

  void EraseIfDone(Map::iterator it);

  void Loop();

  FakeWorkerOptions options_;
  WorkerInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Map live_;
  std::vector<Request> requests_;
  bool held_ = false;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace kvasir
