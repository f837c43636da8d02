#ifndef KVEVICT_SELECTION_RESERVE_HPP_
#define KVEVICT_SELECTION_RESERVE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Some places of every lane go to the best by another score, whatever their own; the best by their
/// own scores fill the rest. first.rescore(input, lane) writes the other score.
template <class First>
class Reserve {
 public:
  static constexpr Inputs kRequiredInputs = First::kRequiredInputs;

  /// @param count  places per lane, as far as the quota goes
  explicit Reserve(std::size_t count, First first = {}) : count_(count), first_(first) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      ScoredLane& lane = lanes[l];
      const std::size_t want =
          std::min({count_, quota / (lanes.size() - l), detail::count_bits(lane.candidates)});
      if (want == 0)
        continue;
      own_.assign(lane.scores.begin(), lane.scores.end());
      first_.rescore(input, lane);
      select_top_k(lanes.subspan(l, 1), want);
      std::copy(own_.begin(), own_.end(), lane.scores.begin());
      drop_chosen(lane);
      quota -= want;
    }
    select_top_k(lanes, quota);
  }

 private:
  std::size_t count_;
  First first_;
  mutable std::vector<float> own_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_RESERVE_HPP_
