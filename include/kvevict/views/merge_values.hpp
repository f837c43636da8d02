#ifndef KVEVICT_VIEWS_MERGE_VALUES_HPP_
#define KVEVICT_VIEWS_MERGE_VALUES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/half.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/kernels/q8_0.hpp"
#include "kvevict/views/compact.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

/// Row `slot` as floats.
inline void read_row(const MutableRows& rows, std::size_t dim, std::size_t slot,
                     const kernels::KernelSet& kernel, float* row) noexcept {
  if (rows.load_row != nullptr)
    return rows.load_row(rows.cache, rows.layer, rows.kv_head, slot, row);
  const std::byte* source = rows.row(slot);
  if (rows.row_is_contiguous())
    return kernel.widen(source, rows.type, dim, row);
  for (std::size_t c = 0; c < dim; ++c)
    kernel.widen(source + static_cast<std::ptrdiff_t>(c) * rows.dim_stride_bytes, rows.type, 1,
                 row + c);
}

/// Writes row `slot`, rounded to its type; only where load_row is null.
inline void write_row(const MutableRows& rows, std::size_t dim, std::size_t slot,
                      const float* row) noexcept {
  if (rows.type == ElementType::kQ8_0) {
    for (std::size_t c = 0; c < dim; c += block_len(rows.type))
      kernels::to_q8_0(row + c, rows.row(slot) + row_bytes(rows.type, c));
    return;
  }
  for (std::size_t c = 0; c < dim; ++c) {
    std::byte* target = rows.row(slot) + static_cast<std::ptrdiff_t>(c) * rows.dim_stride_bytes;
    if (rows.type == ElementType::kF32) {
      std::memcpy(target, &row[c], sizeof(float));
      continue;
    }
    const std::uint16_t half =
        rows.type == ElementType::kF16 ? kernels::to_f16(row[c]) : kernels::to_bf16(row[c]);
    std::memcpy(target, &half, sizeof(half));
  }
}

}  // namespace detail

struct MergeOptions {
  float similarity_threshold = 0.0F;  ///< least cosine of two keys, in [-1, 1]
  double merge_fraction = 1.0;  ///< share of a lane's evicted tokens that are folded, those of
                                ///< the largest cosines, in (0, 1]
};

/// Folds the values of tokens that are about to be evicted into tokens that stay: not eviction, but
/// what may come between a mask and its execution, with any policy. Run it before compact:
///
///   merge.run(view, mask);  compact(view, mask);  policy.apply(mask);
///
/// Per lane, each evicted e has one target t, the kept token whose key has the largest cosine with
/// its own, c_e (equal ones: the lower slot). It takes part if c_e >= similarity_threshold and c_e
/// is at least the (1 - merge_fraction) quantile of the lane's cosines, linear between neighbours,
/// where those under the threshold count as -infinity. Then
///
///   v_t <- ( v_t + sum w_e v_e ) / ( 1 + sum w_e ),   over the e of t that take part,
///   w_e = max(c_e, 0) |v_e| / ( |v_e| + |v_t| + 1e-6 ).
///
/// Keys stay as they are, rotated as they are. This is kvpress' MergingPress, after Token Merging
/// (arXiv 2210.09461) and D2O (arXiv 2406.13035), which differ from it and from each other.
/// Where the quantile falls between -infinity and a number, all above the threshold take part.
///
/// Results are rounded to the type of the values; blocks of q8_0 get a new scale with it.
///
/// It changes what the cache holds: a kept value is then no longer that of its token, so policies
/// that read values see mixtures, and the engine cannot take the step back. A value or a key that
/// is not finite is never folded, and no slot that holds no token. Costs a dot product for every
/// pair of an evicted and a kept token.
class ValueMerge {
 public:
  /// Throws InvalidArgument naming the field and its value.
  explicit ValueMerge(const MergeOptions& options = {},
                      const kernels::KernelSet& kernel = kernels::best())
      : options_(options), kernel_(&kernel) {
    detail::require(options.similarity_threshold >= -1.0F && options.similarity_threshold <= 1.0F,
                    "ValueMerge", "similarity_threshold", options.similarity_threshold,
                    "must be in [-1, 1]");
    detail::require(options.merge_fraction > 0.0 && options.merge_fraction <= 1.0, "ValueMerge",
                    "merge_fraction", options.merge_fraction, "must be in (0, 1]");
  }

  /// Returns how many values were folded. Throws InvalidArgument, before anything changed, if the
  /// mask has not the view's lengths, a key or value is missing, rows cannot be stored as they say,
  /// or values lie behind a callback, which nothing can be written through.
  template <MutableKvCacheView View>
  std::size_t run(const View& view, const KeepMask& mask) {
    const CacheShape shape = view.shape();
    detail::check_mask_fits(view, mask, "ValueMerge");
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        const MutableLane lane = view.mutable_lane(layer, head);
        if (lane.seq_len == 0)
          continue;
        detail::require(lane.keys.present() && lane.values.present(), "ValueMerge", "layer", layer,
                        "must have keys and values");
        detail::require(lane.values.load_row == nullptr, "ValueMerge", "layer", layer,
                        "has values with load_row, which cannot be written");
        detail::check_element_types(lane, shape, "ValueMerge");
      }
    }
    std::size_t num_merged = 0;
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        num_merged += merge_lane(view.mutable_lane(layer, head), shape,
                                 [&](std::size_t slot) { return mask.keeps(layer, head, slot); });
      }
    }
    return num_merged;
  }

 private:
  static constexpr std::size_t kBlock = 64;  // keys that are compared at a time

  struct Evicted {
    std::size_t slot = 0;
    std::size_t target = 0;
    float cosine = -std::numeric_limits<float>::infinity();
  };

  template <class Keeps>
  std::size_t merge_lane(const MutableLane& lane, const CacheShape& shape, Keeps&& keeps) {
    evicted_.clear();
    kept_.clear();
    for (std::size_t slot = 0; slot < lane.seq_len; ++slot) {
      if (keeps(slot)) {
        kept_.push_back(slot);
      } else if (lane.has_token(slot)) {
        evicted_.push_back({.slot = slot});
      }
    }
    if (kept_.empty() || evicted_.empty())
      return 0;
    find_targets(lane.keys, shape.head_dim);
    const float least = least_cosine();
    std::erase_if(evicted_, [&](const Evicted& e) { return !(e.cosine >= least); });
    std::sort(evicted_.begin(), evicted_.end(), [](const Evicted& a, const Evicted& b) {
      return std::pair{a.target, a.slot} < std::pair{b.target, b.slot};
    });
    return fold(lane.values, shape.value_size());
  }

  // Block by block, so that neither side is held as floats as a whole.
  void find_targets(const MutableRows& keys, std::size_t dim) {
    ours_.resize(kBlock * dim);
    theirs_.resize(kBlock * dim);
    cosines_.resize(kBlock * kBlock);
    for (std::size_t first = 0; first < evicted_.size(); first += kBlock) {
      const std::size_t num_ours = std::min(kBlock, evicted_.size() - first);
      for (std::size_t i = 0; i < num_ours; ++i)
        read_unit_key(keys, dim, evicted_[first + i].slot, ours_.data() + i * dim);
      for (std::size_t start = 0; start < kept_.size(); start += kBlock) {
        const std::size_t num_theirs = std::min(kBlock, kept_.size() - start);
        for (std::size_t i = 0; i < num_theirs; ++i)
          read_unit_key(keys, dim, kept_[start + i], theirs_.data() + i * dim);
        kernel_->row_dots(ours_.data(), num_ours, static_cast<std::ptrdiff_t>(dim),
                          {theirs_.data(), static_cast<std::ptrdiff_t>(dim * sizeof(float)),
                           num_theirs, dim, ElementType::kF32},
                          cosines_.data(), static_cast<std::ptrdiff_t>(kBlock));
        for (std::size_t i = 0; i < num_ours; ++i) {
          Evicted& ours = evicted_[first + i];
          for (std::size_t j = 0; j < num_theirs; ++j) {
            const float cosine = cosines_[i * kBlock + j];
            if (cosine > ours.cosine && std::isfinite(cosine)) {
              ours.cosine = cosine;
              ours.target = kept_[start + j];
            }
          }
        }
      }
    }
  }
  void read_unit_key(const MutableRows& keys, std::size_t dim, std::size_t slot, float* key) {
    constexpr float kLeastNorm = 1e-6F;
    detail::read_row(keys, dim, slot, *kernel_, key);
    const float norm = norm_of(key, dim);
    kernel_->scale(1.0F / std::max(norm, kLeastNorm), dim, key);
  }
  [[nodiscard]] float norm_of(const float* row, std::size_t dim) const noexcept {
    float norm = 0.0F;
    kernel_->row_norms({row, 0, 1, dim, ElementType::kF32}, &norm);
    return norm;
  }

  // From which cosine on tokens take part.
  [[nodiscard]] float least_cosine() {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const float threshold = options_.similarity_threshold;
    if (options_.merge_fraction >= 1.0)
      return threshold;
    cosines_.clear();
    for (const Evicted& e : evicted_)
      cosines_.push_back(e.cosine >= threshold ? e.cosine : kNone);
    std::sort(cosines_.begin(), cosines_.end());
    // A whole number that a product of decimals misses by a rounding is meant.
    const double exact = (1.0 - options_.merge_fraction) * static_cast<double>(cosines_.size() - 1);
    const double position = std::abs(exact - std::round(exact)) < 1e-9 ? std::round(exact) : exact;
    const auto below = static_cast<std::size_t>(position);
    const double share = position - static_cast<double>(below);
    const float low = cosines_[below];
    if (low == kNone)
      return threshold;
    const float high = cosines_[std::min(below + 1, cosines_.size() - 1)];
    const double between =
        static_cast<double>(low) + share * (static_cast<double>(high) - static_cast<double>(low));
    return std::max(threshold, static_cast<float>(between));
  }

  std::size_t fold(const MutableRows& values, std::size_t dim) {
    constexpr double kEpsilon = 1e-6;
    ours_.resize(dim);
    theirs_.resize(dim);
    sum_.resize(dim);
    std::size_t num_merged = 0;
    for (std::size_t first = 0; first < evicted_.size();) {
      const std::size_t target = evicted_[first].target;
      detail::read_row(values, dim, target, *kernel_, theirs_.data());
      const auto target_norm = static_cast<double>(norm_of(theirs_.data(), dim));
      std::copy(theirs_.begin(), theirs_.end(), sum_.begin());
      double total = 1.0;
      for (; first < evicted_.size() && evicted_[first].target == target; ++first) {
        detail::read_row(values, dim, evicted_[first].slot, *kernel_, ours_.data());
        const auto norm = static_cast<double>(norm_of(ours_.data(), dim));
        const double weight = std::max(static_cast<double>(evicted_[first].cosine), 0.0) * norm /
                              (norm + target_norm + kEpsilon);
        if (!std::isfinite(weight) || !(weight > 0.0))
          continue;
        ++num_merged;
        total += weight;
        for (std::size_t c = 0; c < dim; ++c)
          sum_[c] += weight * static_cast<double>(ours_[c]);
      }
      if (!(total > 1.0))
        continue;
      for (std::size_t c = 0; c < dim; ++c)
        theirs_[c] = static_cast<float>(sum_[c] / total);
      detail::write_row(values, dim, target, theirs_.data());
    }
    return num_merged;
  }

  MergeOptions options_;
  const kernels::KernelSet* kernel_;
  // Memory that is kept between calls.
  std::vector<Evicted> evicted_;
  std::vector<std::size_t> kept_;
  std::vector<float> ours_;
  std::vector<float> theirs_;
  std::vector<float> cosines_;
  std::vector<double> sum_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_MERGE_VALUES_HPP_
