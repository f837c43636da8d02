#ifndef KVEVICT_SCORING_RUNNING_SOFTMAX_HPP_
#define KVEVICT_SCORING_RUNNING_SOFTMAX_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

KVEVICT_NAMESPACE_BEGIN

/// The softmax of a row whose logits come in tiles: each tile is exponentiated once, while it is in
/// cache, against the largest logit up to there, and a factor for each tile makes it the row's
/// share at the end. The same row in the same tiles gives the same bits.
class RunningSoftmax {
 public:
  /// @param sink  a logit of the denominator alone; -infinity: none
  explicit RunningSoftmax(float sink = -std::numeric_limits<float>::infinity()) noexcept
      : shift_(sink), sum_(sink > -std::numeric_limits<float>::infinity() ? 1.0 : 0.0) {}

  /// The `n` logits of a tile, of which `largest` is the largest, become their exponentials; NaN
  /// and -infinity become 0. Returns what they were shifted by, for factor().
  float add(float* logits, std::size_t n, float largest,
            const kernels::KernelSet& kernel) noexcept {
    const float shift = std::max(shift_, largest);
    if (shift == -std::numeric_limits<float>::infinity()) {
      std::fill(logits, logits + n, 0.0F);
      return shift;
    }
    const double tile = kernel.exp_shifted(shift, n, logits);
    sum_ = sum_ * ratio(shift_, shift) + tile;
    shift_ = shift;
    return shift;
  }

  /// What a tile whose add() returned `shift` is to be multiplied by, when all tiles are there; 0
  /// for a row without mass.
  [[nodiscard]] float factor(float shift) const noexcept {
    return sum_ > 0.0 ? static_cast<float>(ratio(shift, shift_) / sum_) : 0.0F;
  }

  /// Log of the denominator; -infinity for a row without mass.
  [[nodiscard]] double log_sum() const noexcept {
    return sum_ > 0.0 ? static_cast<double>(shift_) + std::log(sum_)
                      : -std::numeric_limits<double>::infinity();
  }

 private:
  // e^(from - to); 1 where both are infinite.
  [[nodiscard]] static double ratio(float from, float to) noexcept {
    return from == to ? 1.0 : std::exp(static_cast<double>(from) - static_cast<double>(to));
  }

  float shift_;  // the largest logit so far
  double sum_;   // of the exponentials, sink included
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RUNNING_SOFTMAX_HPP_
