#ifndef KVEVICT_SCORING_CUR_SCORES_HPP_
#define KVEVICT_SCORING_CUR_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/token_blocks.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// How the leverages of a token's key and value come together.
enum class CurLeverage : std::uint8_t { kProduct, kMean, kKeys, kValues };

[[nodiscard]] constexpr auto enum_names(CurLeverage /*type*/) noexcept {
  return std::array<std::pair<std::string_view, CurLeverage>, 4>{
      {{"product", CurLeverage::kProduct},
       {"mean", CurLeverage::kMean},
       {"keys", CurLeverage::kKeys},
       {"values", CurLeverage::kValues}}};
}

/// Leverage by squared norm (CurDKV, arXiv 2509.15038): [1 per KV head, seq_len]
///
///   l_K(i) = |k_i|^2 / sum of |k|^2 in the token's block, l_V alike;  score = l_K l_V / sum.
///
/// A block of zeros has leverage 0. Slots that hold no token are in no block (rule R9).
class CurScores {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys | Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  /// @param block_len  tokens; 0: squared norms are not made shares of anything
  CurScores(CurLeverage leverage, std::size_t block_len)
      : leverage_(leverage), block_len_(block_len) {}

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      const std::span<float> out = scores.array(head);
      if (leverage_ == CurLeverage::kKeys || leverage_ == CurLeverage::kValues) {
        leverages(input, lane, leverage_ == CurLeverage::kKeys ? KvPart::kKeys : KvPart::kValues,
                  out);
      } else {
        const std::span<float> values = scores.spare();
        leverages(input, lane, KvPart::kKeys, out);
        leverages(input, lane, KvPart::kValues, values);
        for (std::size_t slot = 0; slot < out.size(); ++slot) {
          out[slot] = leverage_ == CurLeverage::kProduct ? out[slot] * values[slot]
                                                         : 0.5F * (out[slot] + values[slot]);
        }
      }
      divide_by_sum(finite_sum(out), out);
    }
  }

 private:
  void leverages(const ScoreInput& input, const Lane& lane, KvPart part,
                 std::span<float> out) const {
    row_norms(rows_of(lane, part), dim_of(input.sequence.shape(), part), 0, out.size(),
              input.kernel, input.scratch.vector(LaneScores::kFirstFree), out);
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      const bool usable = lane.has_token(slot);
      out[slot] = usable ? out[slot] * out[slot] : 0.0F;
    }
    for (std::size_t first = 0; block_len_ > 0 && first < out.size();) {
      const std::size_t last = end_of_tokens(lane.valid, first, out.size(), block_len_);
      const std::span<float> block = out.subspan(first, last - first);
      divide_by_sum(finite_sum(block), block);
      first = last;
    }
  }

  CurLeverage leverage_;
  std::size_t block_len_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CUR_SCORES_HPP_
