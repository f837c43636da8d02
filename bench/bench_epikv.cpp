// One decode step of EpiKV with a full cache: two hidden-state differences, the score, and what
// has to go, for budgets of K tokens.
//
//   policy/EpiKV step K=<K>/<isa>      the heap: nothing moves, O(log K)
//   policy/EpiKV mask step K=<K>/<isa> should_evict, select and apply: O(K), small constants
//   .../naive                          the same scores, the minimum searched anew in every step

#include "bench/common.hpp"
#include "kvevict/kernels/half.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace {

using kvevict::EpiKV;

constexpr std::size_t kHiddenSize = 4096;
constexpr std::size_t kPrompt = 64;
constexpr std::size_t kRecency = 128;
constexpr kvevict::CacheShape kShape{
    .num_layers = 32, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};

/// Feeds random bf16 vectors of an 8B model's width.
class Feeder {
 public:
  void step(EpiKV& policy) {
    policy.append(1);
    for (const std::size_t layer : {10U, 21U}) {
      policy.observe_hidden(layer, {rows_.data() + next_, 1, kHiddenSize, 2 * kHiddenSize,
                                    kvevict::ElementType::kBF16});
      next_ = (next_ + kHiddenSize) % (rows_.size() - kHiddenSize + 1);
    }
  }

 private:
  [[nodiscard]] static std::vector<std::uint16_t> random_rows() {
    // 8 elements more than whole rows, so a row comes back as another one.
    const std::vector<float> drawn = kvevict_bench::normal_values(64 * kHiddenSize + 8, 1);
    std::vector<std::uint16_t> rows(drawn.size());
    std::transform(drawn.begin(), drawn.end(), rows.begin(), kvevict::kernels::to_bf16);
    return rows;
  }

  std::vector<std::uint16_t> rows_ = random_rows();
  std::size_t next_ = 0;
};

/// A policy whose cache is full; made once for each budget, since that takes longer than a run.
[[nodiscard]] const EpiKV& full_policy(std::size_t budget) {
  static std::map<std::size_t, EpiKV> made;
  if (const auto found = made.find(budget); found != made.end())
    return found->second;
  EpiKV policy({.budget = budget}, kShape);
  policy.begin(kPrompt);
  policy.append(kPrompt);
  Feeder feeder;
  while (policy.length() < budget)
    feeder.step(policy);
  return made.emplace(budget, policy).first->second;
}

[[nodiscard]] std::span<const float> decoded_scores(const EpiKV& policy) {
  return policy.method().scores().subspan(kPrompt);
}

void heap_step(benchmark::State& state, std::size_t budget) {
  EpiKV scorer = full_policy(budget);
  kvevict::StreamingTopK keep = scorer.method().streaming();
  keep.push_prompt(kPrompt);
  for (const float score : decoded_scores(scorer))
    keep.push(score);
  Feeder feeder;
  for (auto _ : state) {
    feeder.step(scorer);
    keep.push(scorer.method().scores().back());
    benchmark::DoNotOptimize(keep.pop());
  }
}

void mask_step(benchmark::State& state, std::size_t budget) {
  EpiKV policy = full_policy(budget);
  Feeder feeder;
  // Selection asks a view for lengths only, so no K and V are needed.
  const kvevict::views::ContiguousView view(kShape, {}, {}, budget + 1);
  for (auto _ : state) {
    feeder.step(policy);
    if (policy.should_evict())
      policy.apply(policy.select(view));
  }
}

void naive_step(benchmark::State& state, std::size_t budget) {
  EpiKV scorer = full_policy(budget);
  std::vector<float> scores(decoded_scores(scorer).begin(), decoded_scores(scorer).end());
  Feeder feeder;
  for (auto _ : state) {
    feeder.step(scorer);
    scores.push_back(scorer.method().scores().back());
    scores.erase(std::min_element(scores.begin(), scores.end() - kRecency));
    benchmark::DoNotOptimize(scores.data());
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::string isa = kvevict_bench::isa_name(kvevict::kernels::best().isa);
  for (const std::size_t budget : {512U, 4096U, 65536U}) {
    const auto add = [&](const std::string& what, const std::string& form, auto* run) {
      const std::string name = "policy/EpiKV " + what + " K=" + std::to_string(budget) + "/" + form;
      benchmark::RegisterBenchmark(name.c_str(), [run, budget](benchmark::State& state) {
        run(state, budget);
      })->UseRealTime();
    };
    add("step", isa, heap_step);
    add("step", "naive", naive_step);
    add("mask step", isa, mask_step);
    add("mask step", "naive", naive_step);
  }
  return true;
}();

}  // namespace
