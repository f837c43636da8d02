#ifndef KVEVICT_SCORING_ATTENTION_ROWS_HPP_
#define KVEVICT_SCORING_ATTENTION_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/running_softmax.hpp"

#include <algorithm>
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

/// Softmax rows from queries and cached keys, for engines whose attention keeps none.
///
/// Keys are read in tiles, and the logits of a tile become exponentials while they are in cache.
/// The scratch is kRows * seq_len floats whatever the length of the prompt.
class RowsFromQueries {
 public:
  /// Rows made at a time, of all query heads together: each reads every key once.
  static constexpr std::size_t kRows = 64;

  /// Visits the newest `wanted` rows of one KV head as for visit_given_rows, block by block.
  /// A row none of whose slots is valid is all zero (rule R16), and so is the entry of a logit that
  /// is NaN. Returns how many logits of valid slots were not finite (rule R4).
  template <class Visit>
  std::size_t visit(const QueryRows& queries, const CacheShape& shape, std::size_t layer,
                    std::size_t kv_head, const Lane& lane, std::size_t length, std::size_t wanted,
                    const kernels::KernelSet& kernel, Visit&& visit) {
    std::size_t non_finite = 0;
    for (std::size_t block = 0; block < num_blocks(shape, wanted); ++block)
      visit(make(queries, shape, layer, kv_head, lane, length, wanted, block, kernel, non_finite));
    return non_finite;
  }

  /// Blocks in which the newest `wanted` rows of a KV head come.
  [[nodiscard]] static std::size_t num_blocks(const CacheShape& shape,
                                              std::size_t wanted) noexcept {
    const std::size_t len = rows_per_block(shape);
    return wanted / len + (wanted % len > 0 ? 1 : 0);
  }
  /// Makes one of them by itself; they are valid until the next. What visit returns is added to
  /// `non_finite`.
  [[nodiscard]] GroupRows make(const QueryRows& queries, const CacheShape& shape, std::size_t layer,
                               std::size_t kv_head, const Lane& lane, std::size_t length,
                               std::size_t wanted, std::size_t block,
                               const kernels::KernelSet& kernel, std::size_t& non_finite) {
    const std::size_t group = shape.group_size();
    const std::size_t padded = padded_row(lane.seq_len);
    const auto row_stride = static_cast<std::ptrdiff_t>(padded);
    // Rows from this block's first to the newest.
    const std::size_t behind = wanted - block * rows_per_block(shape);
    const std::size_t count = std::min(rows_per_block(shape), behind);
    rows_.resize(std::max(rows_.size(), group * count * padded));
    relative_.resize(std::max(relative_.size(), group * count));
    const GroupRows rows{layer,
                         kv_head,
                         group,
                         count,
                         lane.seq_len - behind + 1,
                         length - behind,
                         rows_.data(),
                         static_cast<std::ptrdiff_t>(count) * row_stride,
                         row_stride,
                         relative_.data(),
                         static_cast<std::ptrdiff_t>(count)};
    start(queries, rows);
    for (std::size_t first = 0; first < rows.visible(count - 1); first += kTile)
      non_finite += add_tile(queries, shape, lane, queries.num_rows - behind, rows, first, kernel);
    finish(rows, kernel);
    return rows;
  }

 private:
  static constexpr std::size_t kTile = 256;  // slots: the logits of a tile stay in L2

  [[nodiscard]] static std::size_t rows_per_block(const CacheShape& shape) noexcept {
    return std::max<std::size_t>(1, kRows / shape.group_size());
  }

  // An odd number of cache lines: where rows are a power of two apart, their tiles fall on the same
  // few sets of a cache.
  [[nodiscard]] static std::size_t padded_row(std::size_t seq_len) noexcept {
    constexpr std::size_t kLine = 64 / sizeof(float);
    return ((seq_len + kLine - 1) / kLine | 1) * kLine;
  }

  // The row being made.
  [[nodiscard]] float* row(const GroupRows& rows, std::size_t h, std::size_t r) noexcept {
    return rows_.data() + (rows.row(h, r) - rows.data);
  }

  void start(const QueryRows& queries, const GroupRows& rows) {
    softmaxes_.clear();
    for (std::size_t h = 0; h < rows.group_size; ++h) {
      const float sink = queries.sink_logits.empty()
                             ? -std::numeric_limits<float>::infinity()
                             : queries.sink_logits[rows.kv_head * rows.group_size + h];
      softmaxes_.insert(softmaxes_.end(), rows.num_rows, RunningSoftmax(sink));
    }
    shifts_.clear();
  }

  // The slots from `first` on of every row that sees them.
  std::size_t add_tile(const QueryRows& queries, const CacheShape& shape, const Lane& lane,
                       std::size_t first_row, const GroupRows& rows, std::size_t first,
                       const kernels::KernelSet& kernel) {
    const std::size_t last = std::min(first + kTile, rows.visible(rows.num_rows - 1));
    for_each_row_block(lane.keys, shape.head_dim, first, last, kernel, gathered_,
                       [&](const kernels::RowBlock& keys, std::size_t slot) {
                         for (std::size_t h = 0; h < rows.group_size; ++h) {
                           const std::size_t q_head = rows.kv_head * rows.group_size + h;
                           kernel.row_dots(queries.row(q_head, first_row), rows.num_rows,
                                           queries.row_stride, keys, row(rows, h, 0) + slot,
                                           rows.row_stride);
                         }
                       });
    invalid_.clear();
    for (std::size_t slot = first; slot < std::min(last, lane.valid.size()); ++slot) {
      if (lane.valid[slot] == 0)
        invalid_.push_back(slot);
    }
    const float scale = queries.logit_scale(shape.head_dim);
    std::size_t non_finite = 0;
    for (std::size_t i = 0; i < rows.group_size * rows.num_rows; ++i) {
      const std::size_t r = i % rows.num_rows;
      float* const all = row(rows, i / rows.num_rows, r);
      float* const tile = all + first;
      const std::size_t n = std::min(last, std::max(first, rows.visible(r))) - first;
      float factor = scale;
      if (queries.soft_cap > 0.0F) {
        kernel.scale(scale, n, tile);
        kernel.soft_cap(queries.soft_cap, n, tile);
        factor = 1.0F;
      }
      for (const std::size_t slot : invalid_)
        all[slot] = -std::numeric_limits<float>::infinity();
      float largest;
      non_finite += kernel.scale_logits(factor, n, tile, largest);
      shifts_.push_back(softmaxes_[i].add(tile, n, largest, kernel));
    }
    return non_finite;
  }

  // Exponentials become shares, and denominators comparable.
  void finish(const GroupRows& rows, const kernels::KernelSet& kernel) {
    const std::size_t num = rows.group_size * rows.num_rows;
    for (std::size_t i = 0; i < num; ++i) {
      const std::size_t r = i % rows.num_rows;
      const std::size_t visible = rows.visible(r);
      float* const exponentials = row(rows, i / rows.num_rows, r);
      for (std::size_t first = 0; first < visible; first += kTile) {
        kernel.scale(softmaxes_[i].factor(shifts_[first / kTile * num + i]),
                     std::min(kTile, visible - first), exponentials + first);
      }
    }
    relate_log_sums(rows.group_size, rows.num_rows);
  }

  // In float the differences between heads, which are all that counts, keep their digits only
  // without what the heads have in common.
  void relate_log_sums(std::size_t group, std::size_t num_rows) noexcept {
    for (std::size_t r = 0; r < num_rows; ++r) {
      double largest = softmaxes_[r].log_sum();
      for (std::size_t h = 1; h < group; ++h)
        largest = std::max(largest, softmaxes_[h * num_rows + r].log_sum());
      for (std::size_t h = 0; h < group; ++h) {
        const double log_sum = softmaxes_[h * num_rows + r].log_sum();
        relative_[h * num_rows + r] =
            log_sum == largest ? 0.0F : static_cast<float>(log_sum - largest);
      }
    }
  }

  std::vector<RunningSoftmax> softmaxes_;  // [group_size, rows of the block]
  std::vector<float> shifts_;              // [tiles, group_size, rows of the block]
  std::vector<float> relative_;       // [group_size, rows] log denominators, less the row's largest
  std::vector<std::size_t> invalid_;  // slots of a tile
  std::vector<float> rows_;
  std::vector<float> gathered_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ATTENTION_ROWS_HPP_
