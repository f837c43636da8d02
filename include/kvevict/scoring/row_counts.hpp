#ifndef KVEVICT_SCORING_ROW_COUNTS_HPP_
#define KVEVICT_SCORING_ROW_COUNTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// counts[slot] += rows of the group that see the slot: the divisor of a lifetime mean.
inline void count_rows(const GroupRows& rows, std::span<float> counts) noexcept {
  const std::size_t last = rows.visible(rows.num_rows - 1);
  for (std::size_t slot = 0; slot < last; ++slot) {
    counts[slot] += static_cast<float>(slot < rows.first_visible ? rows.num_rows : last - slot);
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_COUNTS_HPP_
