#ifndef KVEVICT_TESTS_SUPPORT_THREADS_HPP_
#define KVEVICT_TESTS_SUPPORT_THREADS_HPP_

#include "kvevict/core/executor.hpp"

#include <cstddef>
#include <thread>
#include <vector>

namespace kvevict_test {

/// A thread for every task, all at the same time.
[[nodiscard]] inline kvevict::Executor threads(std::size_t num_workers) {
  return {num_workers, [](std::size_t n, kvevict::Executor::Task task) {
            std::vector<std::thread> running;
            for (std::size_t i = 0; i < n; ++i)
              running.emplace_back(task, i);
            for (std::thread& thread : running)
              thread.join();
          }};
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_THREADS_HPP_
