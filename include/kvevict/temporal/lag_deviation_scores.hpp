#ifndef KVEVICT_TEMPORAL_LAG_DEVIATION_SCORES_HPP_
#define KVEVICT_TEMPORAL_LAG_DEVIATION_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lag_deviation.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/late_scores.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// The deviation of a token's lag-scaled key, and with kWithValues of its value, over channels
/// (LagDeviation). For one set of tokens for the whole model: [1, seq_len].
///
/// Scored anew for each selection, or, if `frozen`, kept from the first one at which the token may
/// be chosen and that a mask follows (LateScores). A temporal rule over it takes its samples
/// outside of selections and freezes nothing.
template <bool kWithValues>
class LagDeviationScores {
 public:
  static constexpr Inputs kRequiredInputs =
      kWithValues ? Inputs::kKeys | Inputs::kValues : Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;
  static constexpr MaskScope kScope = MaskScope::kModel;

  /// @param chunk_len  > 0
  LagDeviationScores(const CacheShape& shape, std::size_t chunk_len, bool frozen)
      : chunk_len_(chunk_len), freezes_(frozen), frozen_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(frozen_); }

  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start_one(0, scores.seq_len());
    const std::span<float> out = scores.array(0);
    std::fill(out.begin(), out.end(), 0.0F);
    std::size_t first = 0;
    if (freezes_) {
      first = out.size();
      for_each_decoded_slot(input.sequence, scores.lane(), [&](std::size_t slot) {
        if (!frozen_.is_frozen(slot))
          first = std::min(first, slot);
      });
    }
    LagDeviation deviation(input.view, chunk_len_, input.kernel, input.scratch);
    deviation.add(KvPart::kKeys, first, out);
    if constexpr (kWithValues)
      deviation.add(KvPart::kValues, first, out);
    if (!freezes_)
      return;
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      if (frozen_.is_frozen(slot))
        out[slot] = frozen_.values()[slot];
    }
    if (input.candidates.empty())
      return;
    // The only lane: no other one is being scored beside it.
    frozen_.clear_proposals();
    detail::for_each_bit(input.candidates,
                         [&](std::size_t slot) { frozen_.propose(slot, out[slot]); });
  }

 private:
  std::size_t chunk_len_;
  bool freezes_;
  LateScores frozen_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_LAG_DEVIATION_SCORES_HPP_
