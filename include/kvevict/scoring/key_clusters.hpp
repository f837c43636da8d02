#ifndef KVEVICT_SCORING_KEY_CLUSTERS_HPP_
#define KVEVICT_SCORING_KEY_CLUSTERS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Tokens that stand for others, by k-means over the keys of a lane's first KV head (ThinKV):
/// centroids start at k of the n tokens, number floor((2 i + 1) n / (2 k)) of them, and move for at
/// most `max_rounds` rounds of Lloyd's algorithm; each then takes the nearest token that none
/// before it took. A key that is not finite belongs to no centroid and is taken last. Of equal
/// distances the lower centroid and the lower slot.
class KeyClusters {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;

  explicit KeyClusters(std::size_t max_rounds) : max_rounds_(max_rounds) {}

  /// Calls take(slot) for `count` of the `slots`, which are ascending and more than `count`.
  /// @note  O(max_rounds * slots * count * head_dim); (slots + count) * head_dim floats of scratch.
  template <class Take>
  void choose(const ScoreInput& input, std::size_t lane, std::span<const std::uint32_t> slots,
              std::size_t count, Take&& take) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    const std::size_t dim = input.sequence.shape().head_dim;
    const LaneScores head(input, lane);
    const std::span<float> keys = input.scratch.floats(kBuffer, slots.size() * dim);
    const std::span<float> centroids = input.scratch.floats(kBuffer + 1, count * dim);
    std::size_t next = 0;
    for_each_row(head.cache().keys, dim, slots.front(), slots.back() + 1, input.kernel,
                 input.scratch.vector(kBuffer + 2), input.scratch.vector(kBuffer + 3),
                 [&](const float* key, std::size_t slot) {
                   if (slot != slots[next])
                     return;
                   std::copy_n(key, dim, keys.subspan(next * dim, dim).begin());
                   ++next;
                 });
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t start = (2 * i + 1) * slots.size() / (2 * count);
      std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(start * dim), dim,
                  centroids.begin() + static_cast<std::ptrdiff_t>(i * dim));
    }
    nearest_.assign(slots.size(), count);
    for (std::size_t round = 0; round < max_rounds_ && assign(keys, centroids, dim); ++round)
      move(keys, centroids, dim);
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t best = slots.size();
      double least = 0.0;
      for (std::size_t token = 0; token < slots.size(); ++token) {
        if (nearest_[token] == kTaken)
          continue;
        const double d = distance(keys, token, centroids, i, dim);
        if (best == slots.size() || d < least) {
          best = token;
          least = d;
        }
      }
      nearest_[best] = kTaken;
      take(slots[best]);
    }
  }

 private:
  static constexpr std::size_t kTaken = std::numeric_limits<std::size_t>::max();

  // Squared; infinite where it is not finite.
  [[nodiscard]] static double distance(std::span<const float> keys, std::size_t token,
                                       std::span<const float> centroids, std::size_t centroid,
                                       std::size_t dim) noexcept {
    double sum = 0.0;
    for (std::size_t c = 0; c < dim; ++c) {
      const double d = static_cast<double>(keys[token * dim + c]) -
                       static_cast<double>(centroids[centroid * dim + c]);
      sum += d * d;
    }
    return sum < std::numeric_limits<double>::infinity() ? sum
                                                         : std::numeric_limits<double>::infinity();
  }
  // Gives every token its nearest centroid; returns whether any has another than before.
  bool assign(std::span<const float> keys, std::span<const float> centroids,
              std::size_t dim) const noexcept {
    bool changed = false;
    const std::size_t count = centroids.size() / dim;
    for (std::size_t token = 0; token < nearest_.size(); ++token) {
      std::size_t nearest = count;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < count; ++i) {
        const double d = distance(keys, token, centroids, i, dim);
        if (d < least) {
          least = d;
          nearest = i;
        }
      }
      changed = changed || nearest != nearest_[token];
      nearest_[token] = nearest;
    }
    return changed;
  }
  // Every centroid to the mean of its tokens; one without tokens stays.
  void move(std::span<const float> keys, std::span<float> centroids, std::size_t dim) const {
    for (std::size_t i = 0; i * dim < centroids.size(); ++i) {
      sums_.assign(dim, 0.0);
      std::size_t members = 0;
      for (std::size_t token = 0; token < nearest_.size(); ++token) {
        if (nearest_[token] != i)
          continue;
        ++members;
        for (std::size_t c = 0; c < dim; ++c)
          sums_[c] += static_cast<double>(keys[token * dim + c]);
      }
      for (std::size_t c = 0; c < dim && members > 0; ++c)
        centroids[i * dim + c] = static_cast<float>(sums_[c] / static_cast<double>(members));
    }
  }

  std::size_t max_rounds_;
  // Memory that is kept between calls.
  mutable std::vector<std::size_t> nearest_;  // centroid of each token
  mutable std::vector<double> sums_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_KEY_CLUSTERS_HPP_
