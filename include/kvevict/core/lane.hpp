#ifndef KVEVICT_CORE_LANE_HPP_
#define KVEVICT_CORE_LANE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// The K or the V rows of one lane (one layer and KV head), described without a copy.
///
/// Slot s lies at data + page * page_stride_bytes + (s % page_size) * slot_stride_bytes with
/// page = page_table[s / page_size]; without a table everything is one page. Page size 1 makes
/// the table a token-to-slot map. Element c of a row lies dim_stride_bytes * c further on, so V
/// may be stored transposed; blocks of several elements (q8_0) always lie side by side, and there
/// dim_stride_bytes is 0. Rows that no stride describes (other quantised blocks, packed tiles) are
/// read through `load_row`, which then takes the place of all of this.
template <class Byte>
struct BasicRows {
  Byte* data = nullptr;
  std::ptrdiff_t slot_stride_bytes = 0;
  std::ptrdiff_t dim_stride_bytes = 0;  ///< row_bytes(type, 1) where a row is contiguous
  ElementType type = ElementType::kF32;

  const std::int32_t* page_table = nullptr;  ///< [ceil(seq_len / page_size)]
  std::size_t page_size = 0;                 ///< slots per page; not read without a table
  std::ptrdiff_t page_stride_bytes = 0;

  /// Writes row `slot` of (layer, kv_head) as float to `row`; must not throw.
  void (*load_row)(const void* cache, std::size_t layer, std::size_t kv_head, std::size_t slot,
                   float* row) noexcept = nullptr;
  /// Overwrites row `to` by row `from`; null where rows behind load_row are never compacted.
  void (*move_row)(const void* cache, std::size_t layer, std::size_t kv_head, std::size_t from,
                   std::size_t to) noexcept = nullptr;
  const void* cache = nullptr;  ///< first argument of both
  std::size_t layer = 0;
  std::size_t kv_head = 0;

  [[nodiscard]] constexpr bool present() const noexcept {
    return data != nullptr || load_row != nullptr;
  }
  [[nodiscard]] constexpr bool movable() const noexcept {
    return load_row == nullptr || move_row != nullptr;
  }
  [[nodiscard]] constexpr bool row_is_contiguous() const noexcept {
    return dim_stride_bytes == static_cast<std::ptrdiff_t>(row_bytes(type, 1));
  }
  /// Address of element 0 of row `slot`; only where load_row is null.
  [[nodiscard]] constexpr Byte* row(std::size_t slot) const noexcept {
    if (page_table == nullptr) {
      return data + static_cast<std::ptrdiff_t>(slot) * slot_stride_bytes;
    }
    return data + static_cast<std::ptrdiff_t>(page_table[slot / page_size]) * page_stride_bytes +
           static_cast<std::ptrdiff_t>(slot % page_size) * slot_stride_bytes;
  }
  /// How many slots from `slot` on, at most `limit`, are slot_stride_bytes apart.
  [[nodiscard]] constexpr std::size_t run_length(std::size_t slot,
                                                 std::size_t limit) const noexcept {
    if (page_table == nullptr)
      return limit;
    const std::size_t rest = page_size - slot % page_size;
    return rest < limit ? rest : limit;
  }
};

using Rows = BasicRows<const std::byte>;
using MutableRows = BasicRows<std::byte>;

/// One (layer, KV head) of a cache as it is now. Slots come in ascending position (rule R1).
template <class Byte>
struct BasicLane {
  std::size_t seq_len = 0;  ///< live slots; rows behind are never read (case O-37)
  BasicRows<Byte> keys;     ///< [seq_len, head_dim]
  BasicRows<Byte> values;   ///< [seq_len, value_dim]; absent in latent-attention caches
  /// [seq_len], 0 = padding or out of window; empty = all valid (rule R9).
  std::span<const std::uint8_t> valid;

  [[nodiscard]] constexpr bool has_token(std::size_t slot) const noexcept {
    return valid.empty() || valid[slot] != 0;
  }
};

using Lane = BasicLane<const std::byte>;
using MutableLane = BasicLane<std::byte>;

namespace detail {

/// Throws InvalidArgument, naming `where`, unless the rows of a lane can be stored as they say.
template <class Byte>
void check_element_types(const BasicLane<Byte>& lane, const CacheShape& shape,
                         std::string_view where) {
  const auto check = [&](const BasicRows<Byte>& rows, std::string_view field, std::size_t dim) {
    if (rows.load_row != nullptr || block_len(rows.type) == 1)
      return;
    require(dim % block_len(rows.type) == 0, where, field, dim,
            "must be a multiple of 32 where rows are q8_0");
    require(rows.dim_stride_bytes == 0, where, "dim_stride_bytes", rows.dim_stride_bytes,
            "must be 0 where rows are q8_0, which cannot be transposed");
  };
  check(lane.keys, "head_dim", shape.head_dim);
  check(lane.values, "value_dim", shape.value_size());
}

}  // namespace detail

/// A cache that a policy can look at. Lengths may differ between lanes.
template <class View>
concept KvCacheView = requires(const View& view, std::size_t layer, std::size_t kv_head) {
  { view.shape() } -> std::convertible_to<CacheShape>;
  { view.lane(layer, kv_head) } -> std::same_as<Lane>;
};

/// A cache whose rows `compact` may move.
template <class View>
concept MutableKvCacheView = KvCacheView<View> &&
    requires(const View& view, std::size_t layer, std::size_t kv_head) {
  { view.mutable_lane(layer, kv_head) } -> std::same_as<MutableLane>;
};

/// Any view behind one pointer and two functions, so that what does not depend on the layout is
/// compiled once. Borrows the view.
class ViewRef {
 public:
  template <KvCacheView View>
    requires(!std::same_as<View, ViewRef>)
  explicit ViewRef(const View& view) noexcept
      : view_(&view),
        shape_([](const void* v) -> CacheShape { return static_cast<const View*>(v)->shape(); }),
        lane_([](const void* v, std::size_t layer, std::size_t kv_head) {
          return static_cast<const View*>(v)->lane(layer, kv_head);
        }) {}

  [[nodiscard]] CacheShape shape() const { return shape_(view_); }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const {
    return lane_(view_, layer, kv_head);
  }

 private:
  const void* view_;
  CacheShape (*shape_)(const void*);
  Lane (*lane_)(const void*, std::size_t, std::size_t);
};

/// Whether any layer and KV head holds a token in `slot`: what a mask that is for all goes by.
[[nodiscard]] inline bool any_has_token(const ViewRef& view, std::size_t slot) {
  const CacheShape shape = view.shape();
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      if (view.lane(layer, head).has_token(slot))
        return true;
    }
  }
  return false;
}

/// A ViewRef of any view; of a ViewRef, itself.
template <KvCacheView View>
[[nodiscard]] ViewRef as_view_ref(const View& view) noexcept {
  if constexpr (std::same_as<View, ViewRef>) {
    return view;
  } else {
    return ViewRef(view);
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_LANE_HPP_
