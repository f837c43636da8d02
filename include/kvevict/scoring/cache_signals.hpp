#ifndef KVEVICT_SCORING_CACHE_SIGNALS_HPP_
#define KVEVICT_SCORING_CACHE_SIGNALS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/remembered_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Signals that are read off the cache when a mask is wanted: [1 per KV head, seq_len]. They need no
// attention.

/// -|k|, which rotary embedding does not change: keys of small norm draw attention. Each key is
/// read once (RememberedScores).
class KeyNorm {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  explicit KeyNorm(const CacheShape& shape) : known_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(known_); }

  void score(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t len = scores.seq_len();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<float> missing = known_.missing(scores, head);
      row_norms(scores.cache(head).keys, input.sequence.shape().head_dim, len - missing.size(), len,
                input.kernel, input.scratch.vector(LaneScores::kFirstFree), missing);
      input.kernel.scale(-1.0F, missing.size(), missing.data());
    }
    known_.recall(scores);
  }

 private:
  RememberedScores known_;
};

/// |k_h - mean over the lane's KV heads of k|: what the heads of a layer do not have in common
/// about a token. For lanes that stand for several heads, whose slots hold the same tokens; of a
/// lane of several layers each is taken by itself. Rotary embedding turns all heads of a token
/// alike and changes nothing. With one KV head it is 0. Each key is read once (RememberedScores).
class KeyDeviationFromHeads {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  explicit KeyDeviationFromHeads(const CacheShape& shape) : known_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(known_); }

  void score(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t num_heads = std::min(input.sequence.shape().num_kv_heads, scores.num_heads());
    for (std::size_t first = 0; first < scores.num_heads(); first += num_heads) {
      std::size_t num_missing = 0;
      for (std::size_t head = first; head < first + num_heads; ++head)
        num_missing = std::max(num_missing, known_.missing(scores, head).size());
      score_newest(input, scores, first, num_heads, num_missing);
    }
    known_.recall(scores);
  }

 private:
  // Works the newest `count` slots of the `num_heads` heads from `first_head` on out.
  void score_newest(const ScoreInput& input, const LaneScores& scores, std::size_t first_head,
                    std::size_t num_heads, std::size_t count) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    constexpr std::size_t kBlock = 64;
    const std::size_t dim = input.sequence.shape().head_dim;
    std::vector<float>& gathered = input.scratch.vector(kBuffer);
    std::vector<float>& widened = input.scratch.vector(kBuffer + 1);
    const std::span<float> means = input.scratch.floats(kBuffer + 2, kBlock * dim);
    const auto share = 1.0F / static_cast<float>(num_heads);
    const std::size_t len = scores.seq_len();
    for (std::size_t first = len - count; first < len; first += kBlock) {
      const std::size_t last = std::min(first + kBlock, len);
      const auto each_row = [&](std::size_t head, auto&& visit) {
        for_each_row(scores.cache(head).keys, dim, first, last, input.kernel, gathered, widened,
                     visit);
      };
      std::fill(means.begin(), means.end(), 0.0F);
      for (std::size_t head = first_head; head < first_head + num_heads; ++head) {
        each_row(head, [&](const float* key, std::size_t slot) {
          float* const mean = means.data() + (slot - first) * dim;
          for (std::size_t c = 0; c < dim; ++c)
            mean[c] += share * key[c];
        });
      }
      for (std::size_t head = first_head; head < first_head + num_heads; ++head) {
        const std::span<float> out = known_.newest(scores, head, len);
        each_row(head, [&](const float* key, std::size_t slot) {
          out[slot] = static_cast<float>(std::sqrt(
              input.kernel.squared_distance(key, means.data() + (slot - first) * dim, dim)));
        });
      }
    }
  }

  RememberedScores known_;
};

/// 1 / |k| for the slots of a lane [inverse.size()]: what makes unit keys. 0 where there is no
/// token or no direction; NaN where the norm is not finite, so that it shows in the score.
inline void inverse_norms(const Lane& lane, std::size_t dim, const kernels::KernelSet& kernel,
                          std::vector<float>& gathered, std::span<float> inverse) {
  row_norms(lane.keys, dim, 0, inverse.size(), kernel, gathered, inverse);
  for (std::size_t slot = 0; slot < inverse.size(); ++slot) {
    const float norm = inverse[slot];
    const bool usable = lane.has_token(slot);
    inverse[slot] = !usable || norm == 0.0F ? 0.0F
                    : std::isfinite(norm)   ? 1.0F / norm
                                            : std::numeric_limits<float>::quiet_NaN();
  }
}

/// -cos(k, m), m the mean of the unit keys of the lane: keys that point away from the rest stay. A
/// key of norm 0 has no direction and scores 0, and so do all where m is 0.
struct KeyDifference {
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    scores.start(0, scores.seq_len(), 1);
    const std::size_t dim = input.sequence.shape().head_dim;
    const std::size_t len = scores.seq_len();
    std::vector<float>& gathered = input.scratch.vector(kBuffer);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      const std::span<float> inverse = scores.array(head);
      inverse_norms(lane, dim, input.kernel, gathered, inverse);
      const std::span<float> anchor = input.scratch.floats(kBuffer + 1, dim);
      weighted_row_sum(lane.keys, dim, 0, inverse, input.kernel, gathered,
                       input.scratch.vector(kBuffer + 2), anchor);
      double length = 0.0;
      for (const float x : anchor)
        length += static_cast<double>(x) * static_cast<double>(x);
      const float scale = length > 0.0 ? static_cast<float>(-1.0 / std::sqrt(length)) : 0.0F;
      input.kernel.scale(scale, dim, anchor.data());
      const std::span<float> dots = scores.spare();
      for_each_row_block(lane.keys, dim, 0, len, input.kernel, gathered,
                         [&](const kernels::RowBlock& rows, std::size_t slot) {
                           input.kernel.row_dots(anchor.data(), 1, 0, rows, dots.data() + slot, 0);
                         });
      for (std::size_t slot = 0; slot < len; ++slot)
        inverse[slot] = inverse[slot] == 0.0F ? 0.0F : inverse[slot] * dots[slot];
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CACHE_SIGNALS_HPP_
