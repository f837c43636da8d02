#ifndef KVEVICT_SCORING_REMEMBERED_SCORES_HPP_
#define KVEVICT_SCORING_REMEMBERED_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Scores of a signal that looks at each token's own rows of the cache and nothing else: worked out
/// by the selection that first meets the token, and remembered, since a row that is cached stays as
/// it is. What is remembered has the bits that it would have anew. A score that is NaN counts as
/// not known and is worked out again while no later token has one.
///
/// An engine that writes something else in the place of a row (merged keys; a cache quantised
/// later; not a rotation, where norms are what is remembered) still has the score of what was
/// there; truncate to the token and append forgets it.
///
/// State: 4 B per cached token and KV head. Lanes may be scored at a time as long as each KV head
/// belongs to one of them: no recipe with a scored_layer of its own fits.
class RememberedScores {
 public:
  explicit RememberedScores(const CacheShape& shape) : scores_(shape, MaskScope::kHead) {}

  /// Those that are not known of a KV head of a lane, its newest slots, to be filled in.
  [[nodiscard]] std::span<float> missing(const LaneScores& lane, std::size_t head) const noexcept {
    const std::span<float> scores = newest(lane, head, lane.seq_len());
    std::size_t known = scores.size();
    while (known > 0 && std::isnan(scores[known - 1]))
      --known;
    return scores.subspan(known);
  }
  /// The newest `count` of a KV head of a lane, known or not.
  [[nodiscard]] std::span<float> newest(const LaneScores& lane, std::size_t head,
                                        std::size_t count) const noexcept {
    return scores_.of(lane.layer(head), lane.kv_head(head)).last(count);
  }
  /// Makes them the lane's arrays, from the first slot that is wanted on.
  void recall(LaneScores& lane) const {
    lane.start(lane.first_wanted(), lane.seq_len(), 1);
    for (std::size_t head = 0; head < lane.num_heads(); ++head) {
      const std::span<const float> scores = newest(lane, head, lane.count());
      std::copy(scores.begin(), scores.end(), lane.array(head).begin());
    }
  }

  void append(std::size_t count) { scores_.append(count, std::numeric_limits<float>::quiet_NaN()); }
  void apply(const KeepMask& mask) { scores_.apply(mask); }
  void truncate(const Sequence& sequence) { scores_.truncate(sequence); }
  void reset() noexcept { scores_.reset(); }

 private:
  mutable SlotArray scores_;  // a selection adds what it worked out, which changes no score
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_REMEMBERED_SCORES_HPP_
