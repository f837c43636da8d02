// How time grows with what is cached: one layer, 2 query heads and 1 KV head of 64, in f32, from
// 1,024 to 1,048,576 slots.
//
//   growth/<work>/<n>                for n slots, or n in each of 8 lanes
//   growth/EpiKV step of budget/<K>  a decode step with a cache of K tokens that is full
//
// Report fits the exponent of the CPU time against n. Each round reads another part of one large
// cache, as far as there is one: otherwise a small n would be measured in the processor's caches
// and a large one in memory, and the exponent would be that of the machine.

#include "bench/common.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
constexpr std::size_t kLargest = std::size_t{1} << 20U;
constexpr std::size_t kWindow = 32;
constexpr std::size_t kLanes = 8;

/// `size` values; only some are drawn, the rest repeats them.
std::vector<float> values(std::size_t size, unsigned seed) {
  const std::vector<float> drawn = kvevict_bench::normal_values(65537, seed);
  std::vector<float> result(size);
  for (std::size_t i = 0; i < size; ++i)
    result[i] = drawn[i % drawn.size()];
  return result;
}

/// kLargest slots, made once something is measured; a round takes the next n of them.
class Pool {
 public:
  /// @param row  floats of a slot
  explicit Pool(std::size_t row, unsigned seed) : row_(row), data_(values(kLargest * row, seed)) {}

  float* next(std::size_t n) noexcept {
    first_ = first_ + 2 * n > kLargest ? 0 : first_ + n;
    return data_.data() + first_ * row_;
  }

 private:
  std::size_t row_;
  std::size_t first_ = 0;
  std::vector<float> data_;
};
Pool& keys() {
  static Pool pool(kShape.head_dim, 1);
  return pool;
}
Pool& cached_values() {
  static Pool pool(kShape.head_dim, 2);
  return pool;
}
/// Attention rows of both query heads, or scores of all lanes.
Pool& rows() {
  static Pool pool = [] {
    Pool made(kLanes, 3);
    float* x = made.next(kLargest);
    std::transform(x, x + kLargest * kLanes, x, [](float y) { return std::abs(y); });
    return made;
  }();
  return pool;
}

views::ContiguousView next_view(std::size_t n, bool with_values = false) {
  const auto tensor = [&](float* data) {
    return views::Tensor::hnd(data, ElementType::kF32, n, 1, kShape.head_dim);
  };
  return {kShape, tensor(keys().next(n)),
          with_values ? tensor(cached_values().next(n)) : views::Tensor{}, n};
}

template <class P>
void score(benchmark::State& state, std::size_t n) {
  P policy({}, kShape);
  Scratch scratch;
  std::vector<float> scores(n);
  for (auto _ : state) {
    const views::ContiguousView view = next_view(n);
    // A prompt of its own: what a policy made of a key it may remember.
    policy.reset();
    policy.begin(n);
    policy.append(n);
    policy.end_prefill(view);
    const ViewRef ref(view);
    policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, 0, scores);
    benchmark::DoNotOptimize(scores.data());
  }
}

void snapkv_prompt(benchmark::State& state, std::size_t n) {
  keys();
  const std::vector<float> queries = values(kShape.num_q_heads * kWindow * kShape.head_dim, 4);
  SnapKV policy({.budget = n / 10, .observation_window = kWindow}, kShape);
  for (auto _ : state) {
    policy.reset();
    policy.begin(n);
    const views::ContiguousView view = next_view(n);
    policy.observe_queries(0,
                           {.data = queries.data(),
                            .num_q_heads = kShape.num_q_heads,
                            .num_rows = kWindow,
                            .head_stride = kWindow * kShape.head_dim,
                            .row_stride = kShape.head_dim},
                           view);
    policy.end_prefill(view);
    benchmark::DoNotOptimize(&policy.select(view));
  }
}

void top_k(benchmark::State& state, std::size_t n, std::size_t num_lanes) {
  std::vector<std::uint64_t> candidates((n + 63) / 64, ~std::uint64_t{0});
  KeepMask mask;
  std::vector<ScoredLane> lanes(num_lanes);
  Pool& pool = rows();
  for (auto _ : state) {
    float* scores = pool.next(n);
    mask.reset(MaskScope::kHead, 1, num_lanes);
    for (std::size_t lane = 0; lane < num_lanes; ++lane)
      mask.add_lane(n);
    for (std::size_t lane = 0; lane < num_lanes; ++lane)
      lanes[lane] = {lane, {scores + lane * n, n}, candidates, mask.words(lane)};
    select_top_k(lanes, num_lanes * n / 10);
    benchmark::ClobberMemory();
  }
}

/// A decode step with a cache that is full: a row, the scores, and what has to go.
template <class P>
void step(benchmark::State& state, std::size_t n, const typename P::Options& options) {
  P policy(options, kShape);
  policy.begin(n - 1);
  policy.append(n - 1);
  // Selection asks a view for lengths only, so no K and V are needed.
  const views::ContiguousView view(kShape, {}, {}, n);
  Pool& attention = rows();
  for (auto _ : state) {
    policy.append(1);
    policy.observe_attention(0, {.data = attention.next(n),
                                 .num_q_heads = kShape.num_q_heads,
                                 .num_rows = 1,
                                 .head_stride = static_cast<std::ptrdiff_t>(n),
                                 .row_stride = static_cast<std::ptrdiff_t>(n)});
    policy.apply(policy.select(view));
  }
}

/// Every slot stays or goes by chance.
void compaction(benchmark::State& state, std::size_t n) {
  KeepMask mask;
  mask.reset(MaskScope::kHead, 1, 1);
  const std::span<std::uint64_t> words = mask.add_lane(n);
  const std::vector<float> chance = kvevict_bench::normal_values(n, 5);
  for (std::size_t slot = 0; slot < n; ++slot) {
    if (chance[slot] > 0)
      words[slot / 64] |= std::uint64_t{1} << slot % 64;
  }
  compact(next_view(n, true), mask);  // makes the cache
  for (auto _ : state) {
    compact(next_view(n, true), mask);
    benchmark::ClobberMemory();
  }
}

/// By the heap. Narrow hidden states, since reading them would be most of the step.
void epikv_step(benchmark::State& state, std::size_t budget) {
  constexpr std::size_t kHiddenSize = 64;
  const std::vector<float> hidden = values(1000 * kHiddenSize + 1, 6);
  constexpr CacheShape kDeep{.num_layers = 32, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  EpiKV scorer({.budget = budget}, kDeep);
  StreamingTopK keep = scorer.method().streaming();
  std::size_t next = 0;
  const auto once = [&] {
    scorer.append(1);
    for (const std::size_t layer : {10U, 21U}) {
      scorer.observe_hidden(
          layer, {hidden.data() + next, 1, kHiddenSize, 4 * kHiddenSize, ElementType::kF32});
      next = (next + kHiddenSize) % (hidden.size() - kHiddenSize);
    }
    keep.push(scorer.method().scores().back());
    return keep.pop();
  };
  while (!once()) {
  }
  for (auto _ : state)
    benchmark::DoNotOptimize(once());
}

[[maybe_unused]] const bool kRegistered = [] {
  const auto add = [](const std::string& work, std::size_t n, double max_exponent,
                      const auto& run) {
    benchmark::RegisterBenchmark(("growth/" + work + "/" + std::to_string(n)).c_str(),
                                 [=](benchmark::State& state) {
                                   run(state, n);
                                   state.SetLabel("max_exponent=" + std::to_string(max_exponent));
                                 })
        ->Unit(benchmark::kMicrosecond);
  };
  // Linear; what is left is what a call costs, and what no longer fits into caches.
  constexpr double kLinear = 1.15;
  for (std::size_t n = 1024; n <= kLargest; n *= 4) {
    add("Knorm score", n, kLinear, score<Knorm>);
    add("KeyDiff score", n, kLinear, score<KeyDiff>);
    add("SnapKV prompt", n, kLinear, snapkv_prompt);
    add("top-k in a lane", n, kLinear,
        [](benchmark::State& state, std::size_t size) { top_k(state, size, 1); });
    add("top-k over 8 lanes", n, kLinear,
        [](benchmark::State& state, std::size_t size) { top_k(state, size, kLanes); });
    add("H2O step", n, kLinear, [](benchmark::State& state, std::size_t size) {
      step<H2O>(state, size, {.heavy = size / 2 - 1, .recent = size / 2});
    });
    add("InertiaKV step", n, kLinear, [](benchmark::State& state, std::size_t size) {
      step<InertiaKV>(state, size, {.budget = size - 1});
    });
    add("compaction", n, kLinear, compaction);
  }
  // A logarithm is .12 over these budgets.
  for (std::size_t budget = 512; budget <= 65536; budget *= 2)
    add("EpiKV step of budget", budget, 0.25, epikv_step);
  return true;
}();

}  // namespace
