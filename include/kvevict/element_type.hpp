#ifndef KVEVICT_ELEMENT_TYPE_HPP_
#define KVEVICT_ELEMENT_TYPE_HPP_

#include "kvevict/config.hpp"

KVEVICT_NAMESPACE_BEGIN

/// How one element of a stored row is written in memory. All sums are in float or better.
enum class ElementType : std::uint8_t {
  kF32,   ///< IEEE binary32
  kF16,   ///< IEEE binary16
  kBF16,  ///< bfloat16: the upper half of a binary32
};

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t element_size(ElementType type) noexcept {
  return type == ElementType::kF32 ? 4 : 2;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ELEMENT_TYPE_HPP_
