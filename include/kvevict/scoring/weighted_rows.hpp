#ifndef KVEVICT_SCORING_WEIGHTED_ROWS_HPP_
#define KVEVICT_SCORING_WEIGHTED_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/row_blocks.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Calls visit(row, slot) with the `dim` floats of each slot of [first, last), widened where they
/// are not floats in place. Uses `gathered` for layouts that are not rows, `widened` for one row.
template <class Visit>
void for_each_row(const Rows& rows, std::size_t dim, std::size_t first, std::size_t last,
                  const kernels::KernelSet& kernel, std::vector<float>& gathered,
                  std::vector<float>& widened, Visit&& visit) {
  widened.resize(std::max(widened.size(), dim));
  for_each_row_block(rows, dim, first, last, kernel, gathered,
                     [&](const kernels::RowBlock& block, std::size_t slot) {
                       const auto* row = static_cast<const std::byte*>(block.data);
                       for (std::size_t i = 0; i < block.num_rows; ++i, row += block.stride_bytes) {
                         const auto* floats = reinterpret_cast<const float*>(row);
                         if (block.type != ElementType::kF32 ||
                             std::bit_cast<std::uintptr_t>(row) % alignof(float) != 0) {
                           kernel.widen(row, block.type, dim, widened.data());
                           floats = widened.data();
                         }
                         visit(floats, slot + i);
                       }
                     });
}

/// sum[c] = sum over slots of weights[slot - first] * rows[slot, c]. Added up 64 rows at a time, so
/// that a long cache loses nothing; an entry that is not finite adds nothing (rule R19). A slot of
/// weight 0 is not looked at.
inline void weighted_row_sum(const Rows& rows, std::size_t dim, std::size_t first,
                             std::span<const float> weights, const kernels::KernelSet& kernel,
                             std::vector<float>& gathered, std::vector<float>& scratch,
                             std::span<float> sum) {
  constexpr std::size_t kBlock = 64;
  scratch.resize(std::max(scratch.size(), 2 * dim));
  const std::span<float> block = std::span(scratch).subspan(dim, dim);
  std::fill(sum.begin(), sum.end(), 0.0F);
  std::fill(block.begin(), block.end(), 0.0F);
  for_each_row(rows, dim, first, first + weights.size(), kernel, gathered, scratch,
               [&](const float* row, std::size_t slot) {
                 const std::size_t i = slot - first;
                 if (weights[i] != 0.0F)
                   kernel.add(weights[i], row, dim, block.data());
                 if (i % kBlock == kBlock - 1 || i + 1 == weights.size()) {
                   kernel.add(1.0F, block.data(), dim, sum.data());
                   std::fill(block.begin(), block.end(), 0.0F);
                 }
               });
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_WEIGHTED_ROWS_HPP_
