#ifndef KVEVICT_CORE_SHAPE_HPP_
#define KVEVICT_CORE_SHAPE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// The fixed numbers of a model's cache. Query head q reads KV head q / group_size() (rule R10).
struct CacheShape {
  std::size_t num_layers = 0;
  std::size_t num_q_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;   ///< elements of one key row
  std::size_t value_dim = 0;  ///< elements of one value row; 0 means head_dim

  [[nodiscard]] constexpr std::size_t group_size() const noexcept {
    return num_q_heads / num_kv_heads;
  }
  [[nodiscard]] constexpr std::size_t value_size() const noexcept {
    return value_dim == 0 ? head_dim : value_dim;
  }
  /// Rows of decisions that `scope` has in this cache.
  [[nodiscard]] constexpr std::size_t num_lanes(MaskScope scope) const noexcept {
    if (scope == MaskScope::kModel)
      return 1;
    return scope == MaskScope::kLayer ? num_layers : num_layers * num_kv_heads;
  }
  /// The row of decisions that (layer, kv_head) follows.
  [[nodiscard]] constexpr std::size_t lane_of(MaskScope scope, std::size_t layer,
                                              std::size_t kv_head) const noexcept {
    if (scope == MaskScope::kModel)
      return 0;
    return scope == MaskScope::kLayer ? layer : layer * num_kv_heads + kv_head;
  }
  /// The first layer and KV head that follow `lane`, the inverse of lane_of.
  [[nodiscard]] constexpr std::size_t first_layer(MaskScope scope,
                                                  std::size_t lane) const noexcept {
    return scope == MaskScope::kHead ? lane / num_kv_heads : lane;
  }
  [[nodiscard]] constexpr std::size_t first_head(MaskScope scope, std::size_t lane) const noexcept {
    return scope == MaskScope::kHead ? lane % num_kv_heads : 0;
  }
  friend constexpr bool operator==(const CacheShape& a, const CacheShape& b) noexcept {
    return a.num_layers == b.num_layers && a.num_q_heads == b.num_q_heads &&
           a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
           a.value_size() == b.value_size();
  }
};

namespace detail {

/// Throws InvalidArgument, naming `where`, unless the shape can exist.
inline void check_shape(const CacheShape& shape, std::string_view where) {
  require(shape.num_layers > 0, where, "num_layers", shape.num_layers, "must be > 0");
  require(shape.num_kv_heads > 0, where, "num_kv_heads", shape.num_kv_heads, "must be > 0");
  require(shape.head_dim > 0, where, "head_dim", shape.head_dim, "must be > 0");
  require(shape.num_q_heads > 0 && shape.num_q_heads % shape.num_kv_heads == 0, where,
          "num_q_heads", shape.num_q_heads, "must be a positive multiple of num_kv_heads");
}

/// Throws InvalidArgument, naming `where` and the field, unless `view` has the numbers of `shape`.
inline void check_same_shape(const CacheShape& view, const CacheShape& shape,
                             std::string_view where) {
  constexpr std::string_view kMust = "must be that of the policy's shape";
  require(view.num_layers == shape.num_layers, where, "view num_layers", view.num_layers, kMust);
  require(view.num_q_heads == shape.num_q_heads, where, "view num_q_heads", view.num_q_heads,
          kMust);
  require(view.num_kv_heads == shape.num_kv_heads, where, "view num_kv_heads", view.num_kv_heads,
          kMust);
  require(view.head_dim == shape.head_dim, where, "view head_dim", view.head_dim, kMust);
  require(view.value_size() == shape.value_size(), where, "view value_dim", view.value_size(),
          kMust);
}

/// A number of entries that a table of options may have, and what of the model there is one for.
struct TableSize {
  std::size_t size = 0;
  std::string_view what = "no table";
};
[[nodiscard]] constexpr TableSize for_each_layer(const CacheShape& shape) noexcept {
  return {shape.num_layers, "num_layers"};
}
[[nodiscard]] constexpr TableSize for_each_kv_head(const CacheShape& shape) noexcept {
  return {shape.num_layers * shape.num_kv_heads, "layers x KV heads"};
}
[[nodiscard]] constexpr TableSize for_each_query_head(const CacheShape& shape) noexcept {
  return {shape.num_layers * shape.num_q_heads, "layers x query heads"};
}
/// Throws InvalidArgument, naming `where`, `field` and all that fit, unless `size` is one of them.
inline void check_table_size(std::string_view where, std::string_view field, std::size_t size,
                             std::initializer_list<TableSize> fitting) {
  std::string must("must be ");
  for (const TableSize& fits : fitting) {
    if (size == fits.size)
      return;
    must.append(&fits == fitting.begin() ? "" : " or ")
        .append(std::to_string(fits.size))
        .append(" (")
        .append(fits.what)
        .append(")");
  }
  throw_invalid_field(where, std::string(field).append(".size()"), size, must);
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SHAPE_HPP_
