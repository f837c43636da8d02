#ifndef KVEVICT_TEMPORAL_STEP_SUM_HPP_
#define KVEVICT_TEMPORAL_STEP_SUM_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// A sum per slot of a cache with one lane that knows the newest step only: every append starts
/// it over.
class StepSum {
 public:
  explicit StepSum(const CacheShape& shape) : sums_(shape, MaskScope::kModel) {}

  /// [seq_len], by slot.
  [[nodiscard]] std::span<float> values() noexcept { return sums_.at(0); }
  [[nodiscard]] std::span<const float> values() const noexcept { return sums_.at(0); }

  void append(std::size_t count) {
    sums_.append(count);
    sums_.fill(0.0F);
  }
  void apply(const KeepMask& mask) { sums_.apply(mask); }
  void truncate(const Sequence& sequence) { sums_.truncate(sequence); }
  void reset() noexcept { sums_.reset(); }

 private:
  SlotArray sums_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_STEP_SUM_HPP_
