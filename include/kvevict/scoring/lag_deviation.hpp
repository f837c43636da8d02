#ifndef KVEVICT_SCORING_LAG_DEVIATION_HPP_
#define KVEVICT_SCORING_LAG_DEVIATION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/channel_ranges.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/token_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Lag-normalised deviation of keys or of values (EpiKV, arXiv 2606.26472, "Lag-KV"; the idea is
/// that of LagKV, arXiv 2504.04704, with the chunk before as reference and no softmax).
///
/// The cache is cut into chunks of `chunk_len` tokens from slot 0. With x the mean over layers of
/// a KV head's row and [low, high] its range per channel in the chunk before,
///     u(token) = mean over KV heads of the sample deviation over channels of
///                (x - low) / (high - low + 1e-9),   in the first chunk of x itself.
/// A channel that is constant in the chunk before counts as 0, and so does any scaled value that
/// is not finite (authors' code: a divisor of 1e-9, which lets such a channel decide alone).
/// Slots that are not valid hold no token: no chunk counts them. Validity is read from the first
/// lane; all others are taken to have the same.
class LagDeviation {
 public:
  /// @param chunk_len  > 0
  LagDeviation(const ViewRef& view, std::size_t chunk_len, const kernels::KernelSet& kernel,
               Scratch& scratch)
      : view_(view),
        shape_(view.shape()),
        seq_len_(view.lane(0, 0).seq_len),
        valid_(view.lane(0, 0).valid),
        chunk_len_(chunk_len),
        kernel_(kernel),
        scratch_(scratch) {}

  /// Adds u to `out` [seq_len] for the tokens of every chunk that reaches slot `first_slot` or
  /// further; a score does not depend on what lies behind its chunk, so later chunks can be
  /// scored alone. O(layers * kv_heads * slots * dim). Uses the four scratch buffers from
  /// LaneScores::kFirstFree on.
  void add(KvPart part, std::size_t first_slot, std::span<float> out) {
    const std::size_t dim = dim_of(shape_, part);
    ChannelRanges ranges(scratch_.floats(kBuffer + 3, 2 * dim), kernel_);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      ranges.finish_unscaled();
      for (std::size_t first = 0; first < seq_len_;) {
        const std::size_t last = chunk_end(first);
        const bool scored = last > first_slot;
        const bool needed = scored || chunk_end(last) > first_slot;
        if (needed) {
          const std::span<float> rows = layer_means(part, head, dim, first, last);
          if (scored)
            add_chunk(rows, dim, ranges, first, last, out);
          ranges.clear();
          for (std::size_t i = 0; i < rows.size(); i += dim)
            ranges.take(rows.data() + i);
          ranges.finish(kEpsilon);
        }
        first = last;
      }
    }
  }

 private:
  [[nodiscard]] bool is_valid(std::size_t slot) const noexcept {
    return valid_.empty() || valid_[slot] != 0;
  }
  /// One past the last slot of the chunk that starts at `first`.
  [[nodiscard]] std::size_t chunk_end(std::size_t first) const noexcept {
    return end_of_tokens(valid_, first, seq_len_, chunk_len_);
  }

  /// Mean over layers of the valid rows of [first, last): [tokens, dim].
  std::span<float> layer_means(KvPart part, std::size_t head, std::size_t dim, std::size_t first,
                               std::size_t last) {
    std::size_t tokens = 0;
    for (std::size_t slot = first; slot < last; ++slot)
      tokens += is_valid(slot) ? 1 : 0;
    const std::span<float> means = scratch_.floats(kBuffer + 1, tokens * dim);
    const std::span<float> wide = scratch_.floats(kBuffer + 2, dim);
    std::fill(means.begin(), means.end(), 0.0F);
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      float* mean = means.data();
      for_each_row_block(
          rows_of(view_.lane(layer, head), part), dim, first, last, kernel_,
          scratch_.vector(kBuffer), [&](const kernels::RowBlock& rows, std::size_t slot) {
            const auto* row = static_cast<const std::byte*>(rows.data);
            for (std::size_t i = 0; i < rows.num_rows; ++i, row += rows.stride_bytes) {
              if (!is_valid(slot + i))
                continue;
              kernel_.widen(row, rows.type, dim, wide.data());
              if (kernel_.add(1.0F, wide.data(), dim, mean) > 0)
                spread_non_finite(wide, mean);
              mean += dim;
            }
          });
    }
    kernel_.scale(1.0F / static_cast<float>(shape_.num_layers), means.size(), means.data());
    return means;
  }
  /// kernel.add leaves out samples that are not finite; a mean over layers must not.
  static void spread_non_finite(std::span<const float> row, float* mean) noexcept {
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (!std::isfinite(row[c]))
        mean[c] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  void add_chunk(std::span<const float> rows, std::size_t dim, const ChannelRanges& ranges,
                 std::size_t first, std::size_t last, std::span<float> out) const noexcept {
    const float share = 1.0F / static_cast<float>(shape_.num_kv_heads);
    const float* row = rows.data();
    for (std::size_t slot = first; slot < last; ++slot) {
      if (!is_valid(slot))
        continue;
      out[slot] += share * std::sqrt(ranges.variance(row));
      row += dim;
    }
  }

  static constexpr float kEpsilon = 1e-9F;
  static constexpr std::size_t kBuffer = LaneScores::kFirstFree;

  const ViewRef& view_;
  CacheShape shape_;
  std::size_t seq_len_;
  std::span<const std::uint8_t> valid_;
  std::size_t chunk_len_;
  const kernels::KernelSet& kernel_;
  Scratch& scratch_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_LAG_DEVIATION_HPP_
