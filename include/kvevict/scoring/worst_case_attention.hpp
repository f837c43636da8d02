#ifndef KVEVICT_SCORING_WORST_CASE_ATTENTION_HPP_
#define KVEVICT_SCORING_WORST_CASE_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/critical_scores.hpp"
#include "kvevict/scoring/head_means.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// The parts of DefensiveKV that are its own.

/// The largest attention that a slot of the prefix has in any row of the window and any query head
/// of the group, [1 per KV head, prefix], after each row was pooled and scaled to the mass it had:
///
///   score(i) = max over h, t of pool(a[h, t])(i) sum(a[h, t]) / sum(pool(a[h, t])).
///
/// Beside it the means of the rows as they came. A later prompt is a fresh window.
class WorstCaseAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kWindow;

  /// Throws InvalidArgument, naming `where`.
  WorstCaseAttention(std::string_view where, const CacheShape& shape, std::size_t window,
                     const Pooling& pooling)
      : window_(window),
        pooling_(pooling),
        largest_(shape, MaskScope::kHead),
        sums_(shape, MaskScope::kHead) {
    detail::require(window > 0, where, "observation_window", window, "must be > 0");
    pooling.check(where);
  }

  [[nodiscard]] auto state() noexcept { return std::tie(largest_, sums_); }

  void begin(const Sequence& /*sequence*/) noexcept {
    largest_.fill(0.0F);
    sums_.fill(0.0F);
  }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(window_);
  }
  /// Entries that are not finite count as 0 (rule R19); returns how many they were.
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    const std::size_t past = past_of_window(sequence, rows.layer, rows.kv_head, window_);
    // What is known of a first prompt by now is what comes before its first token.
    const std::size_t padding = sequence.prompt().first > 0
                                    ? 0
                                    : sequence.padding_left(sequence.shape().lane_of(
                                          sequence.scope(), rows.layer, rows.kv_head));
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t end = std::min(past, rows.visible(r));
      const std::size_t first = std::min(padding, end);
      const std::size_t n = end - first;
      row_.resize(std::max(row_.size(), n));
      pooled_.resize(std::max(pooled_.size(), n));
      const std::span<float> row = std::span(row_).first(n);
      const std::span<float> pooled = std::span(pooled_).first(n);
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        std::fill(row.begin(), row.end(), 0.0F);
        non_finite += kernel.add(1.0F, rows.row(h, r) + first, n, row.data());
        pooling_.apply(row, kernel, pooled);
        const double mass = kernel.sum(pooled.data(), n);
        if (!(mass > 0.0))
          continue;
        kernel.take_max(static_cast<float>(kernel.sum(row.data(), n) / mass), pooled.data(), n,
                        largest_.of(rows.layer, rows.kv_head).data() + first);
        kernel.add(1.0F / static_cast<float>(rows.group_size), row.data(), n,
                   sums_.of(rows.layer, rows.kv_head).data() + first);
      }
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const ObservationWindow window =
        find_observation_window(input.sequence, scores.lane(), window_, scores.cache().valid);
    scores.start(window.first, window.prefix_end, 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> column =
          largest_.of(scores.layer(head), scores.kv_head(head)).subspan(window.first);
      std::copy_n(column.begin(), scores.count(), scores.array(head).begin());
    }
  }

  /// The sum over the window's rows of the mean over the group, [seq_len]; 0 in the window itself.
  [[nodiscard]] std::span<const float> row_sums(std::size_t layer,
                                                std::size_t kv_head) const noexcept {
    return sums_.of(layer, kv_head);
  }
  [[nodiscard]] std::size_t window() const noexcept { return window_; }

 private:
  std::size_t window_;
  Pooling pooling_;
  SlotArray largest_;
  SlotArray sums_;
  // Memory that is kept between calls.
  std::vector<float> row_;
  std::vector<float> pooled_;
};

/// Every score times |v W_O| over its mean over the KV heads of the layer for the same token. For
/// pools of whole layers.
struct TimesNormShare {
  static constexpr Inputs kRequiredInputs = Inputs::kValues | Inputs::kOutputProjection;

  ValueFactor norm = ValueFactor::kProjectedL1;
  std::shared_ptr<const OutputProjection> projection = nullptr;
  mutable std::vector<std::vector<float>> norms = {};  ///< memory that is kept between calls

  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    const std::size_t heads = lanes_per_layer(input.sequence);
    norms.resize(std::max(norms.size(), heads));
    for (std::size_t first = 0; first + heads <= lanes.size(); first += heads) {
      const std::span<ScoredLane> layer = lanes.subspan(first, heads);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::span<const float> of_lane =
            lane_value_norms(input, layer[h].lane, norm, projection.get());
        norms[h].assign(of_lane.begin(), of_lane.end());
      }
      const std::span<const float> means = means_over_lanes(
          input.sequence, layer, [&](std::size_t h) { return std::span<const float>(norms[h]); },
          input.scratch);
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t slot = 0; slot < norms[h].size(); ++slot) {
          const float mean =
              means[static_cast<std::size_t>(input.sequence.position(layer[h].lane, slot))];
          // Where no head's value has a size, none is larger than the others.
          layer[h].scores[slot] *= mean > 0.0F ? norms[h][slot] / mean : 1.0F;
        }
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_WORST_CASE_ATTENTION_HPP_
