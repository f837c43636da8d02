#ifndef KVEVICT_KERNELS_Q8_0_HPP_
#define KVEVICT_KERNELS_Q8_0_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/half.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

KVEVICT_NAMESPACE_BEGIN
namespace kernels {

/// Where an element of a row of q8_0 lies.
struct BlockPlace {
  std::uint16_t scale;     ///< of its block, a binary16
  const std::byte* bytes;  ///< of this element, and those of the rest of its block behind
};

[[nodiscard]] inline BlockPlace q8_0_place(const std::byte* row, std::size_t index) noexcept {
  constexpr std::size_t kBlock = block_len(ElementType::kQ8_0);
  const std::byte* const block = row + index / kBlock * row_bytes(ElementType::kQ8_0, kBlock);
  BlockPlace place;
  std::memcpy(&place.scale, block, sizeof place.scale);
  place.bytes = block + sizeof place.scale + index % kBlock;
  return place;
}

/// Value of element `index` of a row; exact, since 11 bits times 8 fit into a float.
[[nodiscard]] inline float from_q8_0(const std::byte* row, std::size_t index) noexcept {
  const BlockPlace place = q8_0_place(row, index);
  return from_f16(place.scale) * static_cast<float>(std::to_integer<std::int8_t>(*place.bytes));
}

/// Writes 32 finite floats as one block: the scale is max |x| / 127, rounded to binary16 and at
/// most its largest number, and each byte the nearest multiple of it.
inline void to_q8_0(const float* x, std::byte* block) noexcept {
  constexpr std::size_t kBlock = block_len(ElementType::kQ8_0);
  constexpr float kLargestHalf = 65504.0F;
  float largest = 0.0F;
  for (std::size_t i = 0; i < kBlock; ++i)
    largest = std::max(largest, std::abs(x[i]));
  const std::uint16_t half = to_f16(std::min(largest / 127.0F, kLargestHalf));
  const float scale = from_f16(half);
  std::memcpy(block, &half, sizeof half);
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float multiple = scale > 0.0F ? std::round(x[i] / scale) : 0.0F;
    block[sizeof half + i] =
        static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(multiple, -128.0F, 127.0F)));
  }
}

}  // namespace kernels
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_Q8_0_HPP_
