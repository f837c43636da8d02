#ifndef KVEVICT_TEMPORAL_HIDDEN_DELTA_HPP_
#define KVEVICT_TEMPORAL_HIDDEN_DELTA_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How far the residual stream moved from one token to the next after one block:
/// g(t) = || h(t) - h(t - 1) ||_2 (EpiKV, arXiv 2606.26472, eq. 1).
///
/// Remembers the newest `max_rollback` + 1 vectors as float, so that the difference exists again
/// at once after up to `max_rollback` tokens were taken back.
class HiddenDelta {
 public:
  explicit HiddenDelta(std::size_t max_rollback)
      : max_rollback_(max_rollback), positions_(max_rollback + 2) {}

  /// Takes the vector of the token at `position` and returns g, in double from widened elements
  /// (rule R8). 0 where the vector of the token before is not known: it was never handed over, or
  /// a rollback went deeper than max_rollback. Not finite where one of the two vectors is not.
  ///
  /// @param row          [hidden_size] elements of `type`
  /// @param hidden_size  the same in every call
  double push(std::size_t position, const void* row, ElementType type, std::size_t hidden_size,
              const kernels::KernelSet& kernel) {
    if (vectors_.empty())
      vectors_.resize(positions_.size() * hidden_size);
    const std::size_t previous = newest_;
    const bool known = position > 0 && remembers(position - 1);
    newest_ = (newest_ + 1) % positions_.size();
    float* const vector = vectors_.data() + newest_ * hidden_size;
    kernel.widen(row, type, hidden_size, vector);
    positions_[newest_] = position;
    if (size_ <= max_rollback_)
      ++size_;
    if (!known)
      return 0.0;
    return std::sqrt(
        kernel.squared_distance(vector, vectors_.data() + previous * hidden_size, hidden_size));
  }

  /// Whether the newest vector is that of `position`.
  [[nodiscard]] bool remembers(std::size_t position) const noexcept {
    return size_ > 0 && positions_[newest_] == position;
  }

  void truncate(const Sequence& sequence) noexcept {
    for (; size_ > 0 && positions_[newest_] >= sequence.length(); --size_) {
      newest_ = (newest_ + positions_.size() - 1) % positions_.size();
    }
  }
  void reset() noexcept { size_ = 0; }

 private:
  std::size_t max_rollback_;
  // Rings of max_rollback + 2: what is remembered and the vector that is coming in.
  std::vector<std::size_t> positions_;
  std::vector<float> vectors_;
  std::size_t newest_ = 0;
  std::size_t size_ = 0;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_HIDDEN_DELTA_HPP_
