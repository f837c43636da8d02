// A policy of one's own: say when, who competes and how a slot is scored; the rest is there.
// This one keeps the tokens whose value vectors are longest, heads of a layer competing.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <vector>

struct LongValuesOptions {
  kvevict::Budget budget = 128;  ///< tokens per KV head
  std::size_t num_sink_tokens = 4;
};

class LongValuesMethod {
 public:
  using Options = LongValuesOptions;
  static constexpr std::string_view kName = "LongValues";
  static constexpr kvevict::Inputs kRequiredInputs = kvevict::Inputs::kValues;
  static constexpr kvevict::AttentionUse kAttentionUse = kvevict::AttentionUse::kNone;

  LongValuesMethod(const Options& options, const kvevict::CacheShape&) : options_(options) {}

  kvevict::MaskScope scope() const { return kvevict::MaskScope::kHead; }
  kvevict::Trigger trigger() const { return kvevict::Trigger::kEveryStep; }
  kvevict::Protection protection(const kvevict::Sequence&) const {
    return {.num_sink_tokens = options_.num_sink_tokens};
  }
  kvevict::Allocation allocation(const kvevict::Sequence&) const {
    return {.budget = options_.budget, .competition = kvevict::Competition::kLayer};
  }
  std::tuple<> state() { return {}; }  // nothing is remembered between steps

  void score(const kvevict::ScoreInput& input, std::size_t lane, std::span<float> out) const {
    const kvevict::CacheShape shape = input.view.shape();
    const kvevict::Lane here =
        input.view.lane(lane / shape.num_kv_heads, lane % shape.num_kv_heads);
    kvevict::for_each_row_block(here.values, shape.value_size(), 0, here.seq_len, input.kernel,
                                input.scratch.vector(0), [&](const auto& rows, std::size_t slot) {
                                  input.kernel.row_norms(rows, out.data() + slot);
                                });
  }

 private:
  Options options_;
};

using LongValues = kvevict::Policy<LongValuesMethod>;
static_assert(kvevict::EvictionPolicy<LongValues>);

int main() {
  using kvevict::views::Tensor;
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};
  std::vector<float> keys(2 * 8 * 4), values(keys.size());
  for (std::size_t slot = 0; slot < 8; ++slot) {
    values[slot * 4] = static_cast<float>(slot);       // head 0: 0, 1, .. 7
    values[(8 + slot) * 4] = 10.0F * (slot % 2 == 0);  // head 1: 10 in even slots
  }
  const kvevict::views::ContiguousView view(
      shape, Tensor::hnd(keys.data(), kvevict::ElementType::kF32, 8, 2, 4),
      Tensor::hnd(values.data(), kvevict::ElementType::kF32, 8, 2, 4), 8);
  LongValues policy({.budget = 4, .num_sink_tokens = 1}, shape);
  policy.append(8);
  const kvevict::KeepMask& keep = policy.select(view);
  // 8 entries in all: two sinks, then 10, 10, 10 of head 1 and 7, 6, 5 of head 0.
  std::printf("head 0 keeps %zu, head 1 keeps %zu\n", keep.count(0, 0), keep.count(0, 1));
  return keep.count(0, 0) == 4 && keep.count(0, 1) == 4 && keep.keeps(0, 0, 5) ? 0 : 1;
}
