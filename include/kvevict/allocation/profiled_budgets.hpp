#ifndef KVEVICT_ALLOCATION_PROFILED_BUDGETS_HPP_
#define KVEVICT_ALLOCATION_PROFILED_BUDGETS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <cstddef>
#include <limits>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Each KV head has room for what its profile says that it keeps (HeadProfile), and for what is
/// pinned on top of it; for everything inside prompts and while there is no profile.
class ProfiledBudgets {
 public:
  explicit ProfiledBudgets(const CacheShape& shape)
      : budgets_(shape.num_layers * shape.num_kv_heads) {}

  template <class Profile>
  [[nodiscard]] Allocation allocation(const Sequence& sequence,
                                      const Profile& profile) const noexcept {
    if (sequence.in_prompt() || !profile.profiled())
      return {.budget = kAll, .protected_extra = true};
    for (std::size_t lane = 0; lane < budgets_.size(); ++lane) {
      budgets_[lane] =
          profile.keeps_all(lane)
              ? kAll
              : profile.num_labelled(lane) + profile.num_heavy(lane) + profile.num_recent(lane);
    }
    return {.budget = kAll, .protected_extra = true, .lane_budgets = budgets_};
  }

 private:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  mutable std::vector<std::size_t> budgets_;  // by lane; filled by each allocation
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_PROFILED_BUDGETS_HPP_
