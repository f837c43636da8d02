#ifndef KVEVICT_SCORING_POOLED_ATTENTION_HPP_
#define KVEVICT_SCORING_POOLED_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/forward_max.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_counts.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/step_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

struct PooledAttentionOptions {
  std::size_t window = 8;      ///< last tokens of a prompt, whose queries count
  std::size_t pool_width = 7;  ///< of the forward maximum; 1: none
  bool lifetime_mean = true;   ///< divide by the number of queries that could see the token
};

/// Attention summed over time after a forward maximum, per layer, one array for all heads:
///
///   s += forwardmax( sum over a prompt's window of x ), then s += forwardmax( x ) for each decoded
///   token, x being the row's mean over all query heads.
///
/// [1, seq_len]. The window is summed before its maximum is taken, once the prompt is complete, so
/// that chunks do not matter.
class PooledAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  /// Throws InvalidArgument, naming `where`.
  PooledAttention(std::string_view where, const CacheShape& shape,
                  const PooledAttentionOptions& options)
      : options_(options),
        share_(1.0F / static_cast<float>(shape.num_q_heads)),
        sums_(shape, MaskScope::kLayer),
        counts_(shape, MaskScope::kLayer),
        window_(shape, MaskScope::kLayer) {
    detail::require(options.window > 0, where, "observation_window", options.window, "must be > 0");
    detail::require(options.pool_width > 0, where, "pool_width", options.pool_width, "must be > 0");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(sums_, counts_, window_, rows_); }

  void begin(const Sequence& /*sequence*/) noexcept { window_.fill(0.0F); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.num_decoded() > 0 ? std::numeric_limits<std::size_t>::max()
                                      : sequence.step_rows_in_window(options_.window);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    if (rows.kv_head == 0)
      count_rows(rows, counts_.at(rows.layer));
    if (sequence.num_decoded() > 0) {
      if (rows_.empty())
        rows_.start(sequence.step_len(), 1, 1, sequence.seq_len(rows.layer, rows.kv_head));
      const std::size_t first = sequence.length() - rows_.num_tokens();
      for (std::size_t r = 0; r < rows.num_rows; ++r)
        rows_.add(rows, r, rows.first_position + r - first, 0, 0, share_, kernel);
      return 0;  // counted when the layer is complete
    }
    return add_rows(rows, share_, kernel, window_.at(rows.layer));
  }
  std::size_t end_layer(std::size_t layer, const Sequence& /*sequence*/,
                        const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t token = 0; token < rows_.num_tokens(); ++token) {
      const std::span<float> row = rows_.at(token, 0, 0);
      non_finite += static_cast<std::size_t>(
          std::count_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); }));
      forward_max(options_.pool_width, row);
      kernel.add(1.0F, row.data(), row.size(), sums_.at(layer).data());
    }
    rows_.clear();
    return non_finite;
  }
  void end_prefill(const ScoreInput& input) noexcept {
    for (std::size_t layer = 0; layer < input.sequence.shape().num_layers; ++layer) {
      const std::span<float> window = window_.at(layer);
      forward_max(options_.pool_width, window);
      input.kernel.add(1.0F, window.data(), window.size(), sums_.at(layer).data());
    }
    window_.fill(0.0F);
  }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    const std::span<const float> sums = sums_.at(scores.layer());
    const std::span<const float> counts = counts_.at(scores.layer());
    for (std::size_t slot = 0; slot < sums.size(); ++slot) {
      scores.array(0)[slot] =
          options_.lifetime_mean ? sums[slot] / std::max(counts[slot], 1.0F) : sums[slot];
    }
    scores.keep_one();
  }

 private:
  PooledAttentionOptions options_;
  float share_;
  SlotArray sums_;
  SlotArray counts_;  // rows that could see the slot
  SlotArray window_;  // of the prompt that is being fed
  StepRows rows_;     // of the layer that is being handed over
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_POOLED_ATTENTION_HPP_
