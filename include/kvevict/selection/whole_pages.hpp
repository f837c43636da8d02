#ifndef KVEVICT_SELECTION_WHOLE_PAGES_HPP_
#define KVEVICT_SELECTION_WHOLE_PAGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Pages of decoded tokens go whole, the one whose largest score is least first, until what is left
/// fits the quota; of equal ones the later page (rule R3). The newest page, which is being written,
/// goes last, and then only its oldest tokens.
struct WholePages {
  DecodePages pages = {};

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    std::size_t held = 0;
    for (const ScoredLane& lane : lanes)
      held += detail::count_bits(lane.candidates);
    while (held > quota && evict_page(lanes, input, held)) {
    }
    for (const ScoredLane& lane : lanes) {
      for (std::size_t slot = 0; held > quota && slot < lane.scores.size(); ++slot)
        held -= take(lane, slot);
      for (std::size_t w = 0; w < lane.keep.size(); ++w)
        lane.keep[w] |= lane.candidates[w];
    }
  }

 private:
  // 1 if the slot was a candidate; now it is none.
  static std::size_t take(const ScoredLane& lane, std::size_t slot) noexcept {
    if (!detail::has_bit(lane.candidates, slot))
      return 0;
    detail::clear_bit(lane.candidates, slot);
    return 1;
  }
  // Takes the candidates of one page away; false where only newest pages are left.
  template <class Input>
  bool evict_page(std::span<ScoredLane> lanes, const Input& input, std::size_t& held) const {
    float least = std::numeric_limits<float>::infinity();
    const ScoredLane* victim = nullptr;
    std::size_t victim_first = 0;
    std::size_t victim_last = 0;
    for (const ScoredLane& lane : lanes) {
      pages.for_each(input.sequence, lane.lane, [&](std::size_t first, std::size_t last) {
        float largest = -std::numeric_limits<float>::infinity();
        bool any = false;
        for (std::size_t slot = first; slot < last; ++slot) {
          if (!detail::has_bit(lane.candidates, slot))
            continue;
          any = true;
          largest = std::max(largest, lane.scores[slot]);
        }
        const bool is_newest = last == lane.scores.size();
        if (!any || is_newest || largest > least)
          return;
        least = largest;
        victim = &lane;
        victim_first = first;
        victim_last = last;
      });
    }
    for (std::size_t slot = victim_first; slot < victim_last; ++slot)
      held -= take(*victim, slot);
    return victim != nullptr;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_WHOLE_PAGES_HPP_
