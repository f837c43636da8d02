#ifndef KVEVICT_SCORING_TOKEN_BLOCKS_HPP_
#define KVEVICT_SCORING_TOKEN_BLOCKS_HPP_

#include "kvevict/config.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// One past the slot of the `count`-th token from slot `first` on, at most `last`. Slots that are
/// not valid hold no token (rule R9).
/// @param valid  of the lane; empty: all valid
[[nodiscard]] inline std::size_t end_of_tokens(std::span<const std::uint8_t> valid,
                                               std::size_t first, std::size_t last,
                                               std::size_t count) noexcept {
  if (valid.empty())
    return count < last - first ? first + count : last;
  for (; first < last && count > 0; ++first)
    count -= valid[first] != 0 ? 1 : 0;
  return first;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_TOKEN_BLOCKS_HPP_
