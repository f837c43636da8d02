#ifndef KVEVICT_ELEMENT_TYPE_HPP_
#define KVEVICT_ELEMENT_TYPE_HPP_

#include "kvevict/config.hpp"

KVEVICT_NAMESPACE_BEGIN

/// How the elements of a stored row are written in memory. All sums are in float or better.
enum class ElementType : std::uint8_t {
  kF32,   ///< IEEE binary32
  kF16,   ///< IEEE binary16
  kBF16,  ///< bfloat16: the upper half of a binary32
  kQ8_0,  ///< ggml's blocks of 32: a binary16 scale, then 32 signed bytes that it multiplies
};

/// How many elements are stored as one: a row is a whole number of such blocks side by side.
[[nodiscard]] constexpr std::size_t block_len(ElementType type) noexcept {
  return type == ElementType::kQ8_0 ? 32 : 1;
}

/// Bytes of n elements side by side, n a multiple of block_len(type).
[[nodiscard]] constexpr std::size_t row_bytes(ElementType type, std::size_t n) noexcept {
  if (type == ElementType::kQ8_0)
    return n / block_len(type) * (2 + block_len(type));
  return n * (type == ElementType::kF32 ? 4 : 2);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ELEMENT_TYPE_HPP_
