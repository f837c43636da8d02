#ifndef KVEVICT_CORE_EXECUTOR_HPP_
#define KVEVICT_CORE_EXECUTOR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/function_ref.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>

#if defined(__cpp_exceptions)
#include <exception>
#endif

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// The first exception of several threads, to be thrown where they come together.
class FirstFailure {
 public:
  template <class F>
  void guard(F&& f) noexcept {
#if defined(__cpp_exceptions)
    try {
      f();
    } catch (...) {
      if (!taken_.exchange(true))
        failure_ = std::current_exception();
    }
#else
    f();
#endif
  }
  /// Once all threads are done.
  void rethrow() const {
#if defined(__cpp_exceptions)
    if (failure_)
      std::rethrow_exception(failure_);
#endif
  }

 private:
#if defined(__cpp_exceptions)
  std::atomic<bool> taken_{false};
  std::exception_ptr failure_;
#endif
};

}  // namespace detail

/// Where the library's loops run: in order on the calling thread, or on threads that the caller
/// has. What they compute is the same either way, bit for bit, with any number of workers.
class Executor {
 public:
  using Task = FunctionRef<void(std::size_t)>;

  /// On the calling thread.
  Executor() = default;
  /// @param num_workers  tasks that run at a time; each takes scratch memory of its own. 0 counts
  ///                     as 1.
  /// @param run  run(n, task): calls task(i) once for each i in [0, n), n <= num_workers, in any
  ///             order, on any threads, and returns when all of them returned and what they wrote
  ///             can be read. Tasks do not throw and do not wait for each other. Copies of this
  ///             object copy it: let it hold a pointer to a pool, which lives as long.
  Executor(std::size_t num_workers, std::function<void(std::size_t, Task)> run)
      : num_workers_(std::max<std::size_t>(num_workers, 1)), run_(std::move(run)) {}

  [[nodiscard]] std::size_t num_workers() const noexcept { return num_workers_; }

  /// Calls f(worker) once for each worker in [0, n), n <= num_workers(). What one of them throws is
  /// thrown here once all have ended; of several, one. Throws InvalidArgument where `run` made
  /// more calls or fewer.
  void for_each_worker(std::size_t n, Task f) const {
    if (n < 2) {
      if (n == 1)
        f(std::size_t{0});
      return;
    }
    std::atomic<std::size_t> num_calls{0};
    detail::FirstFailure failure;
    const auto task = [&](std::size_t worker) noexcept {
      failure.guard([&] { f(worker); });
      num_calls.fetch_add(1, std::memory_order_relaxed);
    };
    run_(n, Task(task));
    failure.rethrow();
    detail::require(num_calls == n, "Executor", "tasks that were run", num_calls.load(),
                    "must be all, once");
  }

  /// Calls f(worker, i) once for each i in [0, n). One worker's calls come one after another and
  /// ascend, the first with its own number; who takes the rest depends on who is free.
  void for_each(std::size_t n, FunctionRef<void(std::size_t, std::size_t)> f) const {
    const std::size_t count = std::min(n, num_workers_);
    std::atomic<std::size_t> next{count};
    for_each_worker(count, [&](std::size_t worker) {
      for (std::size_t i = worker; i < n; i = next.fetch_add(1, std::memory_order_relaxed))
        f(worker, i);
    });
  }

 private:
  std::size_t num_workers_ = 1;
  std::function<void(std::size_t, Task)> run_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_EXECUTOR_HPP_
