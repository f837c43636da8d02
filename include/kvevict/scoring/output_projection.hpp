#ifndef KVEVICT_SCORING_OUTPUT_PROJECTION_HPP_
#define KVEVICT_SCORING_OUTPUT_PROJECTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/kernels/linalg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How the query heads h of a KV group meet in the size of what cached token i adds to the layer's
/// output. LaProx defines it for one head, |A^h_i| |v_i W^h|, and leaves the group open. A^h_i is
/// the attention column, W^h the head's rows of W_O; a constant factor changes no choice.
enum class GroupReading : std::uint8_t {
  kHeadProducts,  ///< mean_h( |A^h_i| |v_i W^h| )
  kMeanNorms,     ///< |mean_h A^h_i| mean_h |v_i W^h|
  kSummed,        ///< |mean_h A^h_i| |v_i sum_h W^h|
  kExact,         ///< |sum_h A^h_i (v_i W^h)|, the Frobenius norm of the true contribution
};

[[nodiscard]] constexpr auto enum_names(GroupReading /*type*/) noexcept {
  return std::array<std::pair<std::string_view, GroupReading>, 4>{
      {{"head_products", GroupReading::kHeadProducts},
       {"mean_norms", GroupReading::kMeanNorms},
       {"summed", GroupReading::kSummed},
       {"exact", GroupReading::kExact}}};
}

/// W_O of a model in the form in which | v W | costs value_dim^2 / 2 multiply-adds instead of
/// value_dim * hidden_size: the Cholesky factor C of W W^T, since | v W | = | C^T v |. Made once
/// per model and shared by all its sequences; read-only from then on.
///
/// Memory: value_dim^2 floats per factor. A KV head has group_size factors for kHeadProducts and
/// kMeanNorms, 1 for kSummed, group_size (group_size + 1) / 2 for kExact. An 8B model with 32
/// layers, 32 query and 8 KV heads of 128: 64, 16 and 160 MiB, 176 MiB for all readings.
class OutputProjection {
 public:
  /// @param only  the one reading to prepare; without it, all four
  /// @param keep_weight  keep W_O too, for |v W|_1, which no factor gives: as many bytes again as
  ///                     the weights that set_layer is given
  OutputProjection(const CacheShape& shape, std::size_t hidden_size,
                   std::optional<GroupReading> only = std::nullopt, bool keep_weight = false)
      : shape_((detail::check_shape(shape, "OutputProjection"), shape)),
        hidden_size_(hidden_size),
        only_(only),
        weights_(keep_weight ? shape.num_layers : 0),
        has_layer_(shape.num_layers, 0) {
    detail::require(hidden_size > 0, "OutputProjection", "hidden_size", hidden_size, "must be > 0");
    const std::size_t group = shape.group_size();
    // With a group of one the sum is the head itself, and there are no pairs.
    const bool heads = only != GroupReading::kSummed || group == 1;
    const bool sum = group > 1 && (!only || only == GroupReading::kSummed);
    const bool pairs = !only || only == GroupReading::kExact;
    num_sums_ = sum ? 1 : 0;
    num_heads_ = heads ? group : 0;
    num_pairs_ = pairs ? group * (group - 1) / 2 : 0;
    factors_.resize(shape.num_layers * shape.num_kv_heads * factors_per_kv_head() * factor_size());
  }

  /// Prepares one layer.
  ///
  /// @param weight  W_O [num_q_heads * value_dim, hidden_size]: row h * value_dim + c multiplies
  ///                channel c of query head h. A Linear layer's weight is its transpose.
  /// @param row_stride_bytes  0: rows lie side by side
  /// @note  O(factors * value_dim^2 * hidden_size). Layers may be set by several threads at once.
  void set_layer(std::size_t layer, const void* weight, ElementType type = ElementType::kF32,
                 std::ptrdiff_t row_stride_bytes = 0) {
    detail::require(layer < shape_.num_layers, "OutputProjection", "layer", layer,
                    "must be < num_layers");
    detail::require(block_len(type) == 1, "OutputProjection", "type", static_cast<int>(type),
                    "must be kF32, kF16 or kBF16");
    const std::size_t dim = shape_.value_size();
    const std::size_t group = shape_.group_size();
    const std::size_t block = dim * hidden_size_;
    if (row_stride_bytes == 0) {
      row_stride_bytes = static_cast<std::ptrdiff_t>(row_bytes(type, hidden_size_));
    }
    if (keeps_weight())
      weights_[layer] = transpose(static_cast<const std::byte*>(weight), type, row_stride_bytes);
    std::vector<float> heads(group * block);
    std::vector<float> sum(block);
    for (std::size_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      for (std::size_t row = 0; row < group * dim; ++row) {
        const auto from = static_cast<std::ptrdiff_t>(kv_head * group * dim + row);
        kernels::best().widen(static_cast<const std::byte*>(weight) + from * row_stride_bytes, type,
                              hidden_size_, heads.data() + row * hidden_size_);
      }
      float* factor = factors_.data() + first_factor(layer, kv_head);
      const auto add_factor = [&](const float* block_of_weight) {
        kernels::gram_cholesky(block_of_weight, dim, hidden_size_,
                               static_cast<std::ptrdiff_t>(hidden_size_), factor);
        factor += factor_size();
      };
      const auto add_to_sum = [&](std::size_t h) {
        for (std::size_t i = 0; i < block; ++i)
          sum[i] += heads[h * block + i];
      };
      if (num_sums_ > 0) {
        std::fill(sum.begin(), sum.end(), 0.0F);
        for (std::size_t h = 0; h < group; ++h)
          add_to_sum(h);
        add_factor(sum.data());
      }
      for (std::size_t h = 0; h < num_heads_; ++h)
        add_factor(heads.data() + h * block);
      for (std::size_t h = 0; num_pairs_ > 0 && h < group; ++h) {
        for (std::size_t other = h + 1; other < group; ++other) {
          std::fill(sum.begin(), sum.end(), 0.0F);
          add_to_sum(h);
          add_to_sum(other);
          add_factor(sum.data());
        }
      }
    }
    has_layer_[layer] = 1;
  }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  /// Whether every layer was set.
  [[nodiscard]] bool complete() const noexcept {
    return std::find(has_layer_.begin(), has_layer_.end(), 0) == has_layer_.end();
  }
  /// Whether it was prepared for `reading`.
  [[nodiscard]] bool serves(GroupReading reading) const noexcept {
    if (!only_ || only_ == reading || shape_.group_size() == 1)
      return true;
    return num_heads_ > 0 && reading != GroupReading::kSummed && reading != GroupReading::kExact;
  }
  [[nodiscard]] bool keeps_weight() const noexcept { return !weights_.empty(); }
  /// W^T of one query head: hidden_size rows of value_dim, of the type that set_layer was given.
  [[nodiscard]] kernels::RowBlock transposed(std::size_t layer, std::size_t q_head) const noexcept {
    const Weight& weight = weights_[layer];
    const std::size_t stride = row_bytes(weight.type, shape_.value_size());
    return {weight.data.data() + q_head * hidden_size_ * stride,
            static_cast<std::ptrdiff_t>(stride), hidden_size_, shape_.value_size(), weight.type};
  }
  /// The factors of one KV head that `reading` takes, [count, value_dim, value_dim]: of each query
  /// head, of their sum, or of each query head and then of the sums W^h + W^h' of each pair
  /// (0,1), (0,2), .., (1,2), ..
  [[nodiscard]] std::span<const float> factors(std::size_t layer, std::size_t kv_head,
                                               GroupReading reading) const noexcept {
    std::size_t skipped = num_sums_;
    std::size_t count = num_heads_;
    if (reading == GroupReading::kSummed) {
      skipped = 0;
      count = 1;
    } else if (reading == GroupReading::kExact) {
      count += num_pairs_;
    }
    return {factors_.data() + first_factor(layer, kv_head) + skipped * factor_size(),
            count * factor_size()};
  }

 private:
  // [num_q_heads, hidden_size, value_dim]
  struct Weight {
    std::vector<std::byte> data;
    ElementType type = ElementType::kF32;
  };
  [[nodiscard]] Weight transpose(const std::byte* weight, ElementType type,
                                 std::ptrdiff_t row_stride_bytes) const {
    const std::size_t size = row_bytes(type, 1);
    const std::size_t dim = shape_.value_size();
    Weight result{std::vector<std::byte>(shape_.num_q_heads * hidden_size_ * dim * size), type};
    for (std::size_t row = 0; row < shape_.num_q_heads * dim; ++row) {
      const std::byte* from = weight + static_cast<std::ptrdiff_t>(row) * row_stride_bytes;
      std::byte* to = result.data.data() + (row / dim * hidden_size_ * dim + row % dim) * size;
      for (std::size_t j = 0; j < hidden_size_; ++j)
        std::copy_n(from + j * size, size, to + j * dim * size);
    }
    return result;
  }
  [[nodiscard]] std::size_t factor_size() const noexcept {
    return shape_.value_size() * shape_.value_size();
  }
  [[nodiscard]] std::size_t factors_per_kv_head() const noexcept {
    return num_sums_ + num_heads_ + num_pairs_;
  }
  [[nodiscard]] std::size_t first_factor(std::size_t layer, std::size_t kv_head) const noexcept {
    return (layer * shape_.num_kv_heads + kv_head) * factors_per_kv_head() * factor_size();
  }

  CacheShape shape_;
  std::size_t hidden_size_;
  std::optional<GroupReading> only_;
  std::size_t num_sums_ = 0;
  std::size_t num_heads_ = 0;
  std::size_t num_pairs_ = 0;
  std::vector<float> factors_;   // [layer, kv_head, {sum, heads, pairs}, dim, dim]
  std::vector<Weight> weights_;  // [layer], where they are kept
  std::vector<std::uint8_t> has_layer_;
};

namespace detail {

/// What a policy `where` that needs the projection refuses.
inline void check_output_projection(std::string_view where, const OutputProjection* projection,
                                    const CacheShape& shape) {
  if (projection == nullptr)
    throw_invalid_argument(where, "output_projection is missing");
  check_same_shape(projection->shape(), shape, std::string(where).append(" output_projection"));
  if (!projection->complete())
    throw_invalid_argument(where, "output_projection has layers that were not set");
}
/// What one refuses that needs the factors of a reading.
inline void check_output_projection(std::string_view where, const OutputProjection* projection,
                                    const CacheShape& shape, GroupReading reading) {
  check_output_projection(where, projection, shape);
  if (!projection->serves(reading))
    throw_invalid_argument(where, "output_projection was prepared for another group_reading");
}

}  // namespace detail

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OUTPUT_PROJECTION_HPP_
