// One decode step of the policies that keep attention over steps, with a full cache of 8192 slots
// under 32 layers of 32 query heads: the newest token's rows of every layer, the score, what has to
// go, and the state that follows it. The rows come from memory, as after an attention kernel.
//
//   policy/InertiaKV step/<isa|naive>  one shared score, the EMA updated after each layer
//   policy/H2O step/<isa|naive>        sums per KV head, the oldest half of them heavy hitters
#include "bench/common.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace kvevict;

constexpr std::size_t kSlots = 8192;
constexpr std::size_t kRecent = kSlots / 2;
constexpr CacheShape kShape{
    .num_layers = 32, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr std::size_t kGroup = kShape.group_size();
constexpr float kAlpha = 0.8F;

/// [num_layers, num_q_heads, kSlots]; only some numbers are drawn, the rest repeats them.
[[nodiscard]] const std::vector<float>& attention() {
  static const std::vector<float> rows = [] {
    const std::vector<float> drawn = kvevict_bench::normal_values(65537, 1);
    std::vector<float> values(kShape.num_layers * kShape.num_q_heads * kSlots);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::abs(drawn[i % drawn.size()]) / kSlots;
    return values;
  }();
  return rows;
}
[[nodiscard]] const float* attention_row(std::size_t layer, std::size_t q_head) {
  return attention().data() + (layer * kShape.num_q_heads + q_head) * kSlots;
}

/// A policy whose cache has one slot to fill.
template <class P>
class Session {
 public:
  Session(const typename P::Options& options, const kernels::KernelSet& kernel)
      : policy_(options, kShape, kernel) {
    policy_.begin(kSlots - 1);
    policy_.append(kSlots - 1);
  }
  void step() {
    policy_.append(1);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      policy_.observe_attention(layer, {.data = attention_row(layer, 0),
                                        .num_q_heads = kShape.num_q_heads,
                                        .num_rows = 1,
                                        .head_stride = kSlots,
                                        .row_stride = kSlots});
    }
    // Selection asks a view for lengths only, so no K and V are needed.
    policy_.apply(policy_.select(views::ContiguousView(kShape, {}, {}, kSlots)));
  }

 private:
  P policy_;
};

template <class P>
void add_policy(const std::string& name, const typename P::Options& options,
                const kvevict_bench::Work& work) {
  using kernels::Isa;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!kernels::is_available(isa))
      continue;
    const auto session = std::make_shared<Session<P>>(options, kernels::get(isa));
    kvevict_bench::add(name, kvevict_bench::isa_name(isa), work, [=] { session->step(); });
  }
}

// The mean of each layer, the update, and a search.
void inertia_naive(std::vector<float>& scores) {
  float sum = 0.0F;
  for (const float m : scores)
    sum += m;
  scores.push_back(sum / static_cast<float>(scores.size()));
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    std::vector<float> mean(kSlots);
    for (std::size_t head = 0; head < kShape.num_q_heads; ++head) {
      for (std::size_t i = 0; i < kSlots; ++i)
        mean[i] += attention_row(layer, head)[i];
    }
    for (std::size_t i = 0; i < kSlots; ++i) {
      scores[i] =
          kAlpha * scores[i] + (1.0F - kAlpha) * mean[i] / static_cast<float>(kShape.num_q_heads);
    }
  }
  scores.erase(std::min_element(scores.begin(), scores.end()));
}

// The sums of each KV head, and a search in each.
void h2o_naive(std::vector<std::vector<float>>& sums) {
  for (std::size_t lane = 0; lane < sums.size(); ++lane) {
    std::vector<float>& scores = sums[lane];
    scores.push_back(0.0F);
    for (std::size_t head = 0; head < kGroup; ++head) {
      const float* row =
          attention_row(lane / kShape.num_kv_heads, lane % kShape.num_kv_heads * kGroup + head);
      for (std::size_t i = 0; i < kSlots; ++i)
        scores[i] += row[i] / static_cast<float>(kGroup);
    }
    scores.erase(std::min_element(scores.begin(), scores.end() - kRecent));
  }
}

[[maybe_unused]] const bool kRegistered = [] {
  const kvevict_bench::Work work{
      .ceiling = "read",
      .bytes = 4.0 * static_cast<double>(kShape.num_layers * kShape.num_q_heads * kSlots)};
  add_policy<InertiaKV>("policy/InertiaKV step", {.budget = kSlots - 1, .alpha = kAlpha}, work);
  const auto scores = std::make_shared<std::vector<float>>(kSlots - 1);
  kvevict_bench::add("policy/InertiaKV step", "naive", {}, [=] { inertia_naive(*scores); });
  add_policy<H2O>("policy/H2O step", {.heavy = kSlots - 1 - kRecent, .recent = kRecent}, work);
  const auto sums = std::make_shared<std::vector<std::vector<float>>>(
      kShape.num_lanes(MaskScope::kHead), std::vector<float>(kSlots - 1));
  kvevict_bench::add("policy/H2O step", "naive", {}, [=] { h2o_naive(*sums); });
  return true;
}();

}  // namespace
