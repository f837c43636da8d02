#ifndef KVEVICT_SCORING_ROW_COUNTS_HPP_
#define KVEVICT_SCORING_ROW_COUNTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// counts[slot] += share for every row of the group that sees the slot: the divisor of a lifetime
/// mean. One row counts once, not once for each query head.
inline void count_rows(const GroupRows& rows, float share, std::span<float> counts) noexcept {
  const std::size_t last = rows.visible(rows.num_rows - 1);
  const float all = share * static_cast<float>(rows.num_rows);
  for (std::size_t slot = 0; slot < rows.first_visible; ++slot)
    counts[slot] += all;
  for (std::size_t slot = rows.first_visible; slot < last; ++slot)
    counts[slot] += share * static_cast<float>(last - slot);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_COUNTS_HPP_
