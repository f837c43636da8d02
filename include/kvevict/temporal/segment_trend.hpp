#ifndef KVEVICT_TEMPORAL_SEGMENT_TREND_HPP_
#define KVEVICT_TEMPORAL_SEGMENT_TREND_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/token_variance.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/hidden_trend.hpp"
#include "kvevict/temporal/step_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

// What makes a segment important: importance(input, slots) of its candidate slots, higher = more,
// and what an engine has to hand over for it.

/// Low entropy of the newest token's attention inside the segment, the row averaged over the query
/// heads of the last four layers. A segment without any attention counts as evenly attended.
class AttentionEntropy {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  explicit AttentionEntropy(const CacheShape& shape) : shape_(shape), row_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(row_); }
  [[nodiscard]] bool wants_layer(std::size_t layer) const noexcept {
    return layer + kNumLayers >= shape_.num_layers;
  }
  std::size_t observe_rows(const GroupRows& rows, const kernels::KernelSet& kernel) noexcept {
    const std::size_t layers = std::min(kNumLayers, shape_.num_layers);
    return add_rows(rows, 1.0F / static_cast<float>(layers * shape_.num_q_heads), kernel,
                    row_.values());
  }
  [[nodiscard]] float importance(const ScoreInput& /*input*/,
                                 std::span<const std::uint32_t> slots) const noexcept {
    double sum = 0.0;
    for (const std::uint32_t slot : slots)
      sum += static_cast<double>(row_.values()[slot]);
    if (!(sum > 0.0))
      return -std::log(static_cast<float>(slots.size()));
    double entropy = 0.0;
    for (const std::uint32_t slot : slots) {
      const double share = static_cast<double>(row_.values()[slot]) / sum;
      if (share > 0.0)
        entropy -= share * std::log(share);
    }
    return static_cast<float>(-entropy);
  }

 private:
  static constexpr std::size_t kNumLayers = 4;

  CacheShape shape_;
  StepSum row_;
};

/// High mean variance of keys over channels (token_variances).
class KeyVariance {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  explicit KeyVariance(const CacheShape& /*shape*/) noexcept {}

  [[nodiscard]] std::tuple<> state() noexcept { return {}; }
  [[nodiscard]] float importance(const ScoreInput& input,
                                 std::span<const std::uint32_t> slots) const {
    const std::size_t first = slots.front();
    const std::span<float> variances = input.scratch.floats(2, slots.back() + 1 - first);
    token_variances(input.view, KvPart::kKeys, first, input.kernel, input.scratch, variances);
    double sum = 0.0;
    for (const std::uint32_t slot : slots)
      sum += static_cast<double>(variances[slot - first]);
    return static_cast<float>(sum / static_cast<double>(slots.size()));
  }
};

/// A HiddenTrend that also says how important a segment of its tokens is, for CappedSegments.
/// Attention, where the importance is of it, is wanted in steps that hold more than `budget` tokens
/// alone.
template <class Importance>
class SegmentTrend {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kHiddenStates | Importance::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Importance::kAttentionUse;
  static constexpr MaskScope kScope = MaskScope::kModel;

  SegmentTrend(const CacheShape& shape, HiddenTrend hidden, std::size_t budget)
      : budget_(budget), hidden_(std::move(hidden)), importance_(shape) {}

  [[nodiscard]] auto state() noexcept {
    return std::tuple_cat(hidden_.state(), importance_.state());
  }

  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept {
    return hidden_.wants_hidden(layer);
  }
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) {
    return hidden_.observe_hidden(layer, rows, sequence, kernel);
  }
  /// The newest row, and that only in a step that cuts.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    const bool cuts = decoded_in_step(sequence) > 0 && sequence.seq_len(0) > budget_;
    return cuts && importance_.wants_layer(layer) ? 1 : 0;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) noexcept {
    return importance_.observe_rows(rows, kernel);
  }

  void score(const ScoreInput& input, LaneScores& scores) const { hidden_.score(input, scores); }
  /// Of the segment of these slots, ascending.
  [[nodiscard]] float importance(const ScoreInput& input,
                                 std::span<const std::uint32_t> slots) const {
    return importance_.importance(input, slots);
  }

 private:
  std::size_t budget_;
  HiddenTrend hidden_;
  Importance importance_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_SEGMENT_TREND_HPP_
