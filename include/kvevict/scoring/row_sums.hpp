#ifndef KVEVICT_SCORING_ROW_SUMS_HPP_
#define KVEVICT_SCORING_ROW_SUMS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// sums[slot] += share * a[slot] over the query heads of the group, for the first of the slots that
/// row `r` sees. Returns how many entries were not finite; they add nothing (rule R19).
inline std::size_t add_heads(const GroupRows& rows, std::size_t r, float share,
                             const kernels::KernelSet& kernel, std::span<float> sums) noexcept {
  std::array<float, 8> shares;
  shares.fill(share);
  std::size_t non_finite = 0;
  for (std::size_t head = 0; head < rows.group_size; head += shares.size()) {
    non_finite +=
        kernel.add_rows(shares.data(), rows.row(head, r), rows.head_stride,
                        std::min(shares.size(), rows.group_size - head), sums.size(), sums.data());
  }
  return non_finite;
}

/// The same over every row, each for the slots that it sees. With share
/// 1 / (layers * num_q_heads), handed all groups of these layers, `sums` gains the mean row.
inline std::size_t add_rows(const GroupRows& rows, float share, const kernels::KernelSet& kernel,
                            std::span<float> sums) noexcept {
  std::size_t non_finite = 0;
  for (std::size_t r = 0; r < rows.num_rows; ++r)
    non_finite += add_heads(rows, r, share, kernel, sums.first(rows.visible(r)));
  return non_finite;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_SUMS_HPP_
