// The long calls of a policy on threads that the engine has: a pool, OpenMP, std::execution. What
// is decided is the same.
#include "engine/thread_pool.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <cstddef>
#include <cstdio>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef HAS_PARALLEL_STL  // set by the build where there is TBB, on which libstdc++ runs it
#include <algorithm>
#include <execution>
#include <thread>
#endif

kvevict::Executor on_pool(engine::ThreadPool& pool) {
  return {pool.num_threads(), [&pool](std::size_t n, kvevict::Executor::Task task) {
            pool.for_ranges(n, 1, [&](std::size_t first, std::size_t last, std::size_t) {
              for (; first < last; ++first)
                task(first);
            });
          }};
}

#ifdef _OPENMP
kvevict::Executor on_openmp() {
  return {static_cast<std::size_t>(omp_get_max_threads()),
          [](std::size_t n, kvevict::Executor::Task task) {
#pragma omp parallel for schedule(static, 1)
            for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(n); ++i)
              task(static_cast<std::size_t>(i));
          }};
}
#endif

#ifdef HAS_PARALLEL_STL
kvevict::Executor on_parallel_stl() {
  std::vector<std::size_t> indices(std::thread::hardware_concurrency());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return {indices.size(), [indices](std::size_t n, kvevict::Executor::Task task) {
            std::for_each_n(std::execution::par, indices.begin(), n, task);
          }};
}
#endif

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 64};
constexpr std::size_t kPromptLen = 512, kWindow = 32;

/// K and V are cut in place: they are copies.
kvevict::KeepMask cut(std::vector<float> keys, std::vector<float> values,
                      const std::vector<float>& queries, const kvevict::Executor& executor) {
  const auto tensor = [](std::vector<float>& data) {
    return kvevict::views::Tensor::hnd(data.data(), kvevict::ElementType::kF32, kPromptLen, 4, 64);
  };
  const kvevict::views::ContiguousView view(kShape, tensor(keys), tensor(values), kPromptLen);
  kvevict::SnapKV policy({.budget = 64, .observation_window = kWindow}, kShape);
  policy.use_executor(executor);  // before or between other calls; the loop stays as it is
  policy.begin(kPromptLen);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    policy.observe_queries(layer,
                           {.data = queries.data(),
                            .num_q_heads = 8,
                            .num_rows = kWindow,
                            .head_stride = kWindow * 64,
                            .row_stride = 64},
                           view);
  }
  policy.end_prefill(view);
  kvevict::KeepMask keep = policy.select(view);
  kvevict::compact(view, keep, executor);
  policy.apply(keep);
  return keep;
}

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(2 * 4 * kPromptLen * 64), values(keys.size()), queries(8 * kWindow * 64);
  for (auto* data : {&keys, &values, &queries}) {
    for (float& x : *data)
      x = normal(random);
  }
  engine::ThreadPool pool(3);
  std::vector<std::pair<const char*, kvevict::Executor>> executors{{"pool", on_pool(pool)}};
#ifdef _OPENMP
  executors.emplace_back("OpenMP", on_openmp());
#endif
#ifdef HAS_PARALLEL_STL
  executors.emplace_back("std::execution", on_parallel_stl());
#endif
  const kvevict::KeepMask expected = cut(keys, values, queries, {});
  bool same = expected.total_count() == 2 * 4 * 64;
  for (const auto& [name, executor] : executors) {
    const bool equal = cut(keys, values, queries, executor) == expected;
    std::printf("%s, %zu workers: %s\n", name, executor.num_workers(),
                equal ? "the same" : "other");
    same = same && equal;
  }
  return same ? 0 : 1;
}
