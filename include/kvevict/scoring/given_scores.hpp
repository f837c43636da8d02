#ifndef KVEVICT_SCORING_GIVEN_SCORES_HPP_
#define KVEVICT_SCORING_GIVEN_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// Scores that something outside the library worked out: [1 per KV head, seq_len]. They stay with
/// their tokens. NaN is a score like any other: it goes first and is counted (rule R4).
class GivenScores {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kScores;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  /// @param unscored  score of a token until it is given one
  explicit GivenScores(const CacheShape& shape, float unscored = 0.0F)
      : given_{SlotArray(shape, MaskScope::kHead), unscored} {}

  [[nodiscard]] auto state() noexcept { return std::tie(given_); }

  /// The latest word on the slots from `first_slot` on, all of which are there.
  void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                      std::size_t first_slot) noexcept {
    std::copy(scores.begin(), scores.end(),
              given_.scores.of(layer, kv_head).begin() + static_cast<std::ptrdiff_t>(first_slot));
  }
  /// The score of a slot, known before a selection; of masks per KV head.
  [[nodiscard]] float score_of(std::size_t lane, std::size_t slot) const noexcept {
    return given_.scores.at(lane)[slot];
  }
  /// [seq_len]
  [[nodiscard]] std::span<const float> of(std::size_t layer, std::size_t kv_head) const noexcept {
    return given_.scores.of(layer, kv_head);
  }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> given = of(scores.layer(head), scores.kv_head(head));
      std::copy(given.begin(), given.end(), scores.array(head).begin());
    }
  }

 private:
  struct Given {
    SlotArray scores;
    float unscored;

    void append(std::size_t count) { scores.append(count, unscored); }
    void apply(const KeepMask& mask) { scores.apply(mask); }
    void truncate(const Sequence& sequence) { scores.truncate(sequence); }
    void reset() noexcept { scores.reset(); }
  };

  Given given_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_GIVEN_SCORES_HPP_
