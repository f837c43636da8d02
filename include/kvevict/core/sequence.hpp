#ifndef KVEVICT_CORE_SEQUENCE_HPP_
#define KVEVICT_CORE_SEQUENCE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_vector.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What every policy knows of its sequence: how long it is, which token lies in which slot of
/// each lane, and where the prompts and the pinned spans are. All of it in positions, so that an
/// eviction changes slots only.
class Sequence {
 public:
  Sequence(std::string_view owner, const CacheShape& shape, MaskScope scope)
      : owner_(owner), shape_(shape), scope_(scope), lanes_(shape.num_lanes(scope)) {}

  /// A prompt of `prompt_len` tokens follows what is there already; pinned spans are added to
  /// those known. Throws InvalidArgument while an earlier prompt is not complete, or for a span
  /// that is none.
  void begin(std::size_t prompt_len, std::span<const PositionSpan> pinned) {
    check_growth("prompt_len", prompt_len);
    detail::require(pending_prompt_ == 0, owner_, "pending prompt tokens", pending_prompt_,
                    "left of the prompt before: append them or reset()");
    for (const PositionSpan& span : pinned) {
      detail::require(span.first >= 0, owner_, "PositionSpan.first", span.first, "must be >= 0");
      detail::require(span.last >= span.first, owner_, "PositionSpan.last", span.last,
                      "must be >= first");
    }
    prompts_.push_back({to_position(length_), to_position(length_ + prompt_len)});
    prompt_open_ = true;
    pending_prompt_ = prompt_len;
    prompt_in_one_piece_ = prompt_len > 0;
    pinned_.insert(pinned_.end(), pinned.begin(), pinned.end());
  }
  /// The newest prompt is complete and attended.
  void end_prompt() noexcept { prompt_open_ = false; }
  /// `count` new tokens at the end of every lane. Throws InvalidArgument for more than is left of
  /// a prompt, and where positions end.
  void append(std::size_t count) {
    check_growth("append", count);
    detail::require(pending_prompt_ == 0 || count <= pending_prompt_, owner_, "append", count,
                    "must not go beyond the prompt that was begun");
    prompt_in_one_piece_ = false;
    pending_prompt_ -= std::min(pending_prompt_, count);
    for (Lane& lane : lanes_) {
      if (lane.evicted) {
        for (std::size_t i = 0; i < count; ++i)
          lane.positions.append(1, to_position(length_ + i));
      }
      lane.len += count;
    }
    step_begin_ = length_;
    length_ += count;
    step_len_ = count;
  }
  /// Position of the first token behind the newest prompt.
  [[nodiscard]] std::size_t prompt_end() const noexcept {
    return static_cast<std::size_t>(prompt().last);
  }
  /// Tokens behind the newest prompt; 0 inside it.
  [[nodiscard]] std::size_t num_decoded() const noexcept {
    return length_ > prompt_end() ? length_ - prompt_end() : 0;
  }
  /// Tokens that count as appended by themselves: a prompt of which no piece was appended.
  [[nodiscard]] std::size_t implied_append() const noexcept {
    return prompt_in_one_piece_ ? pending_prompt_ : 0;
  }
  /// Says that `count` of the slots that the next apply evicts from `lane` hold no token.
  void note_evicted_padding(std::size_t lane, std::size_t count) noexcept {
    lanes_[lane].evicted_padding += count;
  }
  /// Says that `count` slots of `lane` are padding, beside what went before, of the prompt that is
  /// being fed or complete now.
  void note_prompt_padding(std::size_t count, std::size_t lane = 0) noexcept {
    if (prompts_.size() == 1)
      first_prompt_padding_ = count + lanes_[lane].evicted_padding;
  }
  /// Drops what the mask evicts. Its scope may be coarser than this one, not finer.
  void apply(const KeepMask& mask) {
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      Lane& lane = lanes_[l];
      if (!lane.evicted) {
        lane.positions.reserve(lane.len + lane.len / 8);
        lane.positions.append(lane.len, 0);
        std::iota(lane.positions.values().begin(), lane.positions.values().end(), to_position(0));
        lane.evicted = true;
      }
      lane.positions.apply(mask, mask_lane(mask, l));
      lane.len = lane.positions.size();
    }
    step_len_ = 0;  // what the step appended may be gone: nothing is left to observe
    step_begin_ = length_;
    ++num_firings_;
  }
  /// Forgets every token at position `new_length` and later; to the current length it does nothing.
  /// A prompt of which something is left and that end_prompt has not closed goes on: what was taken
  /// back of it is to be appended again. One of which nothing is left is to be begun again. Throws
  /// if that would grow it.
  void truncate(std::size_t new_length) {
    detail::require(new_length <= length_, owner_, "truncate", new_length,
                    "must not exceed the number of tokens seen");
    if (new_length == length_)
      return;
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      lanes_[l].len = slots_before(l, new_length);
      if (lanes_[l].evicted)
        lanes_[l].positions.truncate(lanes_[l].len);
      lanes_[l].evicted_padding = std::min(lanes_[l].evicted_padding, new_length - lanes_[l].len);
    }
    const bool prompt_goes_on = prompt_open_ && length_ <= prompt_end() &&
                                new_length > static_cast<std::size_t>(prompt().first);
    pending_prompt_ = prompt_goes_on ? prompt_end() - new_length : 0;
    length_ = new_length;
    step_len_ = 0;
    step_begin_ = std::min(step_begin_, new_length);
    prompt_in_one_piece_ = false;
    const Position end = prompt_goes_on ? prompt().last : to_position(new_length);
    const std::size_t num_prompts = prompts_.size();
    if (new_length == 0)
      first_prompt_padding_ = 0;
    for (auto* spans : {&prompts_, &pinned_}) {
      std::erase_if(*spans, [&](const PositionSpan& span) { return span.first >= end; });
      for (PositionSpan& span : *spans)
        span.last = std::min(span.last, end);
    }
    prompt_open_ = prompt_open_ && prompts_.size() == num_prompts;
  }
  void reset() {
    for (Lane& lane : lanes_) {
      lane.positions.clear();
      lane.len = 0;
      lane.evicted_padding = 0;
      lane.evicted = false;
    }
    num_firings_ = 0;
    first_prompt_padding_ = 0;
    prompts_.clear();
    pinned_.clear();
    length_ = 0;
    step_len_ = 0;
    step_begin_ = 0;
    pending_prompt_ = 0;
    prompt_in_one_piece_ = false;
    prompt_open_ = false;
  }

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] MaskScope scope() const noexcept { return scope_; }
  [[nodiscard]] std::string_view owner() const noexcept { return owner_; }
  [[nodiscard]] std::size_t num_lanes() const noexcept { return lanes_.size(); }
  /// Tokens seen, evicted ones included: the position of the next token.
  [[nodiscard]] std::size_t length() const noexcept { return length_; }
  /// length() before the newest append, or where a truncate or a mask came behind it: what is
  /// left of the step is [step_begin(), length()).
  [[nodiscard]] std::size_t step_begin() const noexcept { return step_begin_; }
  /// Tokens of the newest append.
  [[nodiscard]] std::size_t step_len() const noexcept { return step_len_; }
  /// How many of the newest append's tokens, the implied one included, are among the last `window`
  /// of the newest prompt. They are its newest ones; 0 while decoding.
  [[nodiscard]] std::size_t step_rows_in_window(std::size_t window) const noexcept {
    const std::size_t implied = implied_append();
    const std::size_t length = length_ + implied;
    const std::size_t end = prompt_end();
    if (length > end)
      return 0;
    const std::size_t behind = end - length;  // window tokens that are still to come
    return behind >= window ? 0 : std::min(implied > 0 ? implied : step_len_, window - behind);
  }
  /// Tokens of the newest prompt that have not been appended yet.
  [[nodiscard]] std::size_t pending_prompt() const noexcept { return pending_prompt_; }
  [[nodiscard]] bool in_prompt() const noexcept { return pending_prompt_ > 0; }
  /// Whether a prompt was begun and end_prompt is to come.
  [[nodiscard]] bool prompt_open() const noexcept { return prompt_open_; }
  /// The newest prompt; empty where no prompt was begun.
  [[nodiscard]] PositionSpan prompt() const noexcept {
    return prompts_.empty() ? PositionSpan{} : prompts_.back();
  }
  [[nodiscard]] std::span<const PositionSpan> prompts() const noexcept { return prompts_; }
  [[nodiscard]] std::span<const PositionSpan> pinned() const noexcept { return pinned_; }
  [[nodiscard]] bool is_pinned(Position position) const noexcept {
    return std::any_of(pinned_.begin(), pinned_.end(), [position](const PositionSpan& span) {
      return position >= span.first && position < span.last;
    });
  }

  /// The lane of `mask` that this one's `lane` follows.
  [[nodiscard]] std::size_t mask_lane(const KeepMask& mask, std::size_t lane) const noexcept {
    return mask.lane_of(shape_.first_layer(scope_, lane), shape_.first_head(scope_, lane));
  }
  [[nodiscard]] std::size_t seq_len(std::size_t lane) const noexcept { return lanes_[lane].len; }
  [[nodiscard]] std::size_t seq_len(std::size_t layer, std::size_t kv_head) const noexcept {
    return lanes_[shape_.lane_of(scope_, layer, kv_head)].len;
  }
  /// Tokens that `lane` has lost to evictions; padding was none (rule R9).
  [[nodiscard]] std::size_t num_evicted(std::size_t lane) const noexcept {
    return length_ - lanes_[lane].len - lanes_[lane].evicted_padding;
  }
  /// Masks applied so far; truncate takes none of them back.
  [[nodiscard]] std::size_t num_firings() const noexcept { return num_firings_; }
  /// Padding in the first prompt, known once it is complete; before, its left padding as far as a
  /// view has shown it.
  [[nodiscard]] std::size_t first_prompt_padding() const noexcept { return first_prompt_padding_; }
  /// How much of it `lane` still holds.
  [[nodiscard]] std::size_t padding_left(std::size_t lane) const noexcept {
    return first_prompt_padding_ - std::min(first_prompt_padding_, lanes_[lane].evicted_padding);
  }
  [[nodiscard]] Position position(std::size_t lane, std::size_t slot) const noexcept {
    return lanes_[lane].evicted ? lanes_[lane].positions.values()[slot] : to_position(slot);
  }
  /// Slots of `lane` whose position is below `position`; they are its first ones (rule R1).
  [[nodiscard]] std::size_t slots_before(std::size_t lane, std::size_t position) const noexcept {
    const Lane& here = lanes_[lane];
    if (!here.evicted)
      return std::min(here.len, position);
    const std::span<const Position> positions = here.positions.values();
    const auto end = std::lower_bound(positions.begin(), positions.end(), to_position(position));
    return static_cast<std::size_t>(end - positions.begin());
  }

 private:
  void check_growth(std::string_view field, std::size_t count) const {
    detail::require(count <= kMaxLength - length_, owner_, field, count,
                    "would exceed the largest position");
  }
  static constexpr std::size_t kMaxLength =
      static_cast<std::size_t>(std::numeric_limits<Position>::max());
  struct Lane {
    SlotVector<Position> positions;  // of each slot; only once something was evicted
    std::size_t len = 0;
    std::size_t evicted_padding = 0;
    bool evicted = false;
  };
  [[nodiscard]] static constexpr Position to_position(std::size_t index) noexcept {
    return static_cast<Position>(index);
  }

  std::string_view owner_;
  CacheShape shape_;
  MaskScope scope_;
  std::vector<Lane> lanes_;
  std::vector<PositionSpan> prompts_;
  std::vector<PositionSpan> pinned_;
  std::size_t length_ = 0;
  std::size_t step_len_ = 0;
  std::size_t step_begin_ = 0;
  std::size_t pending_prompt_ = 0;
  std::size_t num_firings_ = 0;
  std::size_t first_prompt_padding_ = 0;
  bool prompt_in_one_piece_ = false;
  bool prompt_open_ = false;  // begun, end_prompt to come
};

/// Lanes of a mask that one layer has.
[[nodiscard]] inline std::size_t lanes_per_layer(const Sequence& sequence) noexcept {
  return std::max<std::size_t>(sequence.num_lanes() / sequence.shape().num_layers, 1);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SEQUENCE_HPP_
