// Generates without end in a cache of fixed size: the loop that an engine writes around a policy
// that cuts while decoding. StreamingLLM looks at nothing and keeps one set for all heads; the loop
// says where it would ask other policies what they want.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <vector>

namespace {

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 8};
constexpr std::size_t kCapacity = 80;

// Stands for the engine: a cache of 80 tokens whose keys hold their token's position.
struct Engine {
  std::vector<float> keys = std::vector<float>(2 * kCapacity * 2 * 8);
  std::vector<float> values = keys;
  std::size_t seq_len = 0;
  float next_position = 0;

  kvevict::views::ContiguousView view() {
    using kvevict::views::Tensor;
    return {kShape, Tensor::hnd(keys.data(), kvevict::ElementType::kF32, kCapacity, 2, 8),
            Tensor::hnd(values.data(), kvevict::ElementType::kF32, kCapacity, 2, 8), seq_len};
  }
  void forward(std::size_t count) {
    for (; count > 0; --count, ++seq_len, ++next_position) {
      for (std::size_t lane = 0; lane < 4; ++lane) {
        keys[(lane * kCapacity + seq_len) * 8] = next_position;
      }
    }
  }
};

}  // namespace

int main() {
  Engine engine;
  kvevict::StreamingLLM policy({.num_sink_tokens = 4, .recent_window = 60}, kShape);

  policy.begin(48);
  engine.forward(48);
  policy.end_prefill(engine.view());
  std::size_t longest = 0;
  for (int step = 0; step < 500; ++step) {
    policy.append(1);
    engine.forward(1);
    // For other policies, per layer: if (policy.wants_attention(layer)) observe_attention or
    // observe_queries; if (policy.wants_hidden(layer)) observe_hidden.
    longest = longest > engine.seq_len ? longest : engine.seq_len;
    if (policy.should_evict()) {
      const kvevict::KeepMask& keep = policy.select(engine.view());
      kvevict::compact(engine.view(), keep);
      engine.seq_len = keep.count(0, 0);  // of every layer and head; they may differ for others
      policy.apply(keep);
    }
  }
  // 548 tokens went through; 4 sinks and positions 488..547 are left.
  std::printf("%zu tokens, never more than %zu in the cache; slot 4 holds position %.0f\n",
              policy.length(), longest, static_cast<double>(engine.keys[4 * 8]));
  const bool right = policy.length() == 548 && longest == 65 && engine.seq_len == 64 &&
                     engine.keys[3 * 8] == 3.0F && engine.keys[4 * 8] == 488.0F;
  return right ? 0 : 1;
}
