#ifndef KVEVICT_SELECTION_HEAD_FLOORS_HPP_
#define KVEVICT_SELECTION_HEAD_FLOORS_HPP_

#include "kvevict/allocation/apportion.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What heads that compete are left with at least.
enum class FloorRule : std::uint8_t {
  kInterpolate,  ///< between what a head wins and an equal share (the authors of AdaKV)
  kGuarantee,    ///< the best of each head stay, the rest is competed for (kvpress)
};

[[nodiscard]] constexpr auto enum_names(FloorRule /*type*/) noexcept {
  return std::array<std::pair<std::string_view, FloorRule>, 2>{
      {{"interpolate", FloorRule::kInterpolate}, {"guarantee", FloorRule::kGuarantee}}};
}

namespace detail {

/// Throws InvalidArgument, naming `where`, for a share that is none.
inline void check_floor(std::string_view where, double floor) {
  require(floor >= 0.0 && floor <= 1.0, where, "floor", floor, "must be in [0, 1]");
}

}  // namespace detail

/// Chooses for lanes that compete for a quota q, b = q / lanes on average:
///
///   interpolate  c_h of the q best of all lanes fall on lane h; it keeps its own best
///                c_h (1 - floor) + b floor
///   guarantee    each lane keeps its best max(1, floor(b floor)), none where floor is 0; what is
///                left of q goes to the best of all that are left
///
/// A lane in which nothing is protected keeps one entry in any case (rule R15).
class HeadFloors {
 public:
  /// @param official  of interpolate: each number rounded by itself, b floor down and the sum half
  ///                  to even, so that more or less than q may stay
  /// @param of_whole  of guarantee: b and what it gives count what is protected (kvpress)
  HeadFloors(FloorRule rule, double floor, bool official, bool of_whole) noexcept
      : rule_(rule), floor_(floor), official_(official), of_whole_(of_whole) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& /*input*/) const {
    protected_.resize(lanes.size());
    numbers_.resize(lanes.size());
    ideal_.resize(lanes.size());
    for (std::size_t h = 0; h < lanes.size(); ++h)
      protected_[h] = detail::count_bits(lanes[h].keep);
    if (rule_ == FloorRule::kGuarantee) {
      guarantee(lanes, quota);
    } else {
      interpolate(lanes, quota);
    }
  }

  /// How many of its best candidates lane h keeps, whatever the others win: none by interpolation.
  [[nodiscard]] std::size_t num_safe(std::span<const ScoredLane> lanes, std::size_t quota,
                                     std::size_t h) const noexcept {
    if (rule_ != FloorRule::kGuarantee || !(floor_ > 0.0))
      return 0;
    for (std::size_t i = 0; of_whole_ && i < lanes.size(); ++i)
      quota += detail::count_bits(lanes[i].keep);
    const double b = std::floor(static_cast<double>(quota) / static_cast<double>(lanes.size()));
    const auto safe = static_cast<std::size_t>(std::max(1.0, whole(b * floor_)));
    const std::size_t counted = of_whole_ ? std::min(safe, detail::count_bits(lanes[h].keep)) : 0;
    return std::min(safe - counted, detail::count_bits(lanes[h].candidates));
  }

 private:
  void interpolate(std::span<ScoredLane> lanes, std::size_t quota) const {
    const double b = static_cast<double>(quota) / static_cast<double>(lanes.size());
    const double share = official_ ? whole(std::floor(b) * floor_) : b * floor_;
    select_top_k(lanes, quota);
    for (std::size_t h = 0; h < lanes.size(); ++h) {
      const std::size_t won = detail::count_bits(lanes[h].keep) - protected_[h];
      for (std::size_t w = 0; w < lanes[h].keep.size(); ++w)
        lanes[h].keep[w] &= ~lanes[h].candidates[w];
      ideal_[h] = static_cast<double>(won) * (1.0 - floor_) + share;
      if (official_)
        numbers_[h] = static_cast<std::size_t>(round_half_even(ideal_[h]));
    }
    if (!official_) {
      apportion(
          ideal_, quota, [&](std::size_t h) { return detail::count_bits(lanes[h].candidates); },
          numbers_);
      lift(numbers_, [&](std::size_t h) { return one_if_bare(lanes, h); });
    }
    for (std::size_t h = 0; h < lanes.size(); ++h)
      select_top_k(lanes.subspan(h, 1), numbers_[h]);
  }
  void guarantee(std::span<ScoredLane> lanes, std::size_t quota) const {
    const std::size_t shared = quota;
    numbers_.assign(lanes.size(), 0);
    for (std::size_t h = 0; h < lanes.size(); ++h)
      numbers_[h] = num_safe(lanes, shared, h);
    for (std::size_t h = 0; h < lanes.size(); ++h) {
      const std::size_t least = std::min(std::max(numbers_[h], one_if_bare(lanes, h)), quota);
      select_top_k(lanes.subspan(h, 1), least);
      drop_chosen(lanes[h]);
      quota -= least;
    }
    select_top_k(lanes, quota);
  }
  [[nodiscard]] std::size_t one_if_bare(std::span<ScoredLane> lanes, std::size_t h) const noexcept {
    return protected_[h] == 0 && detail::count_bits(lanes[h].candidates) > 0 ? 1 : 0;
  }
  // Rounded down; 3 where a product of decimals is 2.9999999999999996.
  [[nodiscard]] static double whole(double x) noexcept { return std::floor(x + 1e-9); }

  FloorRule rule_;
  double floor_;
  bool official_;
  bool of_whole_;
  // Scratch memory of choose.
  mutable std::vector<std::size_t> protected_;
  mutable std::vector<std::size_t> numbers_;
  mutable std::vector<double> ideal_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_HEAD_FLOORS_HPP_
