// A policy of one's own: a signal, the stages behind it, and who gets how much; the rest is there.
// This one keeps the tokens whose value vectors are longest, and what stands beside them; the heads
// of a layer compete.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <vector>

// A scorer of one's own: an array for each KV head of the lane.
struct ValueLength {
  static constexpr kvevict::Inputs kRequiredInputs = kvevict::Inputs::kValues;
  static constexpr kvevict::AttentionUse kAttentionUse = kvevict::AttentionUse::kNone;

  std::tuple<> state() const { return {}; }  // nothing is remembered between steps
  void score(const kvevict::ScoreInput& input, kvevict::LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      kvevict::row_norms(scores.cache(head).values, input.sequence.shape().value_size(), 0,
                         scores.seq_len(), input.kernel,
                         input.scratch.vector(kvevict::LaneScores::kFirstFree), scores.array(head));
    }
  }
};

// The policy: options, trigger and protection are those of every policy that scores the cache.
struct LongValuesRecipe : kvevict::CutsByCacheScore {
  static constexpr std::string_view kName = "LongValues";

  static auto pipeline(const Options&, const kvevict::CacheShape&) {
    return ValueLength() | kvevict::Pool{{.kind = kvevict::PoolKind::kMax, .kernel_size = 3}};
  }
  static kvevict::Allocation allocation(const Options& options) {
    return {.budget = options.budget, .competition = kvevict::Competition::kLayer};
  }
};

using LongValues = kvevict::Policy<kvevict::Composed<LongValuesRecipe>>;
static_assert(kvevict::EvictionPolicy<LongValues>);

int main() {
  using kvevict::views::Tensor;
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};
  std::vector<float> keys(2 * 8 * 4), values(keys.size());
  values[5 * 4] = 7;        // head 0: token 5
  values[(8 + 2) * 4] = 9;  // head 1: token 2
  const kvevict::views::ContiguousView view(
      shape, Tensor::hnd(keys.data(), kvevict::ElementType::kF32, 8, 2, 4),
      Tensor::hnd(values.data(), kvevict::ElementType::kF32, 8, 2, 4), 8);
  LongValues policy({.budget = 4, .num_sink_tokens = 1}, shape);
  policy.append(8);
  const kvevict::KeepMask& keep = policy.select(view);
  // 8 entries in all: two sinks, the long ones with their neighbours, and no more is left over.
  std::printf("head 0 keeps %zu, head 1 keeps %zu\n", keep.count(0, 0), keep.count(0, 1));
  return keep.count(0, 0) == 4 && keep.count(0, 1) == 4 && keep.keeps(0, 0, 4) &&
                 keep.keeps(0, 1, 3)
             ? 0
             : 1;
}
