#ifndef KVEVICT_SCORING_NORMALIZE_HPP_
#define KVEVICT_SCORING_NORMALIZE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/scoring/head_means.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Sum of the finite scores whose bit is set in `slots`; without bits, of all. A score that is
/// not finite takes nothing from the others (rule R4).
[[nodiscard]] inline double finite_sum(std::span<const float> scores,
                                       std::span<const std::uint64_t> slots = {}) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!slots.empty() && !detail::has_bit(slots, i))
      continue;
    if (std::isfinite(scores[i]))
      sum += static_cast<double>(scores[i]);
  }
  return sum;
}

/// scores / sum; all scores of a sum that is 0 stay 0 as they are.
inline void divide_by_sum(double sum, std::span<float> scores) noexcept {
  if (!(sum > 0.0))
    return;
  for (float& score : scores)
    score = static_cast<float>(static_cast<double>(score) / sum);
}

/// What the scores of a layer are divided by before layers compete.
enum class LayerNormaliser : std::uint8_t {
  kNone,        ///< nothing: the ablation that does worse than no competition at all
  kCandidates,  ///< their sum over the slots that may be evicted
  kAllSlots,    ///< their sum with the window; pooling then sees the window too
};

[[nodiscard]] constexpr auto enum_names(LayerNormaliser /*type*/) noexcept {
  return std::array<std::pair<std::string_view, LayerNormaliser>, 3>{
      {{"none", LayerNormaliser::kNone},
       {"candidates", LayerNormaliser::kCandidates},
       {"all_slots", LayerNormaliser::kAllSlots}}};
}

/// A pool's scores as shares of their layer's sum, so that layers can be compared. The lanes are
/// those of whole layers in order; a pool that is less than a layer is taken for one.
struct SharesOfLayer {
  LayerNormaliser normaliser = LayerNormaliser::kCandidates;

  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    if (normaliser == LayerNormaliser::kNone)
      return;
    const std::size_t per_layer = std::min(lanes_per_layer(input.sequence), lanes.size());
    for (; lanes.size() >= per_layer && !lanes.empty(); lanes = lanes.subspan(per_layer)) {
      const std::span<ScoredLane> layer = lanes.first(per_layer);
      double sum = 0.0;
      for (const ScoredLane& lane : layer) {
        sum += normaliser == LayerNormaliser::kAllSlots ? finite_sum(lane.scores)
                                                        : finite_sum(lane.scores, lane.candidates);
      }
      for (const ScoredLane& lane : layer)
        divide_by_sum(sum, lane.scores);
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_NORMALIZE_HPP_
