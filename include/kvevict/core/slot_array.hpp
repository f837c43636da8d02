#ifndef KVEVICT_CORE_SLOT_ARRAY_HPP_
#define KVEVICT_CORE_SLOT_ARRAY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_vector.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// One float per slot, for `arrays_per_lane` arrays of every lane of a scope: state that a policy
/// keeps over steps. It follows the sequence: grows on append, is renumbered on apply.
class SlotArray {
 public:
  SlotArray(const CacheShape& shape, MaskScope scope, std::size_t arrays_per_lane = 1)
      : shape_(shape),
        scope_(scope),
        arrays_per_lane_(arrays_per_lane),
        arrays_(shape.num_lanes(scope) * arrays_per_lane) {}

  [[nodiscard]] std::span<float> at(std::size_t lane, std::size_t index = 0) noexcept {
    return arrays_[lane * arrays_per_lane_ + index].values();
  }
  [[nodiscard]] std::span<const float> at(std::size_t lane, std::size_t index = 0) const noexcept {
    return arrays_[lane * arrays_per_lane_ + index].values();
  }
  /// The array of (layer, kv_head).
  [[nodiscard]] std::span<float> of(std::size_t layer, std::size_t kv_head,
                                    std::size_t index = 0) noexcept {
    return at(shape_.lane_of(scope_, layer, kv_head), index);
  }
  [[nodiscard]] std::span<const float> of(std::size_t layer, std::size_t kv_head,
                                          std::size_t index = 0) const noexcept {
    return at(shape_.lane_of(scope_, layer, kv_head), index);
  }
  [[nodiscard]] MaskScope scope() const noexcept { return scope_; }
  [[nodiscard]] std::size_t arrays_per_lane() const noexcept { return arrays_per_lane_; }

  /// `count` new slots at the end of every array, holding `value`.
  void append(std::size_t count, float value = 0.0F) {
    for (auto& array : arrays_)
      array.append(count, value);
  }
  void fill(float value) noexcept {
    for (auto& array : arrays_)
      std::fill(array.values().begin(), array.values().end(), value);
  }
  void apply(const KeepMask& mask) {
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      const std::size_t lane = a / arrays_per_lane_;
      arrays_[a].apply(
          mask, mask.lane_of(shape_.first_layer(scope_, lane), shape_.first_head(scope_, lane)));
    }
  }
  /// Cuts every array to the slots that `sequence`, already truncated, still has.
  void truncate(const Sequence& sequence) {
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      const std::size_t lane = a / arrays_per_lane_;
      arrays_[a].truncate(
          sequence.seq_len(shape_.first_layer(scope_, lane), shape_.first_head(scope_, lane)));
    }
  }
  void reset() noexcept {
    for (auto& array : arrays_)
      array.clear();
  }

 private:
  CacheShape shape_;
  MaskScope scope_;
  std::size_t arrays_per_lane_;
  std::vector<SlotVector<float>> arrays_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SLOT_ARRAY_HPP_
