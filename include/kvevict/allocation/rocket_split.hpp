#ifndef KVEVICT_ALLOCATION_ROCKET_SPLIT_HPP_
#define KVEVICT_ALLOCATION_ROCKET_SPLIT_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// How RocketKV divides its work between the eviction of a prompt and what an engine may do behind
/// it, sparse attention over pages of what is left.
struct RocketSplit {
  std::size_t prompt_budget = 0;  ///< stage 1: tokens of the prompt that stay per KV head
  std::size_t top_tokens = 0;     ///< stage 2: tokens that a step attends to
  std::size_t page_len = 1;       ///< stage 2: tokens per page
  std::size_t num_channels = 0;   ///< stage 2: channels of a key that estimate its page
};

/// The split of a sequence of `seq_len` tokens in all, prompt and max_new_tokens, for steps that
/// may cost as much as attending to `token_budget` tokens. With S, T, c = S / T:
///
///   alpha = min(0.2 + 0.06 log2 c, 0.8), cap = floor(S / c^alpha)
///   prompt_budget = min(S, cap) - max_new_tokens,  top_tokens = min(round(T / 2), cap)
///   c2 = max(1, cap / T), page_len = min(floor(c2), ceil(sqrt(c2)))
///   num_channels = clamp(round(head_dim page_len / c2), 1, head_dim)
///
/// A sequence of at most T tokens is not split: everything stays.
[[nodiscard]] inline RocketSplit rocket_split(std::size_t seq_len, std::size_t token_budget,
                                              std::size_t max_new_tokens,
                                              std::size_t head_dim) noexcept {
  if (seq_len <= token_budget || token_budget == 0) {
    const std::size_t cap = std::min(seq_len, token_budget);
    return {
        .prompt_budget = cap - std::min(cap, max_new_tokens),
        .top_tokens = std::min(
            static_cast<std::size_t>(round_half_even(static_cast<double>(token_budget) / 2)), cap),
        .page_len = 1,
        .num_channels = head_dim};
  }
  const auto length = static_cast<double>(seq_len);
  const auto budget = static_cast<double>(token_budget);
  const double ratio = length / budget;
  const double alpha = std::min(0.2 + 0.06 * std::log2(ratio), 0.8);
  const double cap = std::floor(length / std::pow(ratio, alpha));
  const double ratio2 = std::max(1.0, cap / budget);
  const double page = std::min(std::floor(ratio2), std::ceil(std::sqrt(ratio2)));
  const auto dim = static_cast<double>(head_dim);
  const auto stay = static_cast<std::size_t>(cap);
  return {.prompt_budget = stay - std::min(stay, max_new_tokens),
          .top_tokens = static_cast<std::size_t>(std::min(round_half_even(budget / 2), cap)),
          .page_len = static_cast<std::size_t>(page),
          .num_channels =
              static_cast<std::size_t>(std::clamp(round_half_even(dim * page / ratio2), 1.0, dim))};
}

/// The budget that stage 1 has under the split rule, for every lane the same; never less than the
/// window.
class RocketBudget {
 public:
  /// @param split  false: the token budget is the prompt's as it is
  RocketBudget(const CacheShape& shape, const Budget& token_budget, std::size_t window,
               std::size_t max_new_tokens, bool split)
      : shape_(shape),
        token_budget_(token_budget),
        window_(window),
        max_new_tokens_(max_new_tokens),
        split_(split) {}

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (!split_)
      return {.budget = token_budget_};
    const std::size_t len = detail::tokens_so_far(sequence, true);
    const std::size_t tokens = token_budget_.tokens_of(len, shape_.num_lanes(MaskScope::kHead));
    const RocketSplit split = rocket_split(detail::saturating_add(len, max_new_tokens_), tokens,
                                           max_new_tokens_, shape_.head_dim);
    return {.budget = std::max(split.prompt_budget, window_)};
  }

 private:
  CacheShape shape_;
  Budget token_budget_;
  std::size_t window_;
  std::size_t max_new_tokens_;
  bool split_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_ROCKET_SPLIT_HPP_
