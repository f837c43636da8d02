#include "kvevict/core/executor.hpp"

#include "support/errors.hpp"
#include "support/threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::threads;

TEST(Executor, WithoutOneALoopRunsInOrderOnTheCallingThread) {
  const Executor executor;
  EXPECT_EQ(executor.num_workers(), 1U);
  const std::thread::id caller = std::this_thread::get_id();
  std::vector<std::size_t> seen;
  executor.for_each(3, [&](std::size_t worker, std::size_t i) {
    EXPECT_EQ(worker, 0U);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    seen.push_back(i);
  });
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Executor, EveryIndexComesOnceAndAscendsForItsWorker) {
  for (const std::size_t num_workers : {1U, 2U, 3U, 7U}) {
    for (const std::size_t n : {0U, 1U, 2U, 5U, 100U}) {
      std::vector<std::vector<std::size_t>> by_worker(num_workers);
      threads(num_workers).for_each(n, [&](std::size_t worker, std::size_t i) {
        by_worker[worker].push_back(i);
      });
      std::vector<std::size_t> times(n);
      for (std::size_t worker = 0; worker < num_workers; ++worker) {
        const std::vector<std::size_t>& indices = by_worker[worker];
        EXPECT_EQ(indices.empty(), worker >= n) << "each has something to do where there is enough";
        EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
        for (const std::size_t i : indices)
          ++times[i];
      }
      EXPECT_EQ(times, std::vector<std::size_t>(n, 1)) << num_workers << " workers";
    }
  }
}

// Each task waits for the other to begin: in order they would wait for ever.
TEST(Executor, WorkersRunAtTheSameTime) {
  std::atomic<int> begun{0};
  threads(2).for_each_worker(2, [&](std::size_t) {
    ++begun;
    while (begun < 2)
      std::this_thread::yield();
  });
  EXPECT_EQ(begun, 2);
}

TEST(Executor, NoMoreTasksThanWorkersOrThingsToDo) {
  std::vector<std::size_t> asked;
  const Executor executor(3, [&](std::size_t n, Executor::Task task) {
    asked.push_back(n);
    for (std::size_t i = n; i-- > 0;)
      task(i);
  });
  const auto nothing = [](std::size_t, std::size_t) {};
  executor.for_each(100, nothing);
  executor.for_each(2, nothing);
  executor.for_each(1, nothing);  // not worth asking
  executor.for_each(0, nothing);
  EXPECT_EQ(asked, (std::vector<std::size_t>{3, 2}));
}

TEST(Executor, NoWorkersCountAsOne) {
  EXPECT_EQ(threads(0).num_workers(), 1U);
}

// Out of memory, in a thread that is not the caller's.
TEST(Executor, WhatATaskThrowsIsThrownToTheCallerOnceAllHaveEnded) {
  std::atomic<int> done{0};
  EXPECT_THROW(threads(3).for_each(30,
                                   [&](std::size_t, std::size_t i) {
                                     if (i == 4)
                                       throw std::bad_alloc();
                                     ++done;
                                   }),
               std::bad_alloc);
  EXPECT_EQ(done, 29);
}

TEST(Executor, OneOfSeveralFailuresIsThrown) {
  EXPECT_THROW(threads(3).for_each_worker(3, [](std::size_t) { throw std::runtime_error("each"); }),
               std::runtime_error);
}

TEST(Executor, AnExecutorThatLeavesTasksOutIsFound) {
  const Executor lazy(2, [](std::size_t, Executor::Task task) { task(0); });
  EXPECT_TRUE(kvevict_test::refuses([&] { lazy.for_each_worker(2, [](std::size_t) {}); },
                                    {"Executor", "tasks that were run = 1"}));
}

}  // namespace
}  // namespace kvevict
