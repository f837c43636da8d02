#ifndef KVEVICT_ALLOCATION_SEGMENT_SHARES_HPP_
#define KVEVICT_ALLOCATION_SEGMENT_SHARES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// As many tokens in every lane as prompts have and a scheduler of segments leaves of the rest
/// (ThoughtSegments::shares), at most `budget`.
class SegmentShares {
 public:
  SegmentShares(std::size_t budget, std::size_t num_lanes) : budget_(budget), budgets_(num_lanes) {}

  template <class Segments>
  [[nodiscard]] Allocation allocation(const Sequence& sequence, const Segments& segments) const {
    std::size_t total = sequence.seq_len(0);
    for (const auto& share : segments.shares(sequence, 0, budget_))
      total -= share.last - share.first - share.count;
    std::fill(budgets_.begin(), budgets_.end(), total);
    return {.budget = budget_, .lane_budgets = budgets_};
  }

 private:
  std::size_t budget_;
  mutable std::vector<std::size_t> budgets_;  // by lane; filled by each allocation
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_SEGMENT_SHARES_HPP_
