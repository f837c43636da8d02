#include <kvevict/kvevict.hpp>

#include <vector>

int main() {
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 4};
  std::vector<float> keys(32 * 4);
  const auto tensor =
      kvevict::views::Tensor::nhd(keys.data(), kvevict::ElementType::kF32, 32, 1, 4);
  const kvevict::views::ContiguousView view(shape, tensor, tensor, 32);

  kvevict::StreamingLLM policy({.num_sink_tokens = 2, .recent_window = 6}, shape);
  policy.begin(32);
  policy.end_prefill(view);
  if (!policy.should_evict())
    return 1;
  const kvevict::KeepMask& keep = policy.select(view);
  return keep.count(0, 0) == 8 ? 0 : 1;
}
