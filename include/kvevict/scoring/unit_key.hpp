#ifndef KVEVICT_SCORING_UNIT_KEY_HPP_
#define KVEVICT_SCORING_UNIT_KEY_HPP_

#include "kvevict/config.hpp"

#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// unit = key / (|key| + 1e-8), so that dot products are cosines; all 0, like no other key, where
/// `wanted` is false or the norm is not finite. Returns whether the norm is finite.
inline bool to_unit(const float* key, bool wanted, std::span<float> unit) noexcept {
  constexpr double kEpsilon = 1e-8;
  double squares = 0.0;
  for (std::size_t c = 0; c < unit.size(); ++c)
    squares += static_cast<double>(key[c]) * static_cast<double>(key[c]);
  const auto factor = static_cast<float>(1.0 / (std::sqrt(squares) + kEpsilon));
  for (std::size_t c = 0; c < unit.size(); ++c)
    unit[c] = wanted && std::isfinite(squares) ? key[c] * factor : 0.0F;
  return std::isfinite(squares);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_UNIT_KEY_HPP_
