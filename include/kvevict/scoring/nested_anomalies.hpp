#ifndef KVEVICT_SCORING_NESTED_ANOMALIES_HPP_
#define KVEVICT_SCORING_NESTED_ANOMALIES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/cache_signals.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/min_max.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// How unlike its surroundings a key is, at three scales: with k^ the unit keys of a lane
///
///   -k^ mean(all k^),  -k^ mean(k^ of its own block),  -k^ mean(the newest `window` k^ up to it),
///
/// blocks of clip(n / 32, 128, 256) of the lane's n tokens. [3 per KV head, seq_len]. A key of norm
/// 0 has no direction and scores 0; one that is not finite scores NaN and is no part of a mean.
class NestedAnomalies {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;
  static constexpr std::size_t kNumScales = 3;

  /// @param window  tokens up to a key, its own included; > 0
  explicit NestedAnomalies(std::size_t window) noexcept : window_(window) {}

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }

  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), kNumScales);
    const std::size_t dim = input.sequence.shape().head_dim;
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      const std::span<float> inverse = scores.spare();
      inverse_norms(lane, dim, input.kernel, input.scratch.vector(kGathered), inverse);
      score_head(input, lane, inverse, find_means(input, lane, inverse, dim), scores,
                 head * kNumScales);
    }
  }

 private:
  static constexpr std::size_t kSmallestBlock = 128;  // tokens
  static constexpr std::size_t kLargestBlock = 256;
  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kWidened = kGathered + 1;
  static constexpr std::size_t kMeans = kGathered + 2;
  static constexpr std::size_t kNewest = kGathered + 3;
  // Buffers of doubles.
  static constexpr std::size_t kSums = 0;
  static constexpr std::size_t kTrailing = 1;
  // Buffers of counts.
  static constexpr std::size_t kCounts = 0;
  static constexpr std::size_t kInWindow = 1;

  struct Means {
    std::size_t block_len;
    std::size_t dim;
    std::span<const double> rows;  // [1 + blocks, dim]: the mean of all, and those of the blocks
  };

  // Calls visit(row, slot, token) for each slot that holds one; `token` counts them.
  template <class Visit>
  static void for_each_token(const ScoreInput& input, const Lane& lane, std::size_t dim,
                             std::size_t len, Visit&& visit) {
    std::size_t token = 0;
    for_each_row(lane.keys, dim, 0, len, input.kernel, input.scratch.vector(kGathered),
                 input.scratch.vector(kWidened), [&](const float* row, std::size_t slot) {
                   if (lane.has_token(slot))
                     visit(row, slot, token++);
                 });
  }
  static void add(double factor, const float* row, std::span<double> sum) noexcept {
    for (std::size_t c = 0; c < sum.size(); ++c)
      sum[c] += factor * static_cast<double>(row[c]);
  }
  static void divide(std::span<double> sum, std::size_t count) noexcept {
    for (double& x : sum)
      x /= static_cast<double>(std::max<std::size_t>(1, count));
  }

  static Means find_means(const ScoreInput& input, const Lane& lane, std::span<const float> inverse,
                          std::size_t dim) {
    std::size_t num_tokens = inverse.size();
    if (!lane.valid.empty()) {
      num_tokens -= static_cast<std::size_t>(std::count(
          lane.valid.begin(), lane.valid.begin() + static_cast<std::ptrdiff_t>(inverse.size()), 0));
    }
    const std::size_t block_len = std::clamp(num_tokens / 32, kSmallestBlock, kLargestBlock);
    const std::size_t num_rows = 1 + (num_tokens + block_len - 1) / block_len;
    const std::span<double> sums = input.scratch.doubles(kSums, num_rows * dim);
    const std::span<std::size_t> counts = input.scratch.counts(kCounts, num_rows);
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(counts.begin(), counts.end(), std::size_t{0});
    for_each_token(input, lane, dim, inverse.size(),
                   [&](const float* row, std::size_t slot, std::size_t token) {
                     if (!std::isfinite(inverse[slot]))
                       return;
                     for (const std::size_t at : {std::size_t{0}, 1 + token / block_len}) {
                       add(static_cast<double>(inverse[slot]), row, sums.subspan(at * dim, dim));
                       ++counts[at];
                     }
                   });
    for (std::size_t at = 0; at < num_rows; ++at)
      divide(sums.subspan(at * dim, dim), counts[at]);
    return {block_len, dim, sums};
  }
  void score_head(const ScoreInput& input, const Lane& lane, std::span<const float> inverse,
                  const Means& all, LaneScores& scores, std::size_t first_array) const {
    const std::size_t dim = all.dim;
    const std::span<float> means = input.scratch.floats(kMeans, kNumScales * dim);
    // The newest unit keys, one after another, and their sum.
    const std::size_t window = std::clamp<std::size_t>(inverse.size(), 1, window_);
    const std::span<float> newest = input.scratch.floats(kNewest, window * dim);
    std::fill(newest.begin(), newest.end(), 0.0F);
    const std::span<double> trailing = input.scratch.doubles(kTrailing, dim);
    const std::span<std::size_t> in_window = input.scratch.counts(kInWindow, window);
    std::fill(trailing.begin(), trailing.end(), 0.0);
    std::fill(in_window.begin(), in_window.end(), std::size_t{0});
    std::size_t num_in_window = 0;
    std::copy_n(all.rows.begin(), dim, means.begin());
    for (std::size_t i = 0; i < kNumScales; ++i)
      std::fill_n(scores.array(first_array + i).begin(), inverse.size(), 0.0F);
    for_each_token(
        input, lane, dim, inverse.size(),
        [&](const float* row, std::size_t slot, std::size_t token) {
          const std::span<float> oldest = newest.subspan(token % window * dim, dim);
          add(-1.0, oldest.data(), trailing);
          num_in_window -= in_window[token % window];
          const bool finite = std::isfinite(inverse[slot]);
          for (std::size_t c = 0; c < dim; ++c)
            oldest[c] = finite ? inverse[slot] * row[c] : 0.0F;
          add(1.0, oldest.data(), trailing);
          in_window[token % window] = finite ? 1 : 0;
          num_in_window += in_window[token % window];
          const auto block =
              all.rows.begin() + static_cast<std::ptrdiff_t>((1 + token / all.block_len) * dim);
          if (token % all.block_len == 0)
            std::copy_n(block, dim, means.begin() + static_cast<std::ptrdiff_t>(dim));
          const double share = 1.0 / static_cast<double>(std::max<std::size_t>(1, num_in_window));
          for (std::size_t c = 0; c < dim; ++c)
            means[2 * dim + c] = static_cast<float>(share * trailing[c]);
          std::array<float, kNumScales> dots{};
          input.kernel.row_dots(
              means.data(), kNumScales, static_cast<std::ptrdiff_t>(dim),
              kernels::RowBlock{row, static_cast<std::ptrdiff_t>(dim * sizeof(float)), 1, dim,
                                ElementType::kF32},
              dots.data(), 1);
          for (std::size_t i = 0; i < kNumScales; ++i) {
            scores.array(first_array + i)[slot] =
                inverse[slot] == 0.0F ? 0.0F : -inverse[slot] * dots[i];
          }
        });
  }

  std::size_t window_;
};

/// Brings three scales together (NestedKV). Each scale is scaled by its range to [0, 1]; then
///
///   score = (1 - alpha) sum_i w_i a_i + alpha max_i a_i,
///   w = softmax( log(prior) + gap_gain gap ),  gap_i = mean of the highest tenth of a_i less that
///       of the lowest (a tenth of the tokens, rounded down, but one at least),
///   alpha = sigmoid( gate_gain (d - mean(d) - gate_centre) ),  d = the deviation of the token's
///       three a_i, scaled by its range.
///
/// A scale that tells tokens apart counts more; a token on which scales disagree gets its largest.
/// Scores that are not finite have no part in ranges and means, and stay so.
struct BlendOfScales {
  std::array<double, 3> prior = {0.4, 0.4, 0.2};
  double gap_gain = 3.0;
  double gate_gain = 10.0;
  double gate_centre = 0.6;

  void apply(const ScoreInput& /*input*/, LaneScores& scores) const {
    for (std::size_t head = 0; head < scores.num_heads(); ++head)
      blend(scores, head);
    scores.keep_one_per_head();
  }

 private:
  void blend(LaneScores& scores, std::size_t head) const {
    const std::span<const std::uint8_t> valid = scores.cache(head).valid;
    const auto holds_token = [&](std::size_t i) {
      return valid.empty() || valid[scores.first() + i] != 0;
    };
    const std::array<std::span<float>, 3> a = {scores.array(3 * head), scores.array(3 * head + 1),
                                               scores.array(3 * head + 2)};
    std::array<double, 3> weights{};
    double total = 0.0;
    for (std::size_t scale = 0; scale < 3; ++scale) {
      MinMax range;
      for (std::size_t i = 0; i < scores.count(); ++i) {
        if (holds_token(i))
          range.add(a[scale][i]);
      }
      for (float& x : a[scale])
        x = range.scaled(x);
      weights[scale] = gap_gain * gap(scores, a[scale], holds_token);
    }
    // Less the largest exponent, so that no gain overflows.
    const double largest_exponent = *std::max_element(weights.begin(), weights.end());
    for (std::size_t scale = 0; scale < 3; ++scale) {
      weights[scale] = prior[scale] * std::exp(weights[scale] - largest_exponent);
      total += weights[scale];
    }
    const std::span<float> deviations = scores.spare();
    MinMax range;
    for (std::size_t i = 0; i < scores.count(); ++i) {
      deviations[i] = deviation(a[0][i], a[1][i], a[2][i]);
      if (holds_token(i))
        range.add(deviations[i]);
    }
    double mean = 0.0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < scores.count(); ++i) {
      deviations[i] = range.scaled(deviations[i]);
      if (holds_token(i) && std::isfinite(deviations[i])) {
        mean += static_cast<double>(deviations[i]);
        ++count;
      }
    }
    mean /= static_cast<double>(std::max<std::size_t>(1, count));
    for (std::size_t i = 0; i < scores.count(); ++i) {
      const double gate = static_cast<double>(deviations[i]) - mean - gate_centre;
      const double alpha = 1.0 / (1.0 + std::exp(-gate_gain * gate));
      double blended = 0.0;
      for (std::size_t scale = 0; scale < 3; ++scale)
        blended += weights[scale] / total * static_cast<double>(a[scale][i]);
      const double largest = static_cast<double>(std::max({a[0][i], a[1][i], a[2][i]}));
      a[0][i] = static_cast<float>((1.0 - alpha) * blended + alpha * largest);
    }
  }
  template <class HoldsToken>
  [[nodiscard]] static double gap(const LaneScores& scores, std::span<const float> a,
                                  HoldsToken&& holds_token) {
    const std::span<float> sorted = scores.spare();
    std::size_t n = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (holds_token(i) && std::isfinite(a[i]))
        sorted[n++] = a[i];
    }
    if (n == 0)
      return 0.0;
    const auto tenth = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, n / 10));
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(n);
    const auto mean_of_first = [&] {
      double sum = 0.0;
      for (auto it = sorted.begin(); it != sorted.begin() + tenth; ++it)
        sum += static_cast<double>(*it);
      return sum / static_cast<double>(tenth);
    };
    std::nth_element(sorted.begin(), sorted.begin() + (tenth - 1), end);
    const double lowest = mean_of_first();
    std::nth_element(sorted.begin(), sorted.begin() + (tenth - 1), end, std::greater<>());
    return mean_of_first() - lowest;
  }
  [[nodiscard]] static float deviation(float x, float y, float z) noexcept {
    const float mean = (x + y + z) / 3.0F;
    return std::sqrt(((x - mean) * (x - mean) + (y - mean) * (y - mean) + (z - mean) * (z - mean)) /
                     3.0F);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_NESTED_ANOMALIES_HPP_
