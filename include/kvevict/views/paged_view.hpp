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

/// The pages of one sequence. Page size 1 makes the table a token-to-slot map. The table must
/// reach to the longest lane; entries behind a lane's length are never read.
class PagedView {
 public:
  /// One table for all lanes: [ceil(seq_len / page_size)]. Throws InvalidArgument if it is short.
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, std::span<const std::int32_t> page_table, std::size_t seq_len)
      : PagedView(shape, keys, values, page_size, page_table) {
    seq_len_ = seq_len;
    check(seq_len);
  }
  /// The same with a length for each lane: `lengths` [num_layers, num_kv_heads].
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, std::span<const std::int32_t> page_table,
            std::span<const std::size_t> lengths)
      : PagedView(shape, keys, values, page_size, page_table) {
    lengths_ = lengths;
    detail::require(lengths.size() == shape.num_layers * shape.num_kv_heads, "PagedView",
                    "lengths.size()", lengths.size(), "must be num_layers * num_kv_heads");
    for (const std::size_t len : lengths)
      check(len);
  }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] MutableLane mutable_lane(std::size_t layer, std::size_t kv_head) const noexcept {
    const std::size_t len =
        lengths_.empty() ? seq_len_ : lengths_[layer * shape_.num_kv_heads + kv_head];
    return {len, rows(keys_, layer, kv_head), rows(values_, layer, kv_head), {}};
  }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return read_only(mutable_lane(layer, kv_head));
  }

 private:
  PagedView(const CacheShape& shape, const PagePool& keys, const PagePool& values,
            std::size_t page_size, std::span<const std::int32_t> page_table)
      : shape_(shape),
        keys_(keys),
        values_(values),
        page_size_(page_size),
        page_table_(page_table) {
    detail::require(page_size > 0, "PagedView", "page_size", page_size, "must be > 0");
  }
  void check(std::size_t len) const {
    detail::require((len + page_size_ - 1) / page_size_ <= page_table_.size(), "PagedView",
                    "page_table.size()", page_table_.size(), "must cover seq_len");
  }
  [[nodiscard]] MutableRows rows(const PagePool& pool, std::size_t layer,
                                 std::size_t kv_head) const noexcept {
    MutableRows rows = pool.tensor.rows(layer, kv_head);
    rows.page_table = page_table_.data();
    rows.page_size = page_size_;
    rows.page_stride_bytes = pool.page_stride_bytes;
    return rows;
  }

  CacheShape shape_;
  PagePool keys_;
  PagePool values_;
  std::size_t page_size_;
  std::span<const std::int32_t> page_table_;
  std::size_t seq_len_ = 0;
  std::span<const std::size_t> lengths_;
};

static_assert(MutableKvCacheView<PagedView>);

}  // namespace views
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_PAGED_VIEW_HPP_
