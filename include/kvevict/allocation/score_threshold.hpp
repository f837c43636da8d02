#ifndef KVEVICT_ALLOCATION_SCORE_THRESHOLD_HPP_
#define KVEVICT_ALLOCATION_SCORE_THRESHOLD_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How many entries each KV head holds whose score is at least a threshold, or that are protected:
/// as budgets, so that the threshold alone says what stays; a budget may cap it, and a head keeps
/// min_keep however low they are. For masks per
/// KV head and signals whose scores exist before a mask is wanted: signal.of(layer, kv_head).
/// Padding is taken to come first. Without a threshold it is the plain allocation.
class ScoreThreshold {
 public:
  static constexpr double kNone = -std::numeric_limits<double>::infinity();

  /// @param plain       who gets how much, beside the threshold
  /// @param threshold   kNone: no threshold
  /// @param protection  what stays whatever its score
  ScoreThreshold(const CacheShape& shape, const Allocation& plain, double threshold,
                 const Protection& protection)
      : shape_(shape),
        plain_(plain),
        threshold_(threshold),
        protection_(protection),
        budgets_(shape.num_lanes(MaskScope::kHead)) {}

  /// O(slots) with a threshold.
  template <class Signal>
  [[nodiscard]] Allocation allocation(const Sequence& sequence,
                                      const Signal& signal) const noexcept {
    if (threshold_ == kNone)
      return plain_;
    for (std::size_t lane = 0; lane < budgets_.size(); ++lane) {
      const std::size_t len =
          protection_.after_prompt
              ? sequence.slots_before(lane, static_cast<std::size_t>(sequence.prompt().last))
              : sequence.seq_len(lane);
      const std::span<const float> scores =
          signal.of(lane / shape_.num_kv_heads, lane % shape_.num_kv_heads);
      const std::size_t padding = std::min(detail::padding_left(sequence, lane), len);
      std::size_t count = 0;
      for (std::size_t slot = padding; slot < len; ++slot)
        count += stays(sequence, lane, slot, padding, len, scores) ? 1 : 0;
      count = std::max(count, std::min(plain_.min_keep, len - padding));
      budgets_[lane] =
          std::min(count, plain_.lane_budget(shape_, lane, len + sequence.num_evicted(lane)));
    }
    return {.budget = plain_.budget, .min_keep = plain_.min_keep, .lane_budgets = budgets_};
  }

 private:
  [[nodiscard]] bool stays(const Sequence& sequence, std::size_t lane, std::size_t slot,
                           std::size_t padding, std::size_t len,
                           std::span<const float> scores) const noexcept {
    if (static_cast<double>(scores[slot]) >= threshold_)
      return true;
    if (slot - padding < protection_.num_sink_tokens || len - slot <= protection_.recent_window)
      return true;
    const Position position = sequence.position(lane, slot);
    return std::any_of(
        sequence.pinned().begin(), sequence.pinned().end(),
        [&](const PositionSpan& span) { return position >= span.first && position < span.last; });
  }

  CacheShape shape_;
  Allocation plain_;
  double threshold_;
  Protection protection_;
  mutable std::vector<std::size_t> budgets_;  // filled by each call, from nothing but its arguments
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_SCORE_THRESHOLD_HPP_
