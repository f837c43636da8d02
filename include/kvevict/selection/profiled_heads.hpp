#ifndef KVEVICT_SELECTION_PROFILED_HEADS_HPP_
#define KVEVICT_SELECTION_PROFILED_HEADS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/top_k.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// What a head keeps by its profile (HeadProfile): tokens with the labels it keeps, its newest
/// ones, and what is left of the quota goes to the best of the others, if it keeps heavy ones.
struct ProfiledHeads {
  template <class Input, class Profile>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Profile& profile) const {
    for (ScoredLane& lane : lanes) {
      detail::SlotTaker taker(lane.keep, lane.candidates);
      for (std::size_t slot = 0; slot < lane.scores.size() && quota > 0; ++slot) {
        const auto position = static_cast<std::size_t>(input.sequence.position(lane.lane, slot));
        if (profile.keeps_label_of(lane.lane, position))
          quota -= taker.take(slot, slot + 1);
      }
      quota -= taker.take_newest(lane.scores.size(), profile.num_recent(lane.lane), quota);
      if (profile.num_heavy(lane.lane) == 0)
        continue;
      const std::size_t before = detail::count_bits(lane.keep);
      select_top_k({&lane, 1}, quota);
      quota -= detail::count_bits(lane.keep) - before;
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_PROFILED_HEADS_HPP_
