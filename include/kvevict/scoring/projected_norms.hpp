#ifndef KVEVICT_SCORING_PROJECTED_NORMS_HPP_
#define KVEVICT_SCORING_PROJECTED_NORMS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/row_blocks.hpp"

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

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PROJECTED_NORMS_HPP_
