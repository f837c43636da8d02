#ifndef KVEVICT_CORE_REROTATION_HPP_
#define KVEVICT_CORE_REROTATION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// Where a kept token goes if positions are made contiguous again.
struct Rerotation {
  std::size_t slot = 0;       ///< in the cache before the mask is applied
  Position position = 0;      ///< in the text
  Position new_position = 0;  ///< its index among the kept
  /// new_position - position: what its key is turned by, starting from the key as it was cached
  /// at `position`. Keys that were turned before need the difference to their last shift.
  Position shift = 0;
};

/// Calls visit(Rerotation) for every slot of `lane` that `mask` keeps, ascending. The mask must
/// not have been applied to `sequence` yet. The library never rotates keys itself: an engine
/// whose keys are quantised may be unable to.
template <class Visit>
void for_each_rerotation(const Sequence& sequence, const KeepMask& mask, std::size_t lane,
                         Visit&& visit) {
  Position next = 0;
  mask.for_each_lane_run(
      sequence.mask_lane(mask, lane), true, [&](std::size_t first, std::size_t last) {
        for (; first < last; ++first, ++next) {
          const Position position = sequence.position(lane, first);
          visit(Rerotation{first, position, next, static_cast<Position>(next - position)});
        }
      });
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_REROTATION_HPP_
