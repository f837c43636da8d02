#ifndef KVEVICT_VIEWS_PAGED_VIEW_HPP_
#define KVEVICT_VIEWS_PAGED_VIEW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN
namespace views {

/// One pool of pages for K or for V: base address and byte strides. K and V that share pages
/// ([page, 2, ...]) are two pools with different bases and the same page stride.
struct PagePool {
  Tensor tensor;  ///< slot stride: within a page
  std::ptrdiff_t page_stride_bytes = 0;

  /// [num_layers, num_pages, page_size, num_heads, dim]
  [[nodiscard]] static PagePool nhd(void* data, ElementType type, std::size_t num_pages,
                                    std::size_t page_size, std::size_t num_heads,
                                    std::size_t dim) noexcept {
    const Tensor tensor = Tensor::nhd(data, type, num_pages * page_size, num_heads, dim);
    return {tensor, static_cast<std::ptrdiff_t>(page_size) * tensor.slot_stride_bytes};
  }
  /// [num_layers, num_pages, num_heads, page_size, dim]
  [[nodiscard]] static PagePool hnd(void* data, ElementType type, std::size_t num_pages,
                                    std::size_t page_size, std::size_t num_heads,
                                    std::size_t dim) noexcept {
    Tensor tensor = Tensor::hnd(data, type, page_size, num_heads, dim);
    const std::ptrdiff_t page = tensor.layer_stride_bytes;
    tensor.layer_stride_bytes = static_cast<std::ptrdiff_t>(num_pages) * page;
    return {tensor, page};
  }
};

/// The pages of one sequence. Page size 1 makes the table a token-to-slot map. A table must reach
/// to the end of each lane that it is for; entries behind a lane's length are never read. Borrows
/// everything.
class PagedView {
 public:
  using PageTable = std::span<const std::int32_t>;

  /// One table for all lanes: [ceil(seq_len / page_size)]. Throws InvalidArgument if it is short.
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, PageTable page_table, std::size_t seq_len)
      : PagedView(shape, keys, values, page_size) {
    page_table_ = page_table;
    seq_len_ = seq_len;
    check(page_table, seq_len);
  }
  /// The same with a length for each lane: `lengths` [num_layers, num_kv_heads].
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, PageTable page_table, std::span<const std::size_t> lengths)
      : PagedView(shape, keys, values, page_size) {
    page_table_ = page_table;
    lengths_ = lengths;
    check_lanes();
  }
  /// A table for each layer or each lane: `page_tables` [num_layers] or [num_layers, num_kv_heads].
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, std::span<const PageTable> page_tables,
            std::span<const std::size_t> lengths)
      : PagedView(shape, keys, values, page_size) {
    page_tables_ = page_tables;
    lengths_ = lengths;
    detail::require(page_tables.size() == shape.num_layers ||
                        page_tables.size() == shape.num_layers * shape.num_kv_heads,
                    "PagedView", "page_tables.size()", page_tables.size(),
                    "must be num_layers or num_layers * num_kv_heads");
    check_lanes();
  }

  /// Marks slots that hold no token: at least [seq_len], the same for all lanes, 0 = not valid.
  void set_valid(std::span<const std::uint8_t> valid) noexcept { valid_ = valid; }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] MutableLane mutable_lane(std::size_t layer, std::size_t kv_head) const noexcept {
    const std::size_t len =
        lengths_.empty() ? seq_len_ : lengths_[layer * shape_.num_kv_heads + kv_head];
    return {len, rows(keys_, layer, kv_head), rows(values_, layer, kv_head), valid_};
  }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return read_only(mutable_lane(layer, kv_head));
  }

 private:
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size)
      : shape_(shape), keys_(keys), values_(values), page_size_(page_size) {
    detail::require(page_size > 0, "PagedView", "page_size", page_size, "must be > 0");
  }
  [[nodiscard]] PageTable page_table(std::size_t layer, std::size_t kv_head) const noexcept {
    if (page_tables_.empty())
      return page_table_;
    return page_tables_.size() == shape_.num_layers
               ? page_tables_[layer]
               : page_tables_[layer * shape_.num_kv_heads + kv_head];
  }
  void check(PageTable table, std::size_t len) const {
    detail::require(pages_for(len) <= table.size(), "PagedView", "page_table.size()", table.size(),
                    "must cover seq_len");
  }
  void check_lanes() const {
    detail::require(lengths_.size() == shape_.num_layers * shape_.num_kv_heads, "PagedView",
                    "lengths.size()", lengths_.size(), "must be num_layers * num_kv_heads");
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head)
        check(page_table(layer, head), lengths_[layer * shape_.num_kv_heads + head]);
    }
  }
  [[nodiscard]] std::size_t pages_for(std::size_t len) const noexcept {
    return len / page_size_ + (len % page_size_ != 0 ? 1 : 0);
  }
  [[nodiscard]] MutableRows rows(const PagePool& pool, std::size_t layer,
                                 std::size_t kv_head) const noexcept {
    MutableRows rows = pool.tensor.rows(layer, kv_head);
    rows.page_table = page_table(layer, kv_head).data();
    rows.page_size = page_size_;
    rows.page_stride_bytes = pool.page_stride_bytes;
    return rows;
  }

  CacheShape shape_;
  PagePool keys_;
  PagePool values_;
  std::size_t page_size_;
  PageTable page_table_;
  std::span<const PageTable> page_tables_;
  std::size_t seq_len_ = 0;
  std::span<const std::size_t> lengths_;
  std::span<const std::uint8_t> valid_;
};

static_assert(MutableKvCacheView<PagedView>);

}  // namespace views
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_PAGED_VIEW_HPP_
