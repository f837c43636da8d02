#ifndef KVEVICT_SCORING_ATTENTION_COLUMNS_HPP_
#define KVEVICT_SCORING_ATTENTION_COLUMNS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How the rows of a column come together.
enum class RowReduce : std::uint8_t {
  kSum,      ///< sum over rows
  kSquares,  ///< sum of squares over rows: the column's L2 norm, squared
  kMax,      ///< largest entry
};

/// How much a row counts.
enum class RowWeight : std::uint8_t {
  kOne,
  kSlotsBefore,  ///< as many times as it sees slots before its own: its entries are that much
                 ///< thinner than those of a shorter row (Finch)
};

/// When the query heads of a group come together, and which arrays are left.
enum class HeadReduce : std::uint8_t {
  kNone,           ///< not here: one array per query head
  kGroupMean,      ///< mean over the group, row by row, before rows are reduced; per KV head
  kGroupProducts,  ///< sum over rows of a_h * a_h' for each pair h <= h' of the group
};

/// Per-slot statistics of attention columns, accumulated row by row over as many calls as come:
/// the row and head reduction of every attention policy.
class AttentionColumns {
 public:
  AttentionColumns(const CacheShape& shape, RowReduce rows, HeadReduce heads)
      : shape_(shape),
        row_reduce_(rows),
        head_reduce_(heads),
        columns_(shape, MaskScope::kHead, arrays_per_lane(shape, heads)) {}

  /// Adds the rows of one KV group; returns how many entries were not finite (rule R19).
  ///
  /// @param past  if given, a row counts on its first `past` slots only and is scaled to sum to 1
  ///              there, as a softmax over them would; a row without mass there adds nothing
  /// @param weight  of each row
  std::size_t observe(const GroupRows& rows, const kernels::KernelSet& kernel,
                      std::optional<std::size_t> past = std::nullopt,
                      RowWeight weight = RowWeight::kOne) {
    scales_.clear();
    const float shared_by =
        head_reduce_ == HeadReduce::kGroupMean ? static_cast<float>(rows.group_size) : 1.0F;
    std::size_t longest = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t n = counted(rows, r, past);
      longest = std::max(longest, n);
      const float times =
          weight == RowWeight::kSlotsBefore ? static_cast<float>(rows.visible(r) - 1) : 1.0F;
      for (std::size_t h = 0; h < rows.group_size; ++h)
        scales_.push_back(times * (past ? inverse_mass(rows.row(h, r), n, kernel) : 1.0F) /
                          shared_by);
    }
    // Some slots of all rows after another: their columns stay in cache.
    std::size_t non_finite = 0;
    for (std::size_t first = 0; first < longest; first += kSlots) {
      for (std::size_t r = 0; r < rows.num_rows; ++r) {
        const std::size_t last = std::min(counted(rows, r, past), first + kSlots);
        if (first < last)
          non_finite += observe_slots(rows, r, first, last - first, kernel);
      }
    }
    return non_finite;
  }

  /// [seq_len] statistics of a KV head's `index`-th array: its query heads, its pairs in the order
  /// (0,0), (0,1), .., (1,1), .., or the only one.
  [[nodiscard]] std::span<const float> of(std::size_t layer, std::size_t kv_head,
                                          std::size_t index = 0) const noexcept {
    return columns_.of(layer, kv_head, index);
  }
  /// The mean over the KV heads, counted through the model, that one lane of `scope` stands for.
  /// Brought together here, not as rows come: a sum in the order of arrival would depend on how
  /// many tokens come in one step (rule R18).
  void mean(MaskScope scope, std::size_t lane, const kernels::KernelSet& kernel,
            std::span<float> out) const noexcept {
    const std::size_t num_heads = shape_.num_lanes(MaskScope::kHead) / shape_.num_lanes(scope);
    for (std::size_t i = 0; i < num_heads; ++i) {
      const std::span<const float> column = columns_.at(lane * num_heads + i);
      if (i == 0) {
        std::copy(column.begin(), column.end(), out.begin());
      } else {
        kernel.add(1.0F, column.data(), column.size(), out.data());
      }
    }
    if (num_heads > 1)
      kernel.scale(1.0F / static_cast<float>(num_heads), out.size(), out.data());
  }
  [[nodiscard]] std::size_t arrays_per_kv_head() const noexcept {
    return columns_.arrays_per_lane();
  }

  /// Starts over with the slots that are there.
  void clear() noexcept { columns_.fill(0.0F); }

  void append(std::size_t count) { columns_.append(count); }
  void apply(const KeepMask& mask) { columns_.apply(mask); }
  void truncate(const Sequence& sequence) { columns_.truncate(sequence); }
  void reset() noexcept { columns_.reset(); }

 private:
  [[nodiscard]] static std::size_t arrays_per_lane(const CacheShape& shape,
                                                   HeadReduce heads) noexcept {
    const std::size_t group = shape.group_size();
    if (heads == HeadReduce::kNone)
      return group;
    return heads == HeadReduce::kGroupProducts ? group * (group + 1) / 2 : 1;
  }
  static constexpr std::size_t kSlots = 2048;  // 8 KiB of a column, and of each row

  [[nodiscard]] static std::size_t counted(const GroupRows& rows, std::size_t r,
                                           std::optional<std::size_t> past) noexcept {
    return past ? std::min(*past, rows.visible(r)) : rows.visible(r);
  }
  // Slots first .. first + n of row r.
  std::size_t observe_slots(const GroupRows& rows, std::size_t r, std::size_t first, std::size_t n,
                            const kernels::KernelSet& kernel) {
    const float* const scale = scales_.data() + r * rows.group_size;
    const auto column = [&](std::size_t index) {
      return columns_.of(rows.layer, rows.kv_head, index).data() + first;
    };
    const auto row = [&](std::size_t h) { return rows.row(h, r) + first; };
    std::size_t non_finite = 0;
    if (head_reduce_ == HeadReduce::kGroupProducts) {
      std::size_t pair = 0;
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        for (std::size_t other = h; other < rows.group_size; ++other, ++pair) {
          non_finite +=
              kernel.add_product(scale[h] * scale[other], row(h), row(other), n, column(pair));
        }
      }
    } else if (head_reduce_ == HeadReduce::kNone) {
      for (std::size_t h = 0; h < rows.group_size; ++h)
        non_finite += reduce_row(kernel, scale[h], row(h), n, column(h));
    } else if (row_reduce_ == RowReduce::kSum) {
      // Sums commute: each head goes straight into the mean.
      non_finite += kernel.add_rows(scale, row(0), rows.head_stride, rows.group_size, n, column(0));
    } else {
      mean_.assign(n, 0.0F);
      non_finite +=
          kernel.add_rows(scale, row(0), rows.head_stride, rows.group_size, n, mean_.data());
      non_finite += reduce_row(kernel, 1.0F, mean_.data(), n, column(0));
    }
    return non_finite;
  }
  // 0 where the first n entries have no mass. Entries that are not finite are left out of it.
  [[nodiscard]] static float inverse_mass(const float* row, std::size_t n,
                                          const kernels::KernelSet& kernel) noexcept {
    double mass = kernel.sum(row, n);
    if (!std::isfinite(mass)) {
      mass = 0.0;
      for (std::size_t i = 0; i < n; ++i)
        mass += std::isfinite(row[i]) ? row[i] : 0.0F;
    }
    return mass > 0.0 ? static_cast<float>(1.0 / mass) : 0.0F;
  }
  std::size_t reduce_row(const kernels::KernelSet& kernel, float factor, const float* row,
                         std::size_t n, float* column) const noexcept {
    switch (row_reduce_) {
      case RowReduce::kSquares:
        return kernel.add_squared(factor, row, n, column);
      case RowReduce::kMax:
        return kernel.take_max(factor, row, n, column);
      case RowReduce::kSum:
        break;
    }
    return kernel.add(factor, row, n, column);
  }

  CacheShape shape_;
  RowReduce row_reduce_;
  HeadReduce head_reduce_;
  SlotArray columns_;
  // Memory that is kept between calls.
  std::vector<float> scales_;  // [num_rows, group_size]
  std::vector<float> mean_;    // of a group, some slots of it
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ATTENTION_COLUMNS_HPP_
