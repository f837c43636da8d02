#ifndef KVEVICT_ALLOCATION_FIRST_PROMPT_HPP_
#define KVEVICT_ALLOCATION_FIRST_PROMPT_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// How long the sequence was when its first prompt was complete (L0), without padding. Papers that
/// take a share of it as their budget keep that number of tokens from then on, however long the
/// sequence grows and whatever prompts follow.
class FirstPrompt {
 public:
  /// To be called when a prompt was begun.
  void begin(const Sequence& sequence) noexcept {
    const PositionSpan prompt = sequence.prompt();
    if (length_ == 0 && prompt.first < prompt.last)
      length_ = static_cast<std::size_t>(prompt.last);
  }
  /// `budget` with a share turned into that share of the first prompt; where no prompt was begun,
  /// of all tokens so far, evicted ones included. Before there is any token a share stays one.
  [[nodiscard]] Budget frozen(const Budget& budget, const Sequence& sequence) const noexcept {
    const std::size_t length = length_ > 0
                                   ? length_ - std::min(length_, sequence.first_prompt_padding())
                                   : sequence.length();
    if (!budget.is_share() || length == 0)
      return budget;
    return budget.tokens_of(length);
  }

  void append(std::size_t /*count*/) noexcept {}
  void apply(const KeepMask& /*mask*/) noexcept {}
  /// Taking tokens of the prompt back does not change the budget, taking back all of it does.
  void truncate(const Sequence& sequence) noexcept {
    if (sequence.length() == 0)
      length_ = 0;
  }
  void reset() noexcept { length_ = 0; }

 private:
  std::size_t length_ = 0;
};

/// A budget for every step; a share is one of the first prompt.
class BudgetOfFirstPrompt {
 public:
  explicit BudgetOfFirstPrompt(const Budget& budget) noexcept : budget_(budget) {}

  [[nodiscard]] auto state() noexcept { return std::tie(first_prompt_); }

  void begin(const Sequence& sequence) noexcept { first_prompt_.begin(sequence); }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    return {.budget = first_prompt_.frozen(budget_, sequence)};
  }

 private:
  Budget budget_;
  FirstPrompt first_prompt_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_FIRST_PROMPT_HPP_
