#ifndef KVEVICT_SCORING_BELOW_UNIFORM_HPP_
#define KVEVICT_SCORING_BELOW_UNIFORM_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/recent_row_signal.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// One bit for each slot and each of the newest `window` tokens, per KV head: what a row said of
/// the slot. A lane that loses tokens starts over. Memory: window / 8 bytes per slot and KV head.
class RowBits {
 public:
  static constexpr bool kForgetsOldest = true;

  RowBits(const CacheShape& shape, std::size_t window)
      : shape_(shape),
        window_(window),
        words_per_slot_((window + 63) / 64),
        words_(shape.num_lanes(MaskScope::kHead) * words_per_slot_) {}

  [[nodiscard]] std::size_t window() const noexcept { return window_; }
  /// Sets the bits of the token at `position`, one of the newest `window`, for slots [0, count).
  template <class Predicate>
  void set(std::size_t layer, std::size_t kv_head, std::size_t position, std::size_t count,
           Predicate&& is_set) noexcept {
    const std::size_t index = position % window_;
    std::uint64_t* words = of(layer, kv_head, index / 64).data();
    const std::size_t shift = index % 64;
    for (std::size_t slot = 0; slot < count; ++slot) {
      words[slot] = (words[slot] & ~(std::uint64_t{1} << shift)) |
                    (static_cast<std::uint64_t>(is_set(slot)) << shift);
    }
  }
  /// Bits of a slot.
  [[nodiscard]] std::size_t count(std::size_t layer, std::size_t kv_head,
                                  std::size_t slot) const noexcept {
    std::size_t bits = 0;
    for (std::size_t w = 0; w < words_per_slot_; ++w)
      bits += static_cast<std::size_t>(std::popcount(of(layer, kv_head, w)[slot]));
    return bits;
  }

  void append(std::size_t count) {
    for (auto& words : words_)
      words.insert(words.end(), count, 0);
    length_ += count;
    forget(length_ - std::min(count, window_), length_);
  }
  void apply(const KeepMask& mask) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::size_t head = i / words_per_slot_;
      const std::size_t kept = mask.count(head / shape_.num_kv_heads, head % shape_.num_kv_heads);
      if (kept < words_[i].size())
        words_[i].assign(kept, 0);
    }
  }
  void truncate(const Sequence& sequence) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::size_t head = i / words_per_slot_;
      words_[i].resize(sequence.seq_len(head / shape_.num_kv_heads, head % shape_.num_kv_heads));
    }
    const std::size_t end = std::max(length_, sequence.length());
    length_ = sequence.length();
    forget(std::max(length_, end - std::min(end, window_)), end);
  }
  void reset() noexcept {
    for (auto& words : words_)
      words.clear();
    length_ = 0;
  }

 private:
  [[nodiscard]] std::vector<std::uint64_t>& of(std::size_t layer, std::size_t kv_head,
                                               std::size_t word) noexcept {
    return words_[shape_.lane_of(MaskScope::kHead, layer, kv_head) * words_per_slot_ + word];
  }
  [[nodiscard]] const std::vector<std::uint64_t>& of(std::size_t layer, std::size_t kv_head,
                                                     std::size_t word) const noexcept {
    return words_[shape_.lane_of(MaskScope::kHead, layer, kv_head) * words_per_slot_ + word];
  }
  // Clears the bits of the tokens at [first, last).
  void forget(std::size_t first, std::size_t last) noexcept {
    for (std::size_t position = first; position < last; ++position) {
      const std::size_t index = position % window_;
      const std::uint64_t others = ~(std::uint64_t{1} << (index % 64));
      for (std::size_t i = index / 64; i < words_.size(); i += words_per_slot_) {
        for (std::uint64_t& word : words_[i])
          word &= others;
      }
    }
  }

  CacheShape shape_;
  std::size_t window_;
  std::size_t words_per_slot_;
  std::vector<std::vector<std::uint64_t>> words_;  // [lanes, words_per_slot], by slot
  std::size_t length_ = 0;                         // tokens seen
};

/// Minus the number of the newest `history` rows that gave a token less than an even share of
/// attention, mean over the group < 1 / (tokens that the row saw): [1 per KV head, seq_len]. Rows
/// from before a lane's last eviction do not count, nor those from before the token. Padding counts
/// among the tokens that a row saw.
class BelowUniformCount : public RecentRowSignal<RowBits> {
 public:
  /// Throws InvalidArgument, naming `where`, for a history of 0.
  BelowUniformCount(std::string_view where, const CacheShape& shape, std::size_t history)
      : RecentRowSignal(where, "history", shape, history) {}

  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t visible = rows.visible(r);
      mean_.assign(visible, 0.0F);
      non_finite += add_heads(rows, r, 1.0F / static_cast<float>(rows.group_size), kernel, mean_);
      const float even = 1.0F / static_cast<float>(visible);
      rows_.set(rows.layer, rows.kv_head, rows.first_position + r, visible,
                [&](std::size_t slot) { return mean_[slot] < even; });
    }
    return non_finite;
  }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      for (std::size_t slot = 0; slot < scores.count(); ++slot) {
        scores.array(head)[slot] =
            -static_cast<float>(rows_.count(scores.layer(head), scores.kv_head(head), slot));
      }
    }
  }

 private:
  std::vector<float> mean_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_BELOW_UNIFORM_HPP_
