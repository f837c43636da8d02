// What goes around a policy: a stage more, a mask that the engine can execute, what it does to
// attention, values that are folded instead of lost, and cuts that come in batches.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <random>
#include <vector>

struct ValueSnapKVRecipe : kvevict::SnapKVRecipe {
  static constexpr std::string_view kName = "ValueSnapKV";
  static auto pipeline(const Options& options, const kvevict::CacheShape& shape) {
    return kvevict::SnapKVRecipe::pipeline(options, shape) | kvevict::TimesValues{};
  }
};
using ValueSnapKV = kvevict::Policy<kvevict::Composed<ValueSnapKVRecipe>>;

constexpr std::size_t kPromptLen = 96, kDim = 8, kWindow = 16;

int main() {
  const kvevict::CacheShape shape{
      .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = kDim};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(2 * 2 * kPromptLen * kDim), values(keys.size()),
      query_data(2 * 4 * kWindow * kDim);
  for (auto* data : {&keys, &values, &query_data}) {
    for (float& x : *data)
      x = normal(random);
  }
  const auto tensor = [](std::vector<float>& data) {
    return kvevict::views::Tensor::hnd(data.data(), kvevict::ElementType::kF32, kPromptLen, 2,
                                       kDim);
  };
  const kvevict::views::ContiguousView view(shape, tensor(keys), tensor(values), kPromptLen);
  const auto queries = [&](std::size_t layer) {
    return kvevict::QueryRows{.data = query_data.data() + layer * 4 * kWindow * kDim,
                              .num_q_heads = 4,
                              .num_rows = kWindow,
                              .head_stride = kWindow * kDim,
                              .row_stride = kDim};
  };

  ValueSnapKV policy({.budget = 48, .observation_window = kWindow}, shape);
  policy.begin(kPromptLen);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer)
    policy.observe_queries(layer, queries(layer), view);
  policy.end_prefill(view);

  // The engine holds one set of tokens for all heads and layers.
  kvevict::Projection projection(
      {.scope = kvevict::MaskScope::kModel, .layers = kvevict::upper_half(shape.num_layers)},
      shape);
  const kvevict::KeepMask& keep = policy.select(view, projection);
  std::size_t num_moves = 0;
  kvevict::for_each_move(keep, 0, 0, [&](std::size_t, std::size_t, std::size_t) { ++num_moves; });
  std::printf("%zu of %zu tokens stay, %zu moves\n", keep.count(0, 0), kPromptLen, num_moves);

  kvevict::OutputError error(shape);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer)
    error.add(layer, queries(layer), view, keep);
  std::printf("attention's output moves by %.0f %%\n", 100 * error.relative());

  kvevict::ValueMerge merge;
  const std::size_t num_merged = merge.run(view, keep);
  kvevict::compact(view, keep);
  policy.apply(keep);
  std::printf("%zu values were folded into others\n", num_merged);

  // 16 tokens may gather above the budget before the next cut.
  kvevict::Knorm in_batches({.budget = 80, .schedule = {.slack = 16}}, shape);
  in_batches.append(kPromptLen);
  const bool too_early = in_batches.should_evict();
  in_batches.append(1);

  const bool as_expected = policy.counters().kept == 2 * 2 * 48 && num_moves > 0 &&
                           num_merged > 0 && error.relative() > 0 && !too_early &&
                           in_batches.should_evict();
  return as_expected ? 0 : 1;
}
