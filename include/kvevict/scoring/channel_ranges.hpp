#ifndef KVEVICT_SCORING_CHANNEL_RANGES_HPP_
#define KVEVICT_SCORING_CHANNEL_RANGES_HPP_

#include "kvevict/config.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The range of every channel in `rows` [tokens, dim]: `ranges` [2, dim] holds the least values and
/// then the largest. NaN is passed over.
inline void take_channel_ranges(std::span<const float> rows, std::size_t dim,
                                std::span<float> ranges) noexcept {
  const std::span<float> low = ranges.first(dim);
  const std::span<float> high = ranges.subspan(dim, dim);
  std::fill(low.begin(), low.end(), std::numeric_limits<float>::infinity());
  std::fill(high.begin(), high.end(), -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < rows.size(); i += dim) {
    for (std::size_t c = 0; c < dim; ++c) {
      low[c] = std::min(low[c], rows[i + c]);
      high[c] = std::max(high[c], rows[i + c]);
    }
  }
}

/// scaled = (rows - low) / (high - low + epsilon), channel by channel; without ranges the rows
/// themselves. A channel of range 0 becomes 0, and so does any result that is not finite.
/// @param scaled  [tokens, dim], which may be `rows`
inline void scale_by_channel_ranges(std::span<const float> rows, std::size_t dim,
                                    std::span<const float> ranges, float epsilon,
                                    std::span<float> scaled) noexcept {
  for (std::size_t i = 0; i < rows.size(); i += dim) {
    for (std::size_t c = 0; c < dim; ++c) {
      float value = rows[i + c];
      if (!ranges.empty()) {
        const float low = ranges[c];
        const float range = ranges[dim + c] - low;
        value = range == 0.0F ? 0.0F : (value - low) / (range + epsilon);
      }
      scaled[i + c] = std::isfinite(value) ? value : 0.0F;
    }
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CHANNEL_RANGES_HPP_
