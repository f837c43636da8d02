#ifndef KVEVICT_ALLOCATION_LANE_TABLE_HPP_
#define KVEVICT_ALLOCATION_LANE_TABLE_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

/// Tokens that a budget is for: all so far, or those of prompts, evicted ones included, padding
/// not.
[[nodiscard]] inline std::size_t tokens_so_far(const Sequence& sequence,
                                               bool prompts_only) noexcept {
  const std::size_t count =
      prompts_only ? std::min(sequence.length(), sequence.prompt_end()) : sequence.length();
  return count - std::min(count, sequence.first_prompt_padding());
}

/// Refuses a budget that is less than the windows that stay (rule R7).
inline void check_covers_window(std::string_view where, const Budget& budget,
                                const CacheShape& shape, std::size_t window) {
  const std::size_t lanes = shape.num_lanes(MaskScope::kHead);
  if (budget.is_share() || budget.tokens_of(0, lanes) >= window)
    return;
  throw_invalid_field(where, "budget", budget.count(),
                      std::string("must be at least ")
                          .append(std::to_string(budget.is_total() ? window * lanes : window))
                          .append(": ")
                          .append(kRoomForWindows));
}

}  // namespace detail

/// Budgets of all lanes that have a window each and share what is left of the whole budget as some
/// rule says; owns their memory. Where the budget covers all tokens, or no more than the windows,
/// all lanes are equal.
class LaneTable {
 public:
  /// @param budget  tokens per KV head on average, the window included
  /// @param window  newest tokens that every lane keeps, beside its share
  LaneTable(const CacheShape& shape, const Budget& budget, std::size_t window)
      : shape_(shape),
        budget_(budget),
        window_(window),
        ideal_(shape.num_lanes(MaskScope::kHead)),
        budgets_(ideal_.size()) {}

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Budget& budget() const noexcept { return budget_; }
  [[nodiscard]] std::size_t window() const noexcept { return window_; }

  /// What lies beside the windows.
  struct Rest {
    std::size_t entries = 0;  ///< of all lanes together
    double per_lane = 0;      ///< of one lane on average
    std::size_t cap = 0;      ///< tokens that one lane has beside its window
    std::size_t len = 0;      ///< the window's included
  };

  /// Fills the table for lanes of `len` tokens. `fill(rest, ideal)` writes to `ideal` [layers *
  /// num_kv_heads] what each lane should get beside its window, up to a common factor; with
  /// `as_written` the exact number, which may be negative and is only cut at 0 and at the cap.
  template <class Fill>
  Allocation fill(std::size_t len, bool as_written, Fill&& fill) const noexcept {
    const std::size_t lanes = budgets_.size();
    const std::size_t per_lane = budget_.tokens_of(len, lanes);
    std::size_t entries = budget_.is_total() ? budget_.count() : per_lane * lanes;
    if (per_lane >= len || entries <= window_ * lanes) {
      std::fill(budgets_.begin(), budgets_.end(), per_lane);
      return filled();
    }
    entries -= window_ * lanes;
    const Rest rest{entries, static_cast<double>(entries) / static_cast<double>(lanes),
                    len - window_, len};
    fill(rest, std::span<double>(ideal_));
    if (as_written) {
      for (std::size_t l = 0; l < lanes; ++l) {
        const double tokens = static_cast<double>(window_) + ideal_[l];
        budgets_[l] = static_cast<std::size_t>(std::clamp(tokens, 0.0, static_cast<double>(len)));
      }
      return filled();
    }
    apportion(
        ideal_, entries, [&](std::size_t) { return rest.cap; }, budgets_);
    for (std::size_t& tokens : budgets_)
      tokens += window_;
    return filled();
  }

  /// The table as the newest fill left it.
  [[nodiscard]] Allocation filled() const noexcept {
    return {.budget = budget_, .lane_budgets = budgets_};
  }

 private:
  CacheShape shape_;
  Budget budget_;
  std::size_t window_;
  // Filled by each call that asks for an allocation, from nothing but its arguments.
  mutable std::vector<double> ideal_;
  mutable std::vector<std::size_t> budgets_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_LANE_TABLE_HPP_
