#ifndef KVEVICT_SELECTION_SEGMENT_REPRESENTATIVES_HPP_
#define KVEVICT_SELECTION_SEGMENT_REPRESENTATIVES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Of each segment as many tokens stay as its share says (ThoughtSegments::shares): of the one that
/// is being written the newest, of the others those that clusters.choose(input, lane, slots, count,
/// take) takes.
template <class Clusters>
class SegmentRepresentatives {
 public:
  static constexpr Inputs kRequiredInputs = Clusters::kRequiredInputs;

  SegmentRepresentatives(std::size_t budget, Clusters clusters)
      : budget_(budget), clusters_(std::move(clusters)) {}

  template <class Input, class Segments>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Segments& segments) const {
    for (ScoredLane& lane : lanes) {
      detail::SlotTaker taker(lane.keep, lane.candidates);
      for (const auto& share : segments.shares(input.sequence, lane.lane, budget_)) {
        // Pinned tokens are part of the share.
        const std::size_t held = detail::count_bits(lane.keep, share.first, share.last);
        find_candidates(lane, share.first, share.last);
        const std::size_t count =
            std::min({share.count - std::min(share.count, held), slots_.size(), quota});
        quota -= count;
        if (count == slots_.size()) {
          taker.take(share.first, share.last);
        } else if (share.open) {
          for (std::size_t i = slots_.size() - count; i < slots_.size(); ++i)
            taker.take(slots_[i], slots_[i] + 1);
        } else if (count > 0) {
          clusters_.choose(input, lane.lane, slots_, count,
                           [&](std::size_t slot) { taker.take(slot, slot + 1); });
        }
      }
    }
  }

 private:
  void find_candidates(const ScoredLane& lane, std::size_t first, std::size_t last) const {
    slots_.clear();
    for (std::size_t slot = first; slot < last; ++slot) {
      if (detail::has_bit(lane.candidates, slot))
        slots_.push_back(static_cast<std::uint32_t>(slot));
    }
  }

  std::size_t budget_;
  Clusters clusters_;
  mutable std::vector<std::uint32_t> slots_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_SEGMENT_REPRESENTATIVES_HPP_
