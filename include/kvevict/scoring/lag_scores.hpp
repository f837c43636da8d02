#ifndef KVEVICT_SCORING_LAG_SCORES_HPP_
#define KVEVICT_SCORING_LAG_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lag_partitions.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/channel_ranges.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Lag-relative deviation of keys and values (LagKV, arXiv 2504.04704): [1 per KV head, slots of
/// the partitions]. With [low, high] the range per channel in the partition behind a token's own,
///
///   x' = (x - low) / (high - low),   s(x) = softmax over the partition of std over channels of x',
///   score = (s(k) + value_weight s(v)) / (1 + value_weight),
///
/// std with divisor dim - 1. A channel without range is 0 (authors' code: not a number).
class LagDeviationOfPartition {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys | Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  LagDeviationOfPartition(const LagLayout& layout, float value_weight)
      : layout_(layout), value_weight_(value_weight) {}

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    const LagPartitions parts = find_lag_partitions(input.sequence, scores.lane(), layout_);
    scores.start(parts.first, parts.end(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<float> out = scores.array(head);
      std::fill(out.begin(), out.end(), 0.0F);
      add(input, scores, head, KvPart::kKeys, 1.0F / (1.0F + value_weight_), parts, out);
      add(input, scores, head, KvPart::kValues, value_weight_ / (1.0F + value_weight_), parts, out);
    }
  }

 private:
  static void add(const ScoreInput& input, const LaneScores& scores, std::size_t head, KvPart part,
                  float weight, const LagPartitions& parts, std::span<float> out) {
    if (parts.num == 0 || weight == 0.0F)
      return;
    const Lane lane = scores.cache(head);
    const std::size_t dim = dim_of(input.sequence.shape(), part);
    const std::span<float> memory = input.scratch.floats(kRanges, 4 * dim);
    ChannelRanges ranges(memory.first(2 * dim), input.kernel);
    ChannelRanges own(memory.subspan(2 * dim), input.kernel);
    const std::span<float> spread = scores.spare();
    // From the newest on, so that each row is read once.
    for (std::size_t p = parts.num + 1; p-- > 0;) {
      const std::size_t first = parts.first + p * parts.len;
      std::size_t tokens = 0;
      own.clear();
      for_each_row(rows_of(lane, part), dim, first, first + parts.len, input.kernel,
                   input.scratch.vector(kGathered), input.scratch.vector(kWidened),
                   [&](const float* row, std::size_t slot) {
                     if (!lane.has_token(slot))
                       return;
                     own.take(row);
                     if (p < parts.num)
                       spread[tokens++] = std::sqrt(ranges.variance(row));
                   });
      own.finish(0.0F);
      std::swap(ranges, own);
      if (p == parts.num)
        continue;
      const float largest = input.kernel.max_value(spread.data(), tokens);
      const double sum = input.kernel.exp_shifted(largest, tokens, spread.data());
      const float share = static_cast<float>(static_cast<double>(weight) / sum);
      for (std::size_t i = 0, token = 0; i < parts.len; ++i) {
        if (lane.has_token(first + i))
          out[p * parts.len + i] += share * spread[token++];
      }
    }
  }

  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kWidened = kGathered + 1;
  static constexpr std::size_t kRanges = kGathered + 2;

  LagLayout layout_;
  float value_weight_;
};

/// How the scores of a fixed budget compare over partitions.
enum class LagComparison : std::uint8_t {
  kRanks,   ///< by rank in the own partition, so that each of them keeps about as many tokens
  kScores,  ///< as they are (kvpress' cross_scoring)
};

[[nodiscard]] constexpr auto enum_names(LagComparison /*type*/) noexcept {
  return std::array<std::pair<std::string_view, LagComparison>, 2>{
      {{"ranks", LagComparison::kRanks}, {"scores", LagComparison::kScores}}};
}

/// Scores become rank / lag_len in their partition, 0 the lowest; of equal ones the lower slot
/// ranks higher (rule R3), NaN ranks below all.
class RankInPartition {
 public:
  explicit RankInPartition(std::size_t lag_len) : lag_len_(lag_len) {}

  void apply(const ScoreInput& input, LaneScores& scores) const {
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      for (std::size_t first = 0; first < scores.count(); first += lag_len_)
        rank(scores.array(i).subspan(first, lag_len_), input.scratch.counts(0, lag_len_),
             scores.spare());
    }
  }

 private:
  static void rank(std::span<float> scores, std::span<std::size_t> order, std::span<float> ranks) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const std::uint32_t key_a = kernels::order_key(scores[a]);
      const std::uint32_t key_b = kernels::order_key(scores[b]);
      return key_a != key_b ? key_a < key_b : a > b;
    });
    for (std::size_t r = 0; r < order.size(); ++r)
      ranks[order[r]] = static_cast<float>(r) / static_cast<float>(order.size());
    std::copy_n(ranks.begin(), scores.size(), scores.begin());
  }

  std::size_t lag_len_;
};

/// Where a lane is too short for two partitions: the newer a token, the higher its score.
struct RampWithoutPartitions {
  LagLayout layout;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    if (scores.count() > 0)
      return;
    const std::size_t len = scores.seq_len();
    const std::size_t first =
        std::min(find_lag_partitions(input.sequence, scores.lane(), layout).first, len);
    scores.start(first, len, 1);
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      for (std::size_t slot = 0; slot < scores.count(); ++slot) {
        scores.array(i)[slot] = static_cast<float>(slot) / static_cast<float>(scores.count());
      }
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_LAG_SCORES_HPP_
