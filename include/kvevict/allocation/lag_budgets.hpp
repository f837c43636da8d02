#ifndef KVEVICT_ALLOCATION_LAG_BUDGETS_HPP_
#define KVEVICT_ALLOCATION_LAG_BUDGETS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/lag_partitions.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Each lane may hold what it holds, less what the partitions that are due lose (LagKV): a cache
/// that grows by a share of the tokens that come.
class LagBudgets {
 public:
  /// @param per_partition  tokens of a partition that stay, or a share
  LagBudgets(const LagLayout& layout, const Budget& per_partition, const CacheShape& shape)
      : layout_(layout),
        kept_(std::min(per_partition.tokens_of(layout.lag_len), layout.lag_len)),
        lane_budgets_(shape.num_lanes(MaskScope::kHead)) {}

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    for (std::size_t lane = 0; lane < sequence.num_lanes(); ++lane) {
      const std::size_t len = sequence.seq_len(lane);
      // Padding is no token, and goes with the first cut.
      const std::size_t padding =
          len == sequence.length() ? sequence.first_prompt_padding() : std::size_t{0};
      const LagPartitions parts = find_lag_partitions(sequence, lane, layout_);
      lane_budgets_[lane] = len - std::min(len, padding + parts.num * (layout_.lag_len - kept_));
    }
    return {.budget = std::size_t{0},
            .lane_budgets = std::span(lane_budgets_).first(sequence.num_lanes())};
  }

 private:
  LagLayout layout_;
  std::size_t kept_;
  mutable std::vector<std::size_t> lane_budgets_;  // memory that is kept between calls
};

/// A fixed budget of which the sinks take their part first, and then what lies behind the last
/// partition that can be scored.
class LagTailFirst {
 public:
  /// @param after_prompt  decoded tokens stay on top of the budget
  LagTailFirst(const LagLayout& layout, const Budget& budget, bool after_prompt)
      : layout_(layout), budget_(budget), after_prompt_(after_prompt) {}

  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept {
    const LagPartitions parts = find_lag_partitions(sequence, 0, layout_);
    const std::size_t sinks = layout_.num_sink_tokens;
    const std::size_t len = sequence.seq_len(0);
    const std::size_t budget = budget_.tokens_of(len + sequence.num_evicted(0));
    const std::size_t tail = parts.num > 0 ? len - parts.end() : 0;
    return {.num_sink_tokens = sinks,
            .recent_window = std::min(tail, budget - std::min(budget, sinks)),
            .after_prompt = after_prompt_};
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = budget_};
  }

 private:
  LagLayout layout_;
  Budget budget_;
  bool after_prompt_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_LAG_BUDGETS_HPP_
