// Cuts a prompt's KV cache to a tenth with SnapKV. An engine replaces the random numbers.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <random>
#include <vector>

int main() {
  const kvevict::CacheShape shape{
      .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  constexpr std::size_t kPromptLen = 1000;

  // The engine's cache: [layer, token, KV head, head_dim], K and V.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(2 * kPromptLen * 2 * 64), values(keys.size()), queries(4 * 32 * 64);
  for (auto* data : {&keys, &values, &queries}) {
    for (float& x : *data)
      x = normal(random);
  }
  const auto tensor = [](std::vector<float>& data) {
    return kvevict::views::Tensor::nhd(data.data(), kvevict::ElementType::kF32, kPromptLen, 2, 64);
  };
  const kvevict::views::ContiguousView view(shape, tensor(keys), tensor(values), kPromptLen);

  kvevict::SnapKV policy({.budget = 100, .observation_window = 32}, shape);
  policy.begin(kPromptLen);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    // The last 32 queries of the layer, [query head, row, head_dim].
    policy.observe_queries(layer,
                           {.data = queries.data(),
                            .num_q_heads = 4,
                            .num_rows = 32,
                            .head_stride = 32 * 64,
                            .row_stride = 64},
                           view);
  }
  policy.end_prefill(view);
  if (policy.should_evict()) {
    const kvevict::KeepMask& keep = policy.select(view);
    kvevict::compact(view, keep);  // rows move to the front of each lane, in place
    policy.apply(keep);
  }
  std::printf("kept %zu of %zu entries\n", policy.counters().kept,
              shape.num_layers * shape.num_kv_heads * kPromptLen);
  return policy.counters().kept == 2 * 2 * 100 ? 0 : 1;
}
