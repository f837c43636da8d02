#ifndef KVEVICT_SCORING_MIN_MAX_HPP_
#define KVEVICT_SCORING_MIN_MAX_HPP_

#include "kvevict/config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

KVEVICT_NAMESPACE_BEGIN

/// Scales numbers by the range of those that were added, to [0, 1].
class MinMax {
 public:
  /// Numbers that are not finite are left out.
  void add(float value) noexcept {
    if (!std::isfinite(value))
      return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  /// 0 where all that was added is equal; a number that is not finite stays as it is.
  [[nodiscard]] float scaled(float value) const noexcept {
    if (!std::isfinite(value))
      return value;
    return high_ > low_ ? (value - low_) / (high_ - low_) : 0.0F;
  }

 private:
  float low_ = std::numeric_limits<float>::infinity();
  float high_ = -std::numeric_limits<float>::infinity();
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_MIN_MAX_HPP_
