#ifndef KVEVICT_ALLOCATION_ALLOCATION_HPP_
#define KVEVICT_ALLOCATION_ALLOCATION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Lanes that compete for one quota.
enum class Competition : std::uint8_t {
  kLane,   ///< each lane has its own budget (uniform)
  kLayer,  ///< the lanes of a layer share theirs
  kModel,  ///< all lanes share one
};

[[nodiscard]] constexpr auto enum_names(Competition /*type*/) noexcept {
  return std::array<std::pair<std::string_view, Competition>, 3>{{{"lane", Competition::kLane},
                                                                  {"layer", Competition::kLayer},
                                                                  {"model", Competition::kModel}}};
}

namespace detail {

/// What a budget has to have room for, in the words of an error.
inline constexpr std::string_view kRoomForWindows =
    "num_sink_tokens and recent_window, an observation window included";

}  // namespace detail

/// Who gets how much: the lanes of a pool share the sum of their budgets.
struct Allocation {
  Budget budget = Budget::tokens(0);
  Competition competition = Competition::kLane;
  std::size_t min_keep = 1;  ///< entries that each lane keeps at least where several share a pool
                             ///< or there is a threshold, protected ones counted (rule R15)
  bool protected_extra = false;  ///< protected entries come on top of the budget
  std::size_t headroom = 0;  ///< entries per lane by which a cut goes below the budget, so that the
                             ///< next one is so many steps away
  /// Candidates that score less go even where the budget has room for them, and so do those without
  /// a number for a score, but for the best min_keep of a lane; the scores are those before
  /// anything that looks at all lanes.
  float threshold = -std::numeric_limits<float>::infinity();
  /// [num_lanes] tokens that each lane may keep, in the place of `budget`, which then only says
  /// what they were made of. Borrowed until the next call on the policy.
  std::span<const std::size_t> lane_budgets = {};

  [[nodiscard]] bool has_threshold() const noexcept {
    return threshold > -std::numeric_limits<float>::infinity();
  }
  /// Cuts in batches: it is time at `tokens` + `interval` > 0 per lane, down to `tokens`.
  [[nodiscard]] static Allocation in_batches(std::size_t tokens, std::size_t interval) noexcept {
    Allocation allocation;
    allocation.budget = detail::saturating_add(tokens, interval - 1);
    allocation.headroom = interval - 1;
    return allocation;
  }

  /// Pools that `num_lanes` lanes of `shape` form.
  [[nodiscard]] std::size_t num_pools(const CacheShape& shape,
                                      std::size_t num_lanes) const noexcept {
    if (competition == Competition::kModel)
      return 1;
    return competition == Competition::kLane
               ? num_lanes
               : (num_lanes < shape.num_layers ? num_lanes : shape.num_layers);
  }
  /// Tokens that one lane may keep of `seq_len`, those that went before included.
  [[nodiscard]] std::size_t lane_budget(const CacheShape& shape, std::size_t lane,
                                        std::size_t seq_len) const noexcept {
    if (!lane_budgets.empty())
      return lane_budgets[lane];
    return budget.tokens_of(seq_len, shape.num_layers * shape.num_kv_heads);
  }
  /// What a pool gains over the sum of its lanes' budgets where a total does not divide evenly:
  /// entries that are left go to the first pools, one each.
  [[nodiscard]] std::size_t remainder(const CacheShape& shape, std::size_t num_lanes,
                                      std::size_t pool) const noexcept {
    if (!budget.is_total() || !lane_budgets.empty())
      return 0;
    const std::size_t per_lane = shape.num_layers * shape.num_kv_heads / num_lanes;
    const std::size_t left =
        (budget.count() - lane_budget(shape, 0, 0) * num_lanes * per_lane) / per_lane;
    const std::size_t pools = num_pools(shape, num_lanes);
    return left / pools + (pool < left % pools ? 1 : 0);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_ALLOCATION_HPP_
