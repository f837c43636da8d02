#ifndef KVEVICT_SELECTION_STREAMING_TOP_K_HPP_
#define KVEVICT_SELECTION_STREAMING_TOP_K_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Chooses what leaves a full cache when scores never change after a token arrived: the same
/// tokens as protecting the prompts and the newest `recent_window` slots and selecting the best
/// of the rest, step after step, but O(log budget) a token instead of O(budget).
///
/// For engines in which nothing moves: the token to come takes the memory of the one that goes.
/// It speaks of positions, since slots are then in no order.
///
///   keep.push_prompt(prompt_len);
///   each decode step:  keep.push(score);  while (auto gone = keep.pop()) free(*gone);
///
/// Exact because frozen scores make the kept set independent of the order of evictions (EpiKV
/// pseudo-code, by induction): only the worst token outside the recent window can be next. Ties
/// as everywhere: the earlier token stays (rule R3), NaN goes first (rule R4).
class StreamingTopK {
 public:
  /// @param budget  tokens that may stay, prompts included. Prompts stay even where they exceed
  ///                it; then no other token does.
  StreamingTopK(std::size_t budget, std::size_t recent_window)
      : budget_(budget), recent_(recent_window) {}

  /// The next `count` tokens are a prompt's: they stay, and count as recent like any other.
  void push_prompt(std::size_t count) {
    prompts_.push_back({static_cast<Position>(length_), static_cast<Position>(length_ + count)});
    prompt_tokens_ += count;
    for (std::size_t i = 0; i < count; ++i)
      push_recent({kPrompt, 0});
  }
  /// The next token and its score.
  void push(float score) {
    ++decoded_;
    push_recent({static_cast<Position>(length_), kernels::order_key(score)});
  }

  /// Position of a token that has to go; none while the cache is within its budget. Call it until
  /// it gives none.
  [[nodiscard]] std::optional<Position> pop() {
    const std::size_t room = budget_ > prompt_tokens_ ? budget_ - prompt_tokens_ : 0;
    if (decoded_ <= room)
      return std::nullopt;
    --decoded_;
    if (!older_.empty()) {
      std::pop_heap(older_.begin(), older_.end(), better);
      const Position gone = older_.back().position;
      older_.pop_back();
      return gone;
    }
    // The window itself does not fit: its oldest token goes.
    std::size_t age = num_recent_;
    while (recent(--age).position == kPrompt) {
    }
    const Position gone = recent(age).position;
    recent(age).position = kPrompt;
    return gone;
  }

  /// Forgets every token at position `new_length` and later; at most length(). O(budget log
  /// budget).
  void truncate(std::size_t new_length) {
    std::vector<Token> tokens = older_;
    for (std::size_t age = 0; age < num_recent_; ++age) {
      if (recent(age).position != kPrompt)
        tokens.push_back(recent(age));
    }
    std::sort(tokens.begin(), tokens.end(),
              [](const Token& a, const Token& b) { return a.position < b.position; });
    const std::vector<PositionSpan> prompts = prompts_;
    reset();
    const auto end = static_cast<Position>(new_length);
    auto token = tokens.begin();
    const auto push_tokens_before = [&](Position position) {
      for (; token != tokens.end() && token->position < std::min(position, end); ++token) {
        ++decoded_;
        push_recent(*token);
      }
      length_ = static_cast<std::size_t>(std::min(position, end));
    };
    for (const PositionSpan& prompt : prompts) {
      push_tokens_before(prompt.first);
      if (prompt.first < end) {
        push_prompt(static_cast<std::size_t>(std::min(prompt.last, end) - prompt.first));
      }
    }
    push_tokens_before(end);
  }
  void reset() noexcept {
    older_.clear();
    prompts_.clear();
    num_recent_ = 0;
    length_ = 0;
    decoded_ = 0;
    prompt_tokens_ = 0;
  }

  /// Tokens pushed, those that went included: the position of the next one.
  [[nodiscard]] std::size_t length() const noexcept { return length_; }
  /// Tokens that are there.
  [[nodiscard]] std::size_t size() const noexcept { return prompt_tokens_ + decoded_; }

 private:
  struct Token {
    Position position = 0;
    std::uint32_t key = 0;
  };
  static constexpr Position kPrompt = -1;  // marks a place in the window that nobody can lose

  /// As heap order this puts the worst token on top: smallest key, then latest position.
  [[nodiscard]] static bool better(const Token& a, const Token& b) noexcept {
    return a.key != b.key ? a.key > b.key : a.position < b.position;
  }
  /// 0 is the newest.
  [[nodiscard]] Token& recent(std::size_t age) noexcept {
    return recent_[(next_recent_ + 2 * recent_.size() - 1 - age) % recent_.size()];
  }
  // The window is a ring; what drops out of it competes from then on.
  void push_recent(const Token& token) {
    ++length_;
    if (recent_.empty()) {
      add_older(token);
      return;
    }
    if (num_recent_ == recent_.size()) {
      add_older(recent_[next_recent_]);
    } else {
      ++num_recent_;
    }
    recent_[next_recent_] = token;
    next_recent_ = (next_recent_ + 1) % recent_.size();
  }
  void add_older(const Token& token) {
    if (token.position == kPrompt)
      return;
    older_.push_back(token);
    std::push_heap(older_.begin(), older_.end(), better);
  }

  std::size_t budget_;
  std::vector<Token> older_;   // heap
  std::vector<Token> recent_;  // ring of the newest tokens
  std::size_t next_recent_ = 0;
  std::size_t num_recent_ = 0;
  std::vector<PositionSpan> prompts_;
  std::size_t length_ = 0;
  std::size_t decoded_ = 0;
  std::size_t prompt_tokens_ = 0;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_STREAMING_TOP_K_HPP_
