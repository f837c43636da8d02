// What a second worker gives: the long calls of a policy on one layer of an 8B model (8 KV heads of
// 4 query heads, head_dim 128, f32), on a pool of two threads.
//
//   policy/<name> <call> 2 workers/<isa>   with an executor
//   .../naive                              without one: the ratio is what is gained
#include "bench/common.hpp"
#include "examples/engine/thread_pool.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr std::size_t kTokens = 4096;
constexpr std::size_t kQueries = 128;
constexpr std::size_t kHiddenSize = 4096;

struct Prompt {
  std::vector<float> keys = kvevict_bench::normal_values(8 * kTokens * 128, 1);
  std::vector<float> values = kvevict_bench::normal_values(8 * kTokens * 128, 2);
  std::vector<float> queries = kvevict_bench::normal_values(32 * kQueries * 128, 3);

  [[nodiscard]] views::ContiguousView view() {
    const auto tensor = [](std::vector<float>& data) {
      return views::Tensor::hnd(data.data(), ElementType::kF32, kTokens, 8, 128);
    };
    return {kShape, tensor(keys), tensor(values), kTokens};
  }
  [[nodiscard]] QueryRows query_rows() const {
    return {.data = queries.data(),
            .num_q_heads = 32,
            .num_rows = kQueries,
            .head_stride = kQueries * 128,
            .row_stride = 128};
  }
};

[[nodiscard]] Prompt& prompt() {
  static Prompt prompt;
  return prompt;
}

[[nodiscard]] Executor two_threads() {
  static engine::ThreadPool pool(2);
  return {2, [](std::size_t n, Executor::Task task) {
            pool.for_ranges(n, 1, [&](std::size_t first, std::size_t last, std::size_t) {
              for (; first < last; ++first)
                task(first);
            });
          }};
}

/// `call` of a policy that may have seen the prompt.
template <class P>
void add(const std::string& name, const P& policy, bool seen, const std::function<void(P&)>& call) {
  for (const bool parallel : {true, false}) {
    const auto copy = std::make_shared<P>(policy);
    if (parallel)
      copy->use_executor(two_threads());
    if (seen) {
      copy->begin(kTokens);
      copy->append(kTokens - kQueries);
      copy->append(kQueries);
      if constexpr (requires { copy->observe_queries(0, prompt().query_rows(), prompt().view()); })
        copy->observe_queries(0, prompt().query_rows(), prompt().view());
      copy->end_prefill(prompt().view());
    }
    const std::string isa = kvevict_bench::isa_name(kernels::best().isa);
    kvevict_bench::add("policy/" + name + " 2 workers", parallel ? isa : "naive", {},
                       [=] { call(*copy); });
  }
}
template <class P>
void add_select(const std::string& name, const P& policy) {
  add<P>(name, policy, true, [](P& p) { benchmark::DoNotOptimize(&p.select(prompt().view())); });
}

[[maybe_unused]] const bool kRegistered = [] {
  const auto projection =
      std::make_shared<OutputProjection>(kShape, kHiddenSize, GroupReading::kMeanNorms);
  projection->set_layer(0, kvevict_bench::normal_values(32 * 128 * kHiddenSize, 4).data());
  RotaryEmbedding rotary;
  for (int band = 0; band < 64; ++band)
    rotary.inv_freq.push_back(std::pow(500000.0, -band / 64.0));

  add<SnapKV>("SnapKV observe", SnapKV({.budget = 512}, kShape), false, [](SnapKV& policy) {
    // A layer counts once, so every round is a prompt of its own.
    policy.reset();
    policy.begin(kTokens);
    policy.observe_queries(0, prompt().query_rows(), prompt().view());
  });
  add_select("SnapKV select", SnapKV({.budget = 512}, kShape));
  add_select("LaProx select", LaProx({.budget = 512, .output_projection = projection}, kShape));
  add_select("TriAttention event", TriAttention({.budget = 512,
                                                 .interval = 1,
                                                 .protect_prompt = false,
                                                 .num_sink_tokens = 0,
                                                 .recent_window = 0,
                                                 .rotary = rotary},
                                                kShape));
  add_select("KeyDiff select", KeyDiff({.budget = 512}, kShape));
  return true;
}();

}  // namespace
