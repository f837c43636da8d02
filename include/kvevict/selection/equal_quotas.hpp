#ifndef KVEVICT_SELECTION_EQUAL_QUOTAS_HPP_
#define KVEVICT_SELECTION_EQUAL_QUOTAS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The lanes of a pool have the same quota each, for policies whose lanes are compared but do not
/// compete. What a lane cannot use goes to the others, the earlier first.
struct EqualQuotas {
  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& /*input*/) const {
    for (std::size_t before = 0; quota > 0 && quota != before;) {
      before = quota;
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        ScoredLane& lane = lanes[i];
        const std::size_t others = lanes.size() - i;
        const std::size_t want =
            std::min(detail::count_bits(lane.candidates), (quota + others - 1) / others);
        select_top_k({&lane, 1}, want);
        drop_chosen(lane);
        quota -= want;
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_EQUAL_QUOTAS_HPP_
