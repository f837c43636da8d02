#ifndef KVEVICT_EXAMPLES_ENGINE_THREAD_POOL_HPP_
#define KVEVICT_EXAMPLES_ENGINE_THREAD_POOL_HPP_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

// Threads that share one loop at a time. The calling thread is worker 0.
namespace engine {

class ThreadPool {
 public:
  /// @param num_threads  with the calling one; 0 counts as 1
  explicit ThreadPool(std::size_t num_threads)
      : num_threads_(std::max<std::size_t>(num_threads, 1)) {
    for (std::size_t worker = 1; worker < num_threads_; ++worker) {
      threads_.emplace_back([this, worker] { serve(worker); });
    }
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    task_ = nullptr;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& thread : threads_)
      thread.join();
  }

  [[nodiscard]] std::size_t num_threads() const noexcept { return num_threads_; }

  /// Calls task(begin, end, worker) on disjoint ranges that cover 0 .. count and returns when all
  /// are done. What is smaller than two `grain`s is not worth waking anybody. A task must not
  /// throw: the others would go on with what it takes with it.
  template <class Task>
  void for_ranges(std::size_t count, std::size_t grain, Task&& task) {
    const std::size_t parts = std::min(num_threads_, count / std::max<std::size_t>(grain, 1));
    if (parts < 2) {
      if (count > 0)
        task(std::size_t{0}, count, std::size_t{0});
      return;
    }
    auto part = [&](std::size_t worker) noexcept {
      if (worker < parts)
        task(count * worker / parts, count * (worker + 1) / parts, worker);
    };
    context_ = &part;
    task_ = [](void* context, std::size_t worker) {
      (*static_cast<decltype(part)*>(context))(worker);
    };
    pending_.store(static_cast<std::uint32_t>(num_threads_ - 1));
    generation_.fetch_add(1);
    generation_.notify_all();
    part(0);
    for (std::uint32_t left = pending_.load(); left != 0; left = pending_.load()) {
      wait_for_change(pending_, left);
    }
  }

 private:
  // A decode step has hundreds of short loops: sleeping at once would cost more than they do.
  static void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
    for (int spin = 0; spin < 2000; ++spin) {
      if (value.load() != old)
        return;
    }
    value.wait(old);
  }

  void serve(std::size_t worker) {
    for (std::uint32_t seen = 0;; ++seen) {
      wait_for_change(generation_, seen);
      if (task_ == nullptr)
        return;
      task_(context_, worker);
      if (pending_.fetch_sub(1) == 1)
        pending_.notify_one();
    }
  }

  std::size_t num_threads_;
  void (*task_)(void* context, std::size_t worker) = nullptr;
  void* context_ = nullptr;
  std::atomic<std::uint32_t> generation_{0};  // counts the loops; a change starts the workers
  std::atomic<std::uint32_t> pending_{0};     // workers that are not done with the current one
  std::vector<std::thread> threads_;          // last: they use all of the above
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_THREAD_POOL_HPP_
