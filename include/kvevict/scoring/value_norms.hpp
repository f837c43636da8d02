#ifndef KVEVICT_SCORING_VALUE_NORMS_HPP_
#define KVEVICT_SCORING_VALUE_NORMS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/projected_norms.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// |v|_2 of every cached token in every lane of some layers. A token's V never changes, so each
/// norm is computed once, when the V is seen for the first time.
class ValueNorms {
 public:
  /// @param layers  whose norms are kept, each < num_layers
  ValueNorms(const CacheShape& shape, std::vector<std::size_t> layers)
      : shape_(shape), layers_(std::move(layers)), norms_(shape, MaskScope::kHead) {}

  /// Computes the norms that are missing. Slots that are not valid get 0 without being read (rule
  /// R9).
  void observe(const ViewRef& view, const kernels::KernelSet& kernel) {
    for (const std::size_t layer : layers_) {
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
        const std::span<float> norms = norms_.of(layer, head);
        const std::size_t first = num_known(norms);
        if (first == norms.size())
          continue;
        const Lane lane = view.lane(layer, head);
        row_norms(lane.values, shape_.value_size(), first, norms.size(), kernel, gathered_,
                  norms.subspan(first));
        for (std::size_t slot = first; slot < std::min(norms.size(), lane.valid.size()); ++slot) {
          if (lane.valid[slot] == 0)
            norms[slot] = 0.0F;
        }
      }
    }
  }
  /// Whether the V of every token was seen.
  [[nodiscard]] bool complete() const noexcept {
    return std::all_of(layers_.begin(), layers_.end(), [&](std::size_t layer) {
      const std::span<const float> norms =
          norms_.at(shape_.lane_of(MaskScope::kHead, layer, shape_.num_kv_heads - 1));
      return num_known(norms) == norms.size();
    });
  }
  /// [seq_len] of one of the layers, by slot.
  [[nodiscard]] std::span<const float> of(std::size_t layer, std::size_t kv_head) const noexcept {
    return norms_.at(shape_.lane_of(MaskScope::kHead, layer, kv_head));
  }

  void append(std::size_t count) { norms_.append(count, kUnknown); }
  void apply(const KeepMask& mask) { norms_.apply(mask); }
  void truncate(const Sequence& sequence) { norms_.truncate(sequence); }
  void reset() noexcept { norms_.reset(); }

 private:
  static constexpr float kUnknown = -1.0F;

  // The newest tokens are the ones that may be missing.
  [[nodiscard]] static std::size_t num_known(std::span<const float> norms) noexcept {
    std::size_t known = norms.size();
    while (known > 0 && norms[known - 1] == kUnknown)
      --known;
    return known;
  }

  CacheShape shape_;
  std::vector<std::size_t> layers_;
  SlotArray norms_;
  std::vector<float> gathered_;
};

/// row[i] *= norms[i] / mean(norms) over the slots of the row. Norms that are not finite take no
/// part in the mean; where it is 0 all values are alike and the row stays as it is.
inline void weigh_by_norms(std::span<const float> norms, std::span<float> row) noexcept {
  double sum = 0.0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!std::isfinite(norms[i]))
      continue;
    sum += static_cast<double>(norms[i]);
    ++count;
  }
  if (!(sum > 0.0))
    return;
  const auto scale = static_cast<float>(static_cast<double>(count) / sum);
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] *= norms[i] * scale;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_VALUE_NORMS_HPP_
