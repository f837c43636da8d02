#ifndef KVEVICT_SCORING_BLEND_HPP_
#define KVEVICT_SCORING_BLEND_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/chunk_attention.hpp"
#include "kvevict/scoring/leverage.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Mean and deviation (divisor n - 1) of numbers that come one by one; what is not finite is left
/// out. A deviation of 0 makes every z-score 0.
class ZScore {
 public:
  void add(float x) noexcept {
    if (!std::isfinite(x))
      return;
    const double distance = static_cast<double>(x) - mean_;
    mean_ += distance / static_cast<double>(++count_);
    squares_ += distance * (static_cast<double>(x) - mean_);
  }
  [[nodiscard]] float of(float x) const noexcept {
    const double deviation =
        count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : 0.0;
    if (!(deviation > 0.0))
      return std::isfinite(x) ? 0.0F : x;
    return static_cast<float>((static_cast<double>(x) - mean_) / deviation);
  }

 private:
  std::size_t count_ = 0;
  double mean_ = 0.0;
  double squares_ = 0.0;
};

/// score = z(score) + blending z(leverage), z over the slots between the ends of the prompt of all
/// lanes of the pool, which are KV heads (Compactor).
struct BlendWithLeverage {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr std::size_t kBuffer = KeyLeverage::kLast + 1;

  KeyLeverage leverage;
  std::size_t num_sink_tokens = 0;
  std::size_t num_last_tokens = 0;
  double blending = -1.0;  ///< below 0: the share that the budget takes away
  Budget budget = Budget::tokens(0);

  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    const CacheShape& shape = input.sequence.shape();
    std::size_t total = 0;
    for (const ScoredLane& lane : lanes)
      total += lane.scores.size();
    std::span<float> leverages = input.scratch.floats(kBuffer, total);
    ZScore of_scores;
    ZScore of_leverages;
    // Twice over the lanes: to measure, and to blend.
    for (std::size_t i = 0, start = 0; i < lanes.size(); start += lanes[i++].scores.size()) {
      const auto [cache, first, last] = find(input, shape, lanes[i].lane);
      leverage.apply(input, cache, lanes[i].lane, shape.first_head(MaskScope::kHead, lanes[i].lane),
                     first, leverages.subspan(start + first, last - first));
      for (std::size_t slot = first; slot < last; ++slot) {
        if (!cache.has_token(slot))
          continue;
        of_scores.add(lanes[i].scores[slot]);
        of_leverages.add(leverages[start + slot]);
      }
    }
    for (std::size_t i = 0, start = 0; i < lanes.size(); start += lanes[i++].scores.size()) {
      const auto [cache, first, last] = find(input, shape, lanes[i].lane);
      const auto weight = static_cast<float>(blending_of(input, lanes[i].lane, cache));
      for (std::size_t slot = first; slot < last; ++slot) {
        float& score = lanes[i].scores[slot];
        score = of_scores.of(score) + weight * of_leverages.of(leverages[start + slot]);
      }
    }
  }

 private:
  struct Range {
    Lane cache;
    std::size_t first;
    std::size_t last;
  };
  [[nodiscard]] Range find(const ScoreInput& input, const CacheShape& shape,
                           std::size_t lane) const {
    const Lane cache = input.view.lane(shape.first_layer(MaskScope::kHead, lane),
                                       shape.first_head(MaskScope::kHead, lane));
    const auto [first, last] =
        slots_between(input.sequence, lane, cache.valid, num_sink_tokens, num_last_tokens);
    return {cache, first, last};
  }
  [[nodiscard]] double blending_of(const ScoreInput& input, std::size_t lane,
                                   const Lane& cache) const noexcept {
    if (blending >= 0.0)
      return blending;
    std::size_t len = input.sequence.seq_len(lane);
    for (std::size_t slot = cache.valid.empty() ? 0 : len; slot > 0; --slot)
      len -= cache.has_token(slot - 1) ? 0 : 1;
    len += input.sequence.num_evicted(lane);
    const CacheShape& shape = input.sequence.shape();
    const std::size_t kept = budget.tokens_of(len, shape.num_lanes(MaskScope::kHead));
    return 1.0 - static_cast<double>(std::min(kept, len)) /
                     static_cast<double>(std::max<std::size_t>(1, len));
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_BLEND_HPP_
