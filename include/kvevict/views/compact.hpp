#ifndef KVEVICT_VIEWS_COMPACT_HPP_
#define KVEVICT_VIEWS_COMPACT_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/plan.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

/// Moves rows [first, first + count) down to `target`, which is below `first`.
inline void move_rows(const MutableRows& rows, std::size_t dim, std::size_t first,
                      std::size_t count, std::size_t target) noexcept {
  if (rows.move_row != nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      rows.move_row(rows.cache, rows.layer, rows.kv_head, first + i, target + i);
    }
    return;
  }
  while (count > 0) {
    // As many rows as neither side breaks off: to the end of a page, or all of them.
    const std::size_t run = rows.run_length(target, rows.run_length(first, count));
    const std::byte* source = rows.row(first);
    std::byte* destination = rows.row(target);
    if (rows.row_is_contiguous()) {
      const std::size_t num_bytes = row_bytes(rows.type, dim);
      if (rows.slot_stride_bytes == static_cast<std::ptrdiff_t>(num_bytes)) {
        std::memmove(destination, source, run * num_bytes);
      } else {
        for (std::size_t i = 0; i < run; ++i) {
          const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(i) * rows.slot_stride_bytes;
          std::memmove(destination + offset, source + offset, num_bytes);
        }
      }
    } else {
      const std::size_t element = row_bytes(rows.type, 1);
      for (std::size_t c = 0; c < dim; ++c) {
        const std::ptrdiff_t column = static_cast<std::ptrdiff_t>(c) * rows.dim_stride_bytes;
        if (rows.slot_stride_bytes == static_cast<std::ptrdiff_t>(element)) {
          std::memmove(destination + column, source + column, run * element);
          continue;
        }
        for (std::size_t i = 0; i < run; ++i) {
          const std::ptrdiff_t offset =
              column + static_cast<std::ptrdiff_t>(i) * rows.slot_stride_bytes;
          std::memmove(destination + offset, source + offset, element);
        }
      }
    }
    first += run;
    target += run;
    count -= run;
  }
}

/// Throws InvalidArgument, naming `where`, unless the mask has the view's lanes and lengths.
template <KvCacheView View>
void check_mask_fits(const View& view, const KeepMask& mask, std::string_view where) {
  const CacheShape shape = view.shape();
  require(mask.num_layers() == shape.num_layers, where, "mask num_layers", mask.num_layers(),
          "must be the view's");
  require(mask.num_kv_heads() == shape.num_kv_heads, where, "mask num_kv_heads",
          mask.num_kv_heads(), "must be the view's");
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      require(mask.seq_len(layer, head) == view.lane(layer, head).seq_len, where, "mask seq_len",
              mask.seq_len(layer, head), "must be the view's");
    }
  }
}

}  // namespace detail

/// Moves the kept rows of every lane to its front, in place and in order; rows of a run move
/// together. Lane (layer, head) then has mask.count(layer, head) live rows: the engine sets its
/// lengths and frees what lies behind (whole pages, or a reallocation). Touches no byte outside
/// the live rows. Call it when every layer of the step has attended. Slots that were not valid are
/// never kept, so all that is left is valid: a validity mask has to be made anew. Pages that
/// another sequence reads too have to be copied before: what moves here moves for both.
///
/// Throws InvalidArgument, before anything moved, if the mask has not the view's lengths, rows
/// behind a callback cannot be moved, or rows cannot be stored as they say.
///
/// @param executor  moves several lanes at a time: then mutable_lane() and move_row are called by
///                  several threads
template <MutableKvCacheView View>
void compact(const View& view, const KeepMask& mask, const Executor& executor = {}) {
  const CacheShape shape = view.shape();
  detail::check_mask_fits(view, mask, "compact");
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      const MutableLane lane = view.mutable_lane(layer, head);
      detail::require(lane.keys.movable() && lane.values.movable(), "compact", "layer", layer,
                      "has rows with load_row but no move_row");
      detail::check_element_types(lane, shape, "compact");
    }
  }
  executor.for_each(shape.num_lanes(MaskScope::kHead), [&](std::size_t, std::size_t i) {
    const std::size_t layer = i / shape.num_kv_heads;
    const std::size_t head = i % shape.num_kv_heads;
    const MutableLane lane = view.mutable_lane(layer, head);
    for_each_move(mask, layer, head, [&](std::size_t from, std::size_t to, std::size_t count) {
      if (lane.keys.present())
        detail::move_rows(lane.keys, shape.head_dim, from, count, to);
      if (lane.values.present())
        detail::move_rows(lane.values, shape.value_size(), from, count, to);
    });
  });
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_COMPACT_HPP_
