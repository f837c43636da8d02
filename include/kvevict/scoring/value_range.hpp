#ifndef KVEVICT_SCORING_VALUE_RANGE_HPP_
#define KVEVICT_SCORING_VALUE_RANGE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// max_c v_c - min_c v_c, over the channels of a token's value: [1 per KV head, seq_len] as a
/// signal. NaN where a value is not finite. Sinks have a small one.
struct ValueRange {
  static constexpr Inputs kRequiredInputs = Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head)
      ranges(input, scores.cache(head), scores.array(head));
  }
  /// Writes it over the scores of a lane; the largest of the heads that a lane stands for.
  void rescore(const ScoreInput& input, const ScoredLane& lane) const {
    LaneScores scores(input, lane.lane, lane.scores);
    score(input, scores);
    HeadReduction{GroupReduce::kMax}.apply(input, scores);
    scores.finish();
  }

 private:
  static void ranges(const ScoreInput& input, const Lane& lane, std::span<float> out) {
    const std::size_t dim = input.sequence.shape().value_size();
    for_each_row(
        lane.values, dim, 0, out.size(), input.kernel, input.scratch.vector(LaneScores::kFirstFree),
        input.scratch.vector(LaneScores::kFirstFree + 1), [&](const float* row, std::size_t slot) {
          float low = row[0];
          float high = row[0];
          float poison = 0.0F;  // NaN once a channel is not finite
          for (std::size_t c = 0; c < dim; ++c) {
            low = std::min(low, row[c]);
            high = std::max(high, row[c]);
            poison += 0.0F * row[c];
          }
          out[slot] = high - low + poison;
        });
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_VALUE_RANGE_HPP_
