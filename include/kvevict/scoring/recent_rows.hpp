#ifndef KVEVICT_SCORING_RECENT_ROWS_HPP_
#define KVEVICT_SCORING_RECENT_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// One attention row per KV head of each of the newest `window` tokens, by slot, so that what the
/// newest rows say of the tokens still cached can be asked at any time. A row that never came, or
/// whose token was taken back, is zero; rows that drafts pushed out do not come back.
///
/// Memory: `window` floats per slot and KV head.
class RecentRows {
 public:
  static constexpr bool kForgetsOldest = true;

  RecentRows(const CacheShape& shape, std::size_t window)
      : num_lanes_(shape.num_lanes(MaskScope::kHead)), rows_(shape, MaskScope::kHead, window) {}

  [[nodiscard]] std::size_t window() const noexcept { return rows_.arrays_per_lane(); }
  /// [seq_len] the row of the token at `position`, one of the newest `window`; zero where it sees
  /// nothing.
  [[nodiscard]] std::span<float> of(std::size_t layer, std::size_t kv_head,
                                    std::size_t position) noexcept {
    return rows_.of(layer, kv_head, position % window());
  }
  /// One of the `window` rows, in no order.
  [[nodiscard]] std::span<const float> of_index(std::size_t layer, std::size_t kv_head,
                                                std::size_t index) const noexcept {
    return rows_.of(layer, kv_head, index);
  }

  void append(std::size_t count) {
    rows_.append(count);
    length_ += count;
    clear(length_ - std::min(count, window()), length_);
  }
  void apply(const KeepMask& mask) { rows_.apply(mask); }
  void truncate(const Sequence& sequence) {
    rows_.truncate(sequence);
    const std::size_t end = std::max(length_, sequence.length());
    length_ = sequence.length();
    clear(std::max(length_, end - std::min(end, window())), end);
  }
  void reset() noexcept {
    rows_.reset();
    length_ = 0;
  }

 private:
  // Forgets the rows of the tokens at [first, last).
  void clear(std::size_t first, std::size_t last) noexcept {
    for (std::size_t position = first; position < last; ++position) {
      for (std::size_t lane = 0; lane < num_lanes_; ++lane) {
        const std::span<float> row = rows_.at(lane, position % window());
        std::fill(row.begin(), row.end(), 0.0F);
      }
    }
  }

  std::size_t num_lanes_;
  SlotArray rows_;
  std::size_t length_ = 0;  // tokens seen
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RECENT_ROWS_HPP_
