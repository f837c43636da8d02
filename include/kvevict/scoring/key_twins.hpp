#ifndef KVEVICT_SCORING_KEY_TWINS_HPP_
#define KVEVICT_SCORING_KEY_TWINS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How close a key is to the nearest one of a set of keys of its lane, by cosine, those within
/// `local_window` slots of it left out: neighbours are alike without saying the same.
///
/// Keys are read as they are cached, of lanes that are one KV head. A key without a direction, 0 or
/// not finite, is in no set and has no twin.
class KeyTwins {
 public:
  explicit KeyTwins(std::size_t local_window) noexcept : local_window_(local_window) {}

  /// The set becomes the slots whose bit is set in `kept`.
  void gather(const ScoreInput& input, std::size_t lane, std::span<const std::uint64_t> kept) {
    const CacheShape& shape = input.sequence.shape();
    dim_ = shape.head_dim;
    rows_ = input.view
                .lane(shape.first_layer(MaskScope::kHead, lane),
                      shape.first_head(MaskScope::kHead, lane))
                .keys;
    slots_.clear();
    keys_.clear();
    for_each_row(rows_, dim_, 0, input.sequence.seq_len(lane), input.kernel, gathered_, widened_,
                 [&](const float* row, std::size_t slot) {
                   if (!detail::has_bit(kept, slot))
                     return;
                   slots_.push_back(slot);
                   keys_.insert(keys_.end(), row, row + dim_);
                   make_unit(keys_.data() + (slots_.size() - 1) * dim_);
                 });
  }
  /// Largest cosine of the key in `slot` with one of the set, -1 where there is none to compare
  /// with. `usable` becomes whether the key has a direction.
  /// @note  O(keys of the set * head_dim).
  [[nodiscard]] float largest_cosine(const ScoreInput& input, std::size_t slot, bool& usable) {
    load(input, slot);
    usable = make_unit(key_.data());
    cosines_.resize(std::max(cosines_.size(), slots_.size()));
    input.kernel.row_dots(
        key_.data(), 1, 0,
        kernels::RowBlock{keys_.data(), static_cast<std::ptrdiff_t>(dim_ * sizeof(float)),
                          slots_.size(), dim_, ElementType::kF32},
        cosines_.data(), 0);
    float largest = -1.0F;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const std::size_t distance = slot > slots_[i] ? slot - slots_[i] : slots_[i] - slot;
      if (distance > local_window_)
        largest = std::max(largest, cosines_[i]);
    }
    return largest;
  }
  /// Takes `out`, which is in the set, out of it and puts `in` in its place.
  void replace(const ScoreInput& input, std::size_t out, std::size_t in) {
    const auto i =
        static_cast<std::size_t>(std::find(slots_.begin(), slots_.end(), out) - slots_.begin());
    load(input, in);
    make_unit(key_.data());
    slots_[i] = in;
    std::copy_n(key_.begin(), dim_, keys_.begin() + static_cast<std::ptrdiff_t>(i * dim_));
  }

 private:
  void load(const ScoreInput& input, std::size_t slot) {
    key_.resize(std::max(key_.size(), dim_));
    for_each_row(rows_, dim_, slot, slot + 1, input.kernel, gathered_, widened_,
                 [&](const float* row, std::size_t) { std::copy_n(row, dim_, key_.begin()); });
  }
  // A key without a direction becomes 0, which is no one's twin.
  bool make_unit(float* key) const noexcept {
    double square = 0.0;
    for (std::size_t c = 0; c < dim_; ++c)
      square += static_cast<double>(key[c]) * static_cast<double>(key[c]);
    const bool usable = square > 0.0 && std::isfinite(square);
    const double scale = usable ? 1.0 / std::sqrt(square) : 0.0;
    for (std::size_t c = 0; c < dim_; ++c)
      key[c] = usable ? static_cast<float>(scale * static_cast<double>(key[c])) : 0.0F;
    return usable;
  }

  std::size_t local_window_;
  std::size_t dim_ = 0;
  Rows rows_ = {};  // of the lane; borrowed during one selection
  std::vector<std::size_t> slots_;
  std::vector<float> keys_;  // [slots_.size(), dim_] unit keys of the set
  // Memory that is kept between calls.
  std::vector<float> key_;
  std::vector<float> cosines_;
  std::vector<float> gathered_;
  std::vector<float> widened_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_KEY_TWINS_HPP_
