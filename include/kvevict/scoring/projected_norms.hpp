#ifndef KVEVICT_SCORING_PROJECTED_NORMS_HPP_
#define KVEVICT_SCORING_PROJECTED_NORMS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// out[f, i] = | v_{first + i} W_f |_2 for each of the Cholesky factors of the W_f.
///
/// @param values    of one lane
/// @param factors   [num_factors, dim, dim], as from OutputProjection::factors
/// @param gathered  scratch for layouts that are not rows in place
/// @param out       [num_factors, last - first], overwritten
/// @note  O((last - first) * num_factors * dim^2 / 2); V W is never formed.
inline void projected_norms(const Rows& values, std::size_t dim, std::size_t first,
                            std::size_t last, std::span<const float> factors,
                            const kernels::KernelSet& kernel, std::vector<float>& gathered,
                            std::span<float> out) {
  const std::size_t num_factors = factors.size() / (dim * dim);
  for_each_row_block(values, dim, first, last, kernel, gathered,
                     [&](const kernels::RowBlock& rows, std::size_t slot) {
                       for (std::size_t f = 0; f < num_factors; ++f) {
                         kernel.projected_norms(factors.data() + f * dim * dim, rows,
                                                out.data() + f * (last - first) + (slot - first));
                       }
                     });
}

/// out[i] = | row_{first + i} |_2.
inline void row_norms(const Rows& rows, std::size_t dim, std::size_t first, std::size_t last,
                      const kernels::KernelSet& kernel, std::vector<float>& gathered,
                      std::span<float> out) {
  for_each_row_block(rows, dim, first, last, kernel, gathered,
                     [&](const kernels::RowBlock& block, std::size_t slot) {
                       kernel.row_norms(block, out.data() + (slot - first));
                     });
}

/// Sum of |x[i]|, in sixteen sums side by side, so that it vectorises and the order depends on `n`
/// alone (rule R18).
[[nodiscard]] inline float absolute_sum(const float* x, std::size_t n) noexcept {
  constexpr std::size_t kSums = 16;
  std::array<float, kSums> sums{};
  std::size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::size_t s = 0; s < kSums; ++s)
      sums[s] += std::abs(x[i + s]);
  }
  for (std::size_t s = 0; i < n; ++i, ++s)
    sums[s] += std::abs(x[i]);
  double total = 0.0;
  for (const float sum : sums)
    total += static_cast<double>(sum);
  return static_cast<float>(total);
}

/// out[i] = | row_{first + i} |_1.
inline void row_l1_norms(const Rows& rows, std::size_t dim, std::size_t first, std::size_t last,
                         const kernels::KernelSet& kernel, std::vector<float>& gathered,
                         std::vector<float>& widened, std::span<float> out) {
  for_each_row(
      rows, dim, first, last, kernel, gathered, widened,
      [&](const float* row, std::size_t slot) { out[slot - first] = absolute_sum(row, dim); });
}

/// out[i] = | v_{first + i} W |_1.
///
/// @param transposed  W^T [hidden_size, dim], as from OutputProjection::transposed
/// @note  O((last - first) * dim * hidden_size): an L1 norm has no short cut as the L2 norm has.
inline void projected_l1_norms(const Rows& values, std::size_t dim, std::size_t first,
                               std::size_t last, const kernels::RowBlock& transposed,
                               const kernels::KernelSet& kernel, std::vector<float>& gathered,
                               std::vector<float>& widened, std::vector<float>& scratch,
                               std::span<float> out) {
  constexpr std::size_t kBlock = 16;  // values that one pass over W serves
  const std::size_t hidden_size = transposed.num_rows;
  scratch.resize(std::max(scratch.size(), kBlock * (dim + hidden_size)));
  float* block = scratch.data();
  float* products = block + kBlock * dim;
  for_each_row(values, dim, first, last, kernel, gathered, widened,
               [&](const float* value, std::size_t slot) {
                 const std::size_t count = (slot - first) % kBlock + 1;
                 std::copy_n(value, dim, block + (count - 1) * dim);
                 if (count < kBlock && slot + 1 < last)
                   return;
                 kernel.row_dots(block, count, static_cast<std::ptrdiff_t>(dim), transposed,
                                 products, static_cast<std::ptrdiff_t>(hidden_size));
                 for (std::size_t i = 0; i < count; ++i) {
                   out[slot - first + 1 - count + i] =
                       absolute_sum(products + i * hidden_size, hidden_size);
                 }
               });
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PROJECTED_NORMS_HPP_
