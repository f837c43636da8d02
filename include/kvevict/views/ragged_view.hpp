#ifndef KVEVICT_VIEWS_RAGGED_VIEW_HPP_
#define KVEVICT_VIEWS_RAGGED_VIEW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN
namespace views {

/// A cache in which every (layer, KV head) has memory of its own. The engine fills an array of
/// lanes, [num_layers, num_kv_heads], and keeps it up to date.
class RaggedView {
 public:
  /// Throws InvalidArgument unless there is a lane for every (layer, KV head).
  RaggedView(const CacheShape& shape, std::span<const MutableLane> lanes)
      : shape_(shape), lanes_(lanes) {
    detail::require(lanes.size() == shape.num_layers * shape.num_kv_heads, "RaggedView",
                    "lanes.size()", lanes.size(), "must be num_layers * num_kv_heads");
  }

  /// A lane of contiguous rows: keys [seq_len, head_dim], values [seq_len, value_dim].
  [[nodiscard]] static MutableLane dense_lane(const CacheShape& shape, std::size_t seq_len,
                                              void* keys, void* values, ElementType type) noexcept {
    return {seq_len,
            Tensor::hnd(keys, type, 0, 1, shape.head_dim).rows(0, 0),
            Tensor::hnd(values, type, 0, 1, shape.value_size()).rows(0, 0),
            {}};
  }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] MutableLane mutable_lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return lanes_[layer * shape_.num_kv_heads + kv_head];
  }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    return read_only(mutable_lane(layer, kv_head));
  }

 private:
  CacheShape shape_;
  std::span<const MutableLane> lanes_;
};

static_assert(MutableKvCacheView<RaggedView>);

}  // namespace views
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_VIEWS_RAGGED_VIEW_HPP_
