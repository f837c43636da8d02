#ifndef KVEVICT_TEMPORAL_ROLLING_WINDOW_HPP_
#define KVEVICT_TEMPORAL_ROLLING_WINDOW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// The last `window` samples of a series that gains at most one sample per token, the newest
/// included (rule R17). Samples belong to positions, so an eviction does not touch them.
///
/// Statistics are taken over the stored samples each time, in double: running sums would drift
/// and make the variance of a flat stretch negative. The window is short, so this costs less
/// than the sample did.
///
/// `max_rollback` further samples are kept, so that a window which loses that many tokens to
/// truncate is full again at once. After a deeper rollback it is as short as after a start.
class RollingWindow {
 public:
  /// @param window  > 0
  RollingWindow(std::size_t window, std::size_t max_rollback)
      : window_(window), ring_(window + max_rollback) {}

  /// Adds the sample of the token at `position`, which is above all earlier ones. Non-finite
  /// samples are the caller's to leave out (rule R19).
  void push(std::size_t position, double value) noexcept {
    ring_[(first_ + size_) % ring_.size()] = {position, value};
    if (size_ < ring_.size()) {
      ++size_;
    } else {
      first_ = (first_ + 1) % ring_.size();
    }
  }

  /// Samples under the window now.
  [[nodiscard]] std::size_t count() const noexcept { return std::min(window_, size_); }

  /// Mean of the window; 0 where it is empty.
  [[nodiscard]] double mean() const noexcept {
    double sum = 0.0;
    for (std::size_t age = 0; age < count(); ++age)
      sum += sample(age);
    return size_ == 0 ? 0.0 : sum / static_cast<double>(count());
  }

  /// (newest - mean) / (deviation + epsilon) with the population deviation; 0 for fewer than two
  /// samples and where all are equal, whatever their scale (rule R17).
  [[nodiscard]] double z_score(double epsilon) const noexcept {
    if (count() < 2)
      return 0.0;
    const double centre = mean();
    double squares = 0.0;
    bool flat = true;
    for (std::size_t age = 0; age < count(); ++age) {
      const double distance = sample(age) - centre;
      squares += distance * distance;
      flat = flat && sample(age) == sample(0);
    }
    // Asked of the samples, since the mean of equal numbers may be off by a rounding.
    if (flat)
      return 0.0;
    const double deviation = std::sqrt(squares / static_cast<double>(count()));
    return (sample(0) - centre) / (deviation + epsilon);
  }

  void append(std::size_t /*count*/) noexcept {}
  void apply(const KeepMask& /*mask*/) noexcept {}
  void truncate(const Sequence& sequence) noexcept {
    while (size_ > 0 && entry(0).position >= sequence.length())
      --size_;
  }
  void reset() noexcept { size_ = 0; }

 private:
  struct Entry {
    std::size_t position = 0;
    double value = 0.0;
  };
  /// 0 is the newest.
  [[nodiscard]] const Entry& entry(std::size_t age) const noexcept {
    return ring_[(first_ + size_ - 1 - age) % ring_.size()];
  }
  [[nodiscard]] double sample(std::size_t age) const noexcept { return entry(age).value; }

  std::size_t window_;
  std::vector<Entry> ring_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_ROLLING_WINDOW_HPP_
