#ifndef KVEVICT_CORE_SCORED_LANE_HPP_
#define KVEVICT_CORE_SCORED_LANE_HPP_

#include "kvevict/config.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// One lane that takes part in a selection.
struct ScoredLane {
  std::size_t lane = 0;                 ///< its number in the mask
  std::span<float> scores;              ///< [seq_len]; read at candidates only
  std::span<std::uint64_t> candidates;  ///< bits of slots that may be chosen
  std::span<std::uint64_t> keep;        ///< bits of chosen slots; bits are only added
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SCORED_LANE_HPP_
