#ifndef KVEVICT_SCORING_CHANNEL_RANGES_HPP_
#define KVEVICT_SCORING_CHANNEL_RANGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The range [low, high] of every channel of some rows, and how far other rows deviate once they
/// are scaled by it. `memory` [2, dim] of the caller holds it.
class ChannelRanges {
 public:
  ChannelRanges(std::span<float> memory, const kernels::KernelSet& kernel) noexcept
      : low_(memory.first(memory.size() / 2)),
        high_(memory.subspan(memory.size() / 2)),
        kernel_(&kernel) {
    clear();
  }

  /// Of no rows.
  void clear() noexcept {
    std::fill(low_.begin(), low_.end(), std::numeric_limits<float>::infinity());
    std::fill(high_.begin(), high_.end(), -std::numeric_limits<float>::infinity());
  }
  /// Takes in a row [dim]; NaN is passed over.
  void take(const float* row) noexcept {
    kernel_->take_ranges(row, low_.size(), low_.data(), high_.data());
  }
  /// Ends taking rows: from now on x is scaled to (x - low) / (high - low + epsilon), 0 in a
  /// channel of range 0 (or of one whose inverse is no float) and where the result is not finite.
  void finish(float epsilon) noexcept {
    for (std::size_t c = 0; c < low_.size(); ++c) {
      const float range = high_[c] - low_[c];
      high_[c] = range == 0.0F ? 0.0F : 1.0F / (range + epsilon);
    }
  }
  /// In place of finish(): x stays as it is, 0 where it is not finite.
  void finish_unscaled() noexcept {
    std::fill(low_.begin(), low_.end(), 0.0F);
    std::fill(high_.begin(), high_.end(), 1.0F);
  }
  /// Sample variance over the channels of a row [dim] once it is scaled; 0 where dim is 1.
  [[nodiscard]] float variance(const float* row) const noexcept {
    return kernel_->scaled_variance(row, low_.data(), high_.data(), low_.size());
  }

 private:
  std::span<float> low_;
  std::span<float> high_;  // what is multiplied with, from finish() on
  const kernels::KernelSet* kernel_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CHANNEL_RANGES_HPP_
