// The parallel-for that kernels are given. They never see threads.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace kvasir {

// A non-owning reference to a callable; lives no longer than the call it is passed to. No
// allocation.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
      FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Runs `parts` independent pieces of work and returns when all are done.
// `body(part, worker)`: part in [0, parts), worker in [0, workers()): two pieces with the same
// worker never run at once, so worker indexes scratch memory. Which worker runs a part is NOT
// fixed: a result must not depend on it (promise 3). One caller at a time; not re-entrant. Body
// must not throw.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int workers() const = 0;
  virtual void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) = 0;
  // Said once by a thread that will be the caller from now on: threads bound to CPUs bind it too.
  virtual void BindCaller() {}
};

// Runs everything in the calling thread.
class SerialExecutor final : public Executor {
 public:
  int workers() const override { return 1; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    for (size_t part = 0; part < parts; ++part) body(part, 0);
  }
};

}  // namespace kvasir
