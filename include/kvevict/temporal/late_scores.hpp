#ifndef KVEVICT_TEMPORAL_LATE_SCORES_HPP_
#define KVEVICT_TEMPORAL_LATE_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Scores of a cache with one lane that are frozen at an eviction instead of at birth: selection
/// proposes them and the mask that follows makes them final, whoever made it: a projection, an
/// engine that changes the selection's mask or has one of its own. A selection that no mask follows
/// before the cache changes (append, truncate, reset) leaves no trace (rule R11), and a mask that
/// no selection comes before freezes nothing.
class LateScores {
 public:
  explicit LateScores(const CacheShape& shape) : scores_(shape, MaskScope::kModel) {}

  [[nodiscard]] bool is_frozen(std::size_t slot) const noexcept {
    return !std::isnan(scores_.at(0)[slot]);
  }
  /// [seq_len], by slot; NaN where not frozen yet.
  [[nodiscard]] std::span<const float> values() const noexcept { return scores_.at(0); }

  /// Starts a selection's proposals over.
  void clear_proposals() const { proposals_.assign(values().size(), kNone); }
  void propose(std::size_t slot, float score) const noexcept { proposals_[slot] = score; }

  void append(std::size_t count) {
    scores_.append(count, kNone);
    proposals_.clear();
  }
  void apply(const KeepMask& mask) {
    const std::span<float> scores = scores_.at(0);
    for (std::size_t slot = 0; slot < std::min(scores.size(), proposals_.size()); ++slot) {
      if (!is_frozen(slot))
        scores[slot] = proposals_[slot];
    }
    proposals_.clear();
    scores_.apply(mask);
  }
  void truncate(const Sequence& sequence) {
    scores_.truncate(sequence);
    proposals_.clear();
  }
  void reset() noexcept {
    scores_.reset();
    proposals_.clear();
  }

 private:
  static constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

  SlotArray scores_;
  mutable std::vector<float> proposals_;  // of the newest selection; scratch until apply
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_LATE_SCORES_HPP_
