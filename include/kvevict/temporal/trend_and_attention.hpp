#ifndef KVEVICT_TEMPORAL_TREND_AND_ATTENTION_HPP_
#define KVEVICT_TEMPORAL_TREND_AND_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/min_max.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/hidden_trend.hpp"

#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// The attention that a token received from the queries of decoded tokens so far, mean over layers
/// and query heads, plus `weight` times its HiddenTrend, both scaled to [0, 1] over the decoded
/// tokens that are in the cache now. A range of zero gives 0. For one set of tokens for the whole
/// model: [1, seq_len].
class TrendAndAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kHiddenStates;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;
  static constexpr MaskScope kScope = MaskScope::kModel;

  TrendAndAttention(const CacheShape& shape, HiddenTrend hidden, float weight)
      : weight_(weight),
        hidden_(std::move(hidden)),
        attention_(shape, RowReduce::kSum, HeadReduce::kGroupMean) {}

  [[nodiscard]] auto state() noexcept { return std::tie(hidden_, attention_); }

  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept {
    return hidden_.wants_hidden(layer);
  }
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) {
    return hidden_.observe_hidden(layer, rows, sequence, kernel);
  }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return decoded_in_step(sequence);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    return attention_.observe(rows, kernel);
  }

  void score(const ScoreInput& input, LaneScores& scores) const {
    const std::span<float> attention =
        input.scratch.floats(LaneScores::kFirstFree, scores.seq_len());
    attention_.mean(MaskScope::kModel, scores.lane(), input.kernel, attention);
    const std::span<const float> hidden = hidden_.scores();
    const bool all_valid = input.view.lane(0, 0).valid.empty();
    MinMax attention_range;
    MinMax hidden_range;
    for_each_decoded_slot(input.sequence, scores.lane(), [&](std::size_t slot) {
      if (!all_valid && !any_has_token(input.view, slot))
        return;
      attention_range.add(attention[slot]);
      hidden_range.add(hidden[slot]);
    });
    score_decoded_runs(input.sequence, scores, [&](std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = attention_range.scaled(attention[first + i]) +
                 weight_ * hidden_range.scaled(hidden[first + i]);
      }
    });
  }

 private:
  float weight_;
  HiddenTrend hidden_;
  AttentionColumns attention_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_TREND_AND_ATTENTION_HPP_
