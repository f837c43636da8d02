#ifndef KVEVICT_ALLOCATION_HEAVY_AND_RECENT_HPP_
#define KVEVICT_ALLOCATION_HEAVY_AND_RECENT_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/first_prompt.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"

#include <cstddef>
#include <limits>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// A budget of two parts (H2O): the newest `recent` tokens stay, and `heavy` of the others. A share
/// is one of the first prompt.
class HeavyAndRecent {
 public:
  /// @param cut_between_chunks  unfinished prompts have a budget too
  /// @param num_sink_tokens     first tokens that always stay, of those that are heavy
  HeavyAndRecent(const Budget& heavy, const Budget& recent, bool cut_between_chunks,
                 std::size_t num_sink_tokens = 0) noexcept
      : heavy_(heavy),
        recent_(recent),
        cut_between_chunks_(cut_between_chunks),
        num_sink_tokens_(num_sink_tokens) {}

  [[nodiscard]] auto state() noexcept { return std::tie(first_prompt_); }

  void begin(const Sequence& sequence) noexcept { first_prompt_.begin(sequence); }
  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept {
    return {.num_sink_tokens = num_sink_tokens_, .recent_window = tokens(recent_, sequence)};
  }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (sequence.in_prompt() && !cut_between_chunks_)
      return {.budget = std::numeric_limits<std::size_t>::max()};
    // Before there is any token a share is no number, which sinks might exceed.
    for (const Budget& part : {heavy_, recent_}) {
      if (first_prompt_.frozen(part, sequence).is_share())
        return {.budget = part};
    }
    return {.budget = detail::saturating_add(tokens(heavy_, sequence), tokens(recent_, sequence))};
  }

 private:
  [[nodiscard]] std::size_t tokens(const Budget& budget, const Sequence& sequence) const noexcept {
    return first_prompt_.frozen(budget, sequence).tokens_of(0);
  }

  Budget heavy_;
  Budget recent_;
  bool cut_between_chunks_;
  std::size_t num_sink_tokens_;
  FirstPrompt first_prompt_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_HEAVY_AND_RECENT_HPP_
