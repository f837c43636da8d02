#ifndef KVEVICT_SCORING_ROW_SUMS_HPP_
#define KVEVICT_SCORING_ROW_SUMS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// sums[slot] += share * a[slot] over every row of every query head of the group. With share
/// 1 / (layers * num_q_heads), handed all groups of these layers, `sums` gains the mean row.
/// Returns how many entries were not finite; they add nothing (rule R19).
inline std::size_t add_rows(const GroupRows& rows, float share, const kernels::KernelSet& kernel,
                            std::span<float> sums) noexcept {
  std::size_t non_finite = 0;
  for (std::size_t head = 0; head < rows.group_size; ++head) {
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      non_finite += kernel.add(share, rows.row(head, r), rows.visible(r), sums.data());
    }
  }
  return non_finite;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_SUMS_HPP_
