#ifndef KVEVICT_SCORING_HEAD_MEANS_HPP_
#define KVEVICT_SCORING_HEAD_MEANS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// By position, [length()]: the mean over those of a layer's `lanes` that still hold the token of
/// values(index of the lane)[slot]. Values that are not finite are left out; 0 where nothing is
/// left. Lies in scratch buffer 7; buffer 6 is used too.
template <class Values>
[[nodiscard]] std::span<const float> means_over_lanes(const Sequence& sequence,
                                                      std::span<const ScoredLane> lanes,
                                                      Values&& values, Scratch& scratch) {
  const std::span<float> counts = scratch.floats(6, sequence.length());
  const std::span<float> means = scratch.floats(7, sequence.length());
  std::fill(counts.begin(), counts.end(), 0.0F);
  std::fill(means.begin(), means.end(), 0.0F);
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const std::span<const float> own = values(l);
    for (std::size_t slot = 0; slot < own.size(); ++slot) {
      if (!std::isfinite(own[slot]))
        continue;
      const auto position = static_cast<std::size_t>(sequence.position(lanes[l].lane, slot));
      means[position] += own[slot];
      counts[position] += 1.0F;
    }
  }
  for (std::size_t i = 0; i < means.size(); ++i)
    means[i] /= std::max(counts[i], 1.0F);
  return means;
}

/// Adds to every score the mean of its layer's KV heads for the same token, so that heads agree
/// more than they would (KVCompose). For pools of whole layers.
struct AddHeadMean {
  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    const std::size_t heads = lanes_per_layer(input.sequence);
    for (std::size_t first = 0; first + heads <= lanes.size(); first += heads) {
      const std::span<ScoredLane> layer = lanes.subspan(first, heads);
      const std::span<const float> means = means_over_lanes(
          input.sequence, layer, [&](std::size_t l) { return layer[l].scores; }, input.scratch);
      for (const ScoredLane& lane : layer) {
        for (std::size_t slot = 0; slot < lane.scores.size(); ++slot) {
          lane.scores[slot] +=
              means[static_cast<std::size_t>(input.sequence.position(lane.lane, slot))];
        }
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_HEAD_MEANS_HPP_
