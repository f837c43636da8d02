#ifndef KVEVICT_SCORING_ROW_BLOCKS_HPP_
#define KVEVICT_SCORING_ROW_BLOCKS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// How many slots of [slot, last) from `slot` on are slot_stride_bytes apart. Pages that lie side
/// by side are as good as one, so a token-to-slot map costs nothing where it has no holes.
[[nodiscard]] inline std::size_t adjacent_rows(const Rows& rows, std::size_t slot,
                                               std::size_t last) noexcept {
  std::size_t count = rows.run_length(slot, last - slot);
  if (rows.page_table == nullptr ||
      rows.page_stride_bytes !=
          static_cast<std::ptrdiff_t>(rows.page_size) * rows.slot_stride_bytes)
    return count;
  for (std::size_t page = slot / rows.page_size;
       count < last - slot && rows.page_table[page + 1] == rows.page_table[page] + 1; ++page)
    count += std::min(rows.page_size, last - slot - count);
  return count;
}

}  // namespace detail

/// Presents the rows of slots [first, last) to a kernel, block by block: visit(block, slot) with
/// `slot` the block's first one. Rows that lie contiguous in memory are passed in place, as many at
/// a time as lie side by side; where these are few, as between holes, they are first copied
/// together into `scratch`, which is kept for the next call; transposed rows and rows behind a
/// callback are widened into it. A row's elements are the same either way, so a kernel that looks
/// at one row at a time gives the same bits for every layout.
template <class Visit>
void for_each_row_block(const Rows& rows, std::size_t dim, std::size_t first, std::size_t last,
                        const kernels::KernelSet& kernel, std::vector<float>& scratch,
                        Visit&& visit) {
  constexpr std::size_t kGathered = 64;
  constexpr std::size_t kFew = 8;
  const bool in_place = rows.load_row == nullptr && rows.row_is_contiguous();
  if (!in_place || rows.page_table != nullptr)  // holes may come later, and want no memory then
    scratch.resize(std::max(scratch.size(), kGathered * dim));
  for (std::size_t slot = first; slot < last;) {
    if (in_place) {
      const std::size_t count = detail::adjacent_rows(rows, slot, last);
      if (count >= kFew || count == last - slot) {
        visit(kernels::RowBlock{rows.row(slot), rows.slot_stride_bytes, count, dim, rows.type},
              slot);
        slot += count;
        continue;
      }
    }
    const std::size_t count = std::min(kGathered, last - slot);
    if (in_place) {
      const std::size_t num_bytes = row_bytes(rows.type, dim);
      auto* const copies = reinterpret_cast<std::byte*>(scratch.data());
      for (std::size_t i = 0; i < count; ++i)
        std::memcpy(copies + i * num_bytes, rows.row(slot + i), num_bytes);
      visit(
          kernels::RowBlock{copies, static_cast<std::ptrdiff_t>(num_bytes), count, dim, rows.type},
          slot);
      slot += count;
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      float* row = scratch.data() + i * dim;
      if (rows.load_row != nullptr) {
        rows.load_row(rows.cache, rows.layer, rows.kv_head, slot + i, row);
        continue;
      }
      const std::byte* source = rows.row(slot + i);
      for (std::size_t c = 0; c < dim; ++c) {
        kernel.widen(source + static_cast<std::ptrdiff_t>(c) * rows.dim_stride_bytes, rows.type, 1,
                     row + c);
      }
    }
    visit(kernels::RowBlock{scratch.data(), static_cast<std::ptrdiff_t>(dim * sizeof(float)), count,
                            dim, ElementType::kF32},
          slot);
    slot += count;
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_BLOCKS_HPP_
