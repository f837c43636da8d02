#ifndef KVEVICT_VIEWS_CONTIGUOUS_VIEW_HPP_
#define KVEVICT_VIEWS_CONTIGUOUS_VIEW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN
namespace views {

/// A dense tensor of K or of V rows for all layers: base address and byte strides.
struct Tensor {
  std::byte* data = nullptr;
  ElementType type = ElementType::kF32;
  std::ptrdiff_t layer_stride_bytes = 0;
  std::ptrdiff_t head_stride_bytes = 0;
  std::ptrdiff_t slot_stride_bytes = 0;
  std::ptrdiff_t dim_stride_bytes = 0;

  /// [num_layers, capacity, num_heads, dim]: the heads of a token side by side.
  [[nodiscard]] static Tensor nhd(void* data, ElementType type, std::size_t capacity,
                                  std::size_t num_heads, std::size_t dim) noexcept {
    const auto element = static_cast<std::ptrdiff_t>(row_bytes(type, 1));
    const auto row = static_cast<std::ptrdiff_t>(row_bytes(type, dim));
    const auto token = static_cast<std::ptrdiff_t>(num_heads) * row;
    return {static_cast<std::byte*>(data),
            type,
            static_cast<std::ptrdiff_t>(capacity) * token,
            row,
            token,
            element};
  }
  /// [num_layers, num_heads, capacity, dim]: the tokens of a head side by side.
  [[nodiscard]] static Tensor hnd(void* data, ElementType type, std::size_t capacity,
                                  std::size_t num_heads, std::size_t dim) noexcept {
    const auto element = static_cast<std::ptrdiff_t>(row_bytes(type, 1));
    const auto row = static_cast<std::ptrdiff_t>(row_bytes(type, dim));
    const auto head = static_cast<std::ptrdiff_t>(capacity) * row;
    return {static_cast<std::byte*>(data),
            type,
            static_cast<std::ptrdiff_t>(num_heads) * head,
            head,
            row,
            element};
  }
  /// [num_layers, num_heads, dim, capacity]: V as a matrix product wants it. Throws InvalidArgument
  /// for q8_0, whose blocks lie within a row.
  [[nodiscard]] static Tensor transposed(void* data, ElementType type, std::size_t capacity,
                                         std::size_t num_heads, std::size_t dim) {
    detail::require(block_len(type) == 1, "Tensor::transposed", "type", static_cast<int>(type),
                    "must be kF32, kF16 or kBF16");
    const auto element = static_cast<std::ptrdiff_t>(row_bytes(type, 1));
    const auto column = static_cast<std::ptrdiff_t>(capacity) * element;
    const auto head = static_cast<std::ptrdiff_t>(dim) * column;
    return {static_cast<std::byte*>(data),
            type,
            static_cast<std::ptrdiff_t>(num_heads) * head,
            head,
            element,
            column};
  }

  [[nodiscard]] MutableRows rows(std::size_t layer, std::size_t kv_head) const noexcept {
    MutableRows rows;
    if (data == nullptr)
      return rows;
    rows.data = data + static_cast<std::ptrdiff_t>(layer) * layer_stride_bytes +
                static_cast<std::ptrdiff_t>(kv_head) * head_stride_bytes;
    rows.slot_stride_bytes = slot_stride_bytes;
    rows.dim_stride_bytes = dim_stride_bytes;
    rows.type = type;
    return rows;
  }
};

/// The one place where a writable lane becomes a readable one.
[[nodiscard]] inline Rows read_only(const MutableRows& rows) noexcept {
  return {rows.data,
          rows.slot_stride_bytes,
          rows.dim_stride_bytes,
          rows.type,
          rows.page_table,
          rows.page_size,
          rows.page_stride_bytes,
          rows.load_row,
          rows.move_row,
          rows.cache,
          rows.layer,
          rows.kv_head};
}
[[nodiscard]] inline Lane read_only(const MutableLane& lane) noexcept {
  return {lane.seq_len, read_only(lane.keys), read_only(lane.values), lane.valid};
}

/// A dense cache in which all lanes are equally long, or, with `lengths`, each as long as it is.
/// K and V may differ in type and layout. Borrows everything.
class ContiguousView {
 public:
  ContiguousView(const CacheShape& shape, const Tensor& keys, const Tensor& values,
                 std::size_t seq_len) noexcept
      : shape_(shape), keys_(keys), values_(values), seq_len_(seq_len) {}
  /// @param lengths  [num_layers, num_kv_heads]; throws InvalidArgument for another size
  ContiguousView(const CacheShape& shape, const Tensor& keys, const Tensor& values,
                 std::span<const std::size_t> lengths)
      : shape_(shape), keys_(keys), values_(values), lengths_(lengths) {
    detail::require(lengths.size() == shape.num_layers * shape.num_kv_heads, "ContiguousView",
                    "lengths.size()", lengths.size(), "must be num_layers * num_kv_heads");
  }

  /// Marks slots that hold no token: [capacity], the same for all lanes, 0 = not valid.
  void set_valid(std::span<const std::uint8_t> valid) noexcept { valid_ = valid; }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] MutableLane mutable_lane(std::size_t layer, std::size_t kv_head) const noexcept {
    const std::size_t len =
        lengths_.empty() ? seq_len_ : lengths_[layer * shape_.num_kv_heads + kv_head];
    return {len, keys_.rows(layer, kv_head), values_.rows(layer, kv_head), valid_};
  }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return read_only(mutable_lane(layer, kv_head));
  }

 private:
  CacheShape shape_;
  Tensor keys_;
  Tensor values_;
  std::size_t seq_len_ = 0;
  std::span<const std::size_t> lengths_;
  std::span<const std::uint8_t> valid_;
};

static_assert(MutableKvCacheView<ContiguousView>);

}  // namespace views
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_CONTIGUOUS_VIEW_HPP_
