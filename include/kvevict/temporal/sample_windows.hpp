#ifndef KVEVICT_TEMPORAL_SAMPLE_WINDOWS_HPP_
#define KVEVICT_TEMPORAL_SAMPLE_WINDOWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// The last `length` samples of every token, joined to one number by an associative operation such
/// as a sum or a maximum: O(1) a sample, exactly that of the samples in the window, so nothing
/// drifts. 4 (length + 1) bytes per cached token and lane; none for a length of 0.
///
/// A token's samples are taken in blocks of `length`. Of the block that is coming in, the samples
/// are kept and joined up to the newest; of the one before, each sample joined with all behind it.
/// A window is an end of that one and the start of this.
class SampleWindows {
 public:
  SampleWindows(const CacheShape& shape, MaskScope scope, std::size_t length)
      : length_(length), arrays_(shape, scope, length == 0 ? 0 : length + 1) {}

  [[nodiscard]] std::size_t length() const noexcept { return length_; }
  /// Takes a sample of one slot, whose `index`-th it is, counted from 0; returns what its window
  /// joins to. The length is > 0.
  template <class Join>
  [[nodiscard]] float push(std::size_t lane, std::size_t slot, std::size_t index, float sample,
                           Join&& join) noexcept {
    const auto in_block = [&](std::size_t i) -> float& { return arrays_.at(lane, i)[slot]; };
    const std::size_t at = index % length_;
    float& start = arrays_.at(lane, length_)[slot];
    start = at == 0 ? sample : join(start, sample);
    const bool goes_back = index >= length_ && at + 1 < length_;
    const float window = goes_back ? join(in_block(at + 1), start) : start;
    in_block(at) = sample;
    if (at + 1 == length_) {
      for (std::size_t i = length_ - 1; i > 0; --i)
        in_block(i - 1) = join(in_block(i - 1), in_block(i));
    }
    return window;
  }

  void append(std::size_t count) { arrays_.append(count); }
  void apply(const KeepMask& mask) { arrays_.apply(mask); }
  void truncate(const Sequence& sequence) { arrays_.truncate(sequence); }
  void reset() noexcept { arrays_.reset(); }

 private:
  std::size_t length_;
  SlotArray arrays_;  // of each lane the block, and what its start joins to
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_SAMPLE_WINDOWS_HPP_
