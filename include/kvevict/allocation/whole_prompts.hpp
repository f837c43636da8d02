#ifndef KVEVICT_ALLOCATION_WHOLE_PROMPTS_HPP_
#define KVEVICT_ALLOCATION_WHOLE_PROMPTS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <cstddef>
#include <limits>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// The same for every step, but none inside a prompt: a prompt is cut at its end, so that what
/// stays does not depend on the chunks it came in.
struct WholePrompts {
  Allocation between;
  std::vector<std::size_t> lane_budgets = {};  ///< its lane_budgets, if there are any

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (sequence.in_prompt())
      return {.budget = std::numeric_limits<std::size_t>::max()};
    Allocation allocation = between;
    allocation.lane_budgets = lane_budgets;
    return allocation;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_WHOLE_PROMPTS_HPP_
