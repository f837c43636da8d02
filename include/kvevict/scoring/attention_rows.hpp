#ifndef KVEVICT_SCORING_ATTENTION_ROWS_HPP_
#define KVEVICT_SCORING_ATTENTION_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/row_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Softmax rows of one KV group of one layer, oldest token first. Given by the engine or computed
/// from its queries, what follows sees only this.
struct GroupRows {
  std::size_t layer = 0;
  std::size_t kv_head = 0;
  std::size_t group_size = 0;
  std::size_t num_rows = 0;
  std::size_t first_visible = 0;   ///< slots that row 0 sees; each later row sees one more
  std::size_t first_position = 0;  ///< position of row 0's token
  const float* data = nullptr;     ///< [group_size, num_rows, visible(row)]
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t row_stride = 0;
  /// [group_size, num_rows] log of each row's softmax denominator, up to a constant that the heads
  /// of a row share; null: taken as equal
  const float* log_sums = nullptr;
  std::ptrdiff_t log_sum_stride = 0;  ///< between heads

  [[nodiscard]] std::size_t visible(std::size_t row) const noexcept { return first_visible + row; }
  [[nodiscard]] const float* row(std::size_t head_in_group, std::size_t r) const noexcept {
    return data + static_cast<std::ptrdiff_t>(head_in_group) * head_stride +
           static_cast<std::ptrdiff_t>(r) * row_stride;
  }
  [[nodiscard]] float log_sum(std::size_t head_in_group, std::size_t r) const noexcept {
    return log_sums == nullptr
               ? 0.0F
               : log_sums[static_cast<std::ptrdiff_t>(head_in_group) * log_sum_stride +
                          static_cast<std::ptrdiff_t>(r)];
  }
};

/// Visits the newest `wanted` of the engine's rows of one KV head.
/// @param seq_len  live slots of the lane, the newest tokens included
/// @param length   tokens of the sequence, so the newest row's position is length - 1
template <class Visit>
void visit_given_rows(const AttentionRows& rows, const CacheShape& shape, std::size_t layer,
                      std::size_t kv_head, std::size_t seq_len, std::size_t length,
                      std::size_t wanted, Visit&& visit) {
  const std::size_t skipped = rows.num_rows - wanted;
  const float* log_sums =
      rows.log_sums == nullptr
          ? nullptr
          : rows.log_sums + kv_head * shape.group_size() * rows.num_rows + skipped;
  visit(GroupRows{layer, kv_head, shape.group_size(), wanted, seq_len - wanted + 1, length - wanted,
                  rows.row(kv_head * shape.group_size(), skipped), rows.head_stride,
                  rows.row_stride, log_sums, static_cast<std::ptrdiff_t>(rows.num_rows)});
}

namespace detail {

/// Logits that are NaN or +infinity; -infinity marks slots that are not valid. Only a sum that is
/// not finite makes it look at single logits.
[[nodiscard]] inline std::size_t count_non_finite_logits(
    const float* row, std::size_t n, const kernels::KernelSet& kernel) noexcept {
  if (std::isfinite(kernel.sum(row, n)))
    return 0;
  return static_cast<std::size_t>(std::count_if(
      row, row + n, [](float logit) { return !(logit <= std::numeric_limits<float>::max()); }));
}

/// Logits of one row become their softmax; `sink` is a logit of the denominator alone. A row whose
/// slots are all invalid becomes zero. Returns the log of the denominator.
inline double softmax_row(float* row, std::size_t n, float sink,
                          const kernels::KernelSet& kernel) noexcept {
  const float shift = std::max(kernel.max_value(row, n), sink);
  if (shift == -std::numeric_limits<float>::infinity()) {
    std::fill(row, row + n, 0.0F);
    return -std::numeric_limits<double>::infinity();
  }
  double sum = kernel.exp_shifted(shift, n, row);
  sum += sink == shift ? 1.0 : std::exp(static_cast<double>(sink) - static_cast<double>(shift));
  kernel.scale(static_cast<float>(1.0 / sum), n, row);
  return static_cast<double>(shift) + std::log(sum);
}

}  // namespace detail

/// Softmax rows from queries and cached keys, for engines whose attention keeps none.
///
/// Rows are made in blocks of at most 16 query tokens, so the scratch is
/// group_size * 16 * seq_len floats whatever the length of the prompt.
class RowsFromQueries {
 public:
  /// Visits the newest `wanted` rows of one KV head as for visit_given_rows, block by block.
  /// A row none of whose slots is valid is all zero (rule R16), and so is the entry of a logit that
  /// is NaN. Returns how many logits of valid slots were not finite (rule R4).
  template <class Visit>
  std::size_t visit(const QueryRows& queries, const CacheShape& shape, std::size_t layer,
                    std::size_t kv_head, const Lane& lane, std::size_t length, std::size_t wanted,
                    const kernels::KernelSet& kernel, Visit&& visit) {
    constexpr std::size_t kBlock = 16;
    const std::size_t group = shape.group_size();
    const auto row_stride = static_cast<std::ptrdiff_t>(lane.seq_len);
    std::size_t non_finite = 0;
    for (std::size_t done = 0; done < wanted; done += kBlock) {
      const std::size_t count = std::min(kBlock, wanted - done);
      const std::size_t behind = wanted - done;  // rows from this block's first to the newest
      GroupRows rows{layer,
                     kv_head,
                     group,
                     count,
                     lane.seq_len - behind + 1,
                     length - behind,
                     nullptr,
                     static_cast<std::ptrdiff_t>(count) * row_stride,
                     row_stride,
                     nullptr,
                     static_cast<std::ptrdiff_t>(count)};
      rows_.resize(std::max(rows_.size(), group * count * lane.seq_len));
      rows.data = rows_.data();
      log_sums_.resize(std::max(log_sums_.size(), group * count));
      relative_.resize(std::max(relative_.size(), group * count));
      logits(queries, shape, kv_head, lane, queries.num_rows - behind, rows, kernel);
      for (std::size_t h = 0; h < group; ++h) {
        const float sink = queries.sink_logits.empty() ? -std::numeric_limits<float>::infinity()
                                                       : queries.sink_logits[kv_head * group + h];
        for (std::size_t r = 0; r < count; ++r) {
          float* row = rows_.data() + (rows.row(h, r) - rows.data);
          non_finite += detail::count_non_finite_logits(row, rows.visible(r), kernel);
          log_sums_[h * count + r] = detail::softmax_row(row, rows.visible(r), sink, kernel);
        }
      }
      relate_log_sums(group, count);
      rows.log_sums = relative_.data();
      visit(static_cast<const GroupRows&>(rows));
    }
    return non_finite;
  }

 private:
  void logits(const QueryRows& queries, const CacheShape& shape, std::size_t kv_head,
              const Lane& lane, std::size_t first_row, const GroupRows& rows,
              const kernels::KernelSet& kernel) {
    const std::size_t last = rows.visible(rows.num_rows - 1);
    const float scale = queries.logit_scale(shape.head_dim);
    for_each_row_block(
        lane.keys, shape.head_dim, 0, last, kernel, gathered_,
        [&](const kernels::RowBlock& keys, std::size_t slot) {
          for (std::size_t h = 0; h < rows.group_size; ++h) {
            const std::size_t q_head = kv_head * rows.group_size + h;
            kernel.row_dots(queries.row(q_head, first_row), rows.num_rows, queries.row_stride, keys,
                            rows_.data() + (rows.row(h, 0) - rows.data) + slot, rows.row_stride);
          }
        });
    for (std::size_t h = 0; h < rows.group_size; ++h) {
      for (std::size_t r = 0; r < rows.num_rows; ++r) {
        float* row = rows_.data() + (rows.row(h, r) - rows.data);
        const std::size_t visible = rows.visible(r);
        kernel.scale(scale, visible, row);
        if (queries.soft_cap > 0.0F)
          kernel.soft_cap(queries.soft_cap, visible, row);
        for (std::size_t i = 0; i < std::min(visible, lane.valid.size()); ++i) {
          if (lane.valid[i] == 0)
            row[i] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  // In float the differences between heads, which are all that counts, keep their digits only
  // without what the heads have in common.
  void relate_log_sums(std::size_t group, std::size_t num_rows) noexcept {
    for (std::size_t r = 0; r < num_rows; ++r) {
      double largest = log_sums_[r];
      for (std::size_t h = 1; h < group; ++h)
        largest = std::max(largest, log_sums_[h * num_rows + r]);
      for (std::size_t h = 0; h < group; ++h) {
        const double log_sum = log_sums_[h * num_rows + r];
        relative_[h * num_rows + r] =
            log_sum == largest ? 0.0F : static_cast<float>(log_sum - largest);
      }
    }
  }

  std::vector<double> log_sums_;  // [group_size, rows of the block]
  std::vector<float> relative_;   // the same, less the largest of each row
  std::vector<float> rows_;
  std::vector<float> gathered_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ATTENTION_ROWS_HPP_
