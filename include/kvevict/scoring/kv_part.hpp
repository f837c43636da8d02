#ifndef KVEVICT_SCORING_KV_PART_HPP_
#define KVEVICT_SCORING_KV_PART_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"

#include <cstddef>
#include <cstdint>

KVEVICT_NAMESPACE_BEGIN

/// The half of a cache that a score reads.
enum class KvPart : std::uint8_t { kKeys, kValues };

[[nodiscard]] inline const Rows& rows_of(const Lane& lane, KvPart part) noexcept {
  return part == KvPart::kKeys ? lane.keys : lane.values;
}
[[nodiscard]] inline std::size_t dim_of(const CacheShape& shape, KvPart part) noexcept {
  return part == KvPart::kKeys ? shape.head_dim : shape.value_size();
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_KV_PART_HPP_
