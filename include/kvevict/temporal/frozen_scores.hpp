#ifndef KVEVICT_TEMPORAL_FROZEN_SCORES_HPP_
#define KVEVICT_TEMPORAL_FROZEN_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// One score per slot of a cache with one lane, given when the token arrives and never changed.
/// A token whose score never came has -infinity: it goes first, and selection counts it as not
/// finite, so a signal that the engine forgot is visible.
class FrozenScores {
 public:
  explicit FrozenScores(const CacheShape& shape) : scores_(shape, MaskScope::kModel) {}

  /// Scores of the newest tokens, oldest of them first.
  void set_newest(std::span<const float> scores) noexcept {
    std::copy(scores.begin(), scores.end(), scores_.at(0).last(scores.size()).begin());
  }
  /// [seq_len], by slot.
  [[nodiscard]] std::span<const float> values() const noexcept { return scores_.at(0); }
  /// Makes those of decoded tokens a lane's scores.
  void load(const Sequence& sequence, LaneScores& scores) const {
    score_decoded_runs(sequence, scores, [&](std::size_t first, std::span<float> out) {
      std::copy_n(values().begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
    });
  }

  void append(std::size_t count) { scores_.append(count, -std::numeric_limits<float>::infinity()); }
  void apply(const KeepMask& mask) { scores_.apply(mask); }
  void truncate(const Sequence& sequence) { scores_.truncate(sequence); }
  void reset() noexcept { scores_.reset(); }

 private:
  SlotArray scores_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_FROZEN_SCORES_HPP_
