#ifndef KVEVICT_ALLOCATION_BUDGET_TABLES_HPP_
#define KVEVICT_ALLOCATION_BUDGET_TABLES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Budgets from tables that were found offline.

namespace detail {

/// Throws InvalidArgument, naming `where` and `field`, unless every number is in [least, most].
inline void check_numbers(std::string_view where, std::string_view field,
                          std::span<const double> numbers, double least, double most,
                          std::string_view requirement) {
  for (const double x : numbers)
    require(x >= least && x <= most, where, field, x, requirement);
}

}  // namespace detail

/// Budgets of layers in proportion to a table (EvolKV): a table whose mean is the budget is used
/// as it is, any other is scaled to it. What a layer gets beside its window is
///
///   max(table_l B / sum table - w, 0), then scaled so that all of it adds up to L (C - w).
///
/// As an allocator, like HeadTable and PyramidBudgets, of the length of the newest prompt: for
/// recipes that cut prompts once (CutsPrompts), others are refused. Those ask budgets(len) for the
/// length that they mean.
class LayerTable {
 public:
  static constexpr bool kOfPrompts = true;

  /// @param where  what errors name, and `field` in it
  /// @param table  tokens per KV head of each layer, the window included; empty: all equal
  LayerTable(std::string_view where, std::string_view field, const CacheShape& shape,
             const Budget& budget, std::size_t window, std::vector<std::size_t> table)
      : table_(shape, budget, window), layers_(std::move(table)) {
    detail::check_table_size(where, field, layers_.size(), {{}, detail::for_each_layer(shape)});
    for (const std::size_t tokens : layers_)
      sum_ += static_cast<double>(tokens);
    detail::require(layers_.empty() || sum_ > 0.0, where, std::string("sum of ").append(field), 0,
                    "must be > 0");
  }

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    return budgets(detail::tokens_so_far(sequence, true));
  }
  /// For lanes of `len` tokens.
  [[nodiscard]] Allocation budgets(std::size_t len) const noexcept {
    return table_.fill(len, false, [&](const LaneTable::Rest& rest, std::span<double> ideal) {
      const CacheShape& shape = table_.shape();
      const auto window = static_cast<double>(table_.window());
      const double whole = (rest.per_lane + window) * static_cast<double>(shape.num_layers);
      for (std::size_t lane = 0; lane < ideal.size(); ++lane) {
        ideal[lane] =
            layers_.empty()
                ? 1.0
                : static_cast<double>(layers_[lane / shape.num_kv_heads]) * whole / sum_ - window;
      }
    });
  }

 private:
  LaneTable table_;
  std::vector<std::size_t> layers_;
  double sum_ = 0.0;
};

/// Budgets of heads from their scores (HeadKV). With b the tokens per KV head beside the window,
/// a part of all budgets is shared out by score and the rest equally:
///
///   share = floor(b / beta), pool = share L H, cap_h = score_h pool + b - share.
class HeadTable {
 public:
  static constexpr bool kOfPrompts = true;

  /// @param where     what errors name, and `field` in it
  /// @param scores    [layers * KV heads], or [layers * query heads], whose groups' means count;
  ///                  empty: all equal
  /// @param power     that scores are raised to; they are then divided by their sum
  /// @param official  each number rounded by itself (half to even), so that the sum may leak
  HeadTable(std::string_view where, std::string_view field, const CacheShape& shape,
            const Budget& budget, std::size_t window, std::span<const double> scores, double power,
            double beta, bool official)
      : table_(shape, budget, window), beta_(beta), official_(official) {
    const std::size_t heads = shape.num_layers * shape.num_kv_heads;
    detail::check_table_size(
        where, field, scores.size(),
        {{}, detail::for_each_kv_head(shape), detail::for_each_query_head(shape)});
    detail::check_numbers(where, field, scores, 0.0, std::numeric_limits<double>::max(),
                          "must be >= 0 and finite");
    detail::require(beta >= 1.0, where, "beta", beta, "must be >= 1");
    detail::require(power >= 0.0 && std::isfinite(power), where, "power", power,
                    "must be >= 0 and finite");
    scores_.assign(heads, scores.empty() ? 1.0 : 0.0);
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores_[i * heads / scores.size()] += scores[i];
    double largest = 0.0;
    for (const double score : scores_)
      largest = std::max(largest, score);
    detail::require(largest > 0.0, where, std::string("sum of ").append(field), 0, "must be > 0");
    double sum = 0.0;
    for (double& score : scores_)
      sum += score = std::pow(score / largest, power);
    for (double& score : scores_)
      score /= sum;
  }

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    return budgets(detail::tokens_so_far(sequence, true));
  }
  /// For lanes of `len` tokens.
  [[nodiscard]] Allocation budgets(std::size_t len) const noexcept {
    return table_.fill(len, official_, [&](const LaneTable::Rest& rest, std::span<double> ideal) {
      const double b = official_ ? std::floor(rest.per_lane) : rest.per_lane;
      const double share = std::floor(b / beta_);
      const double pool = share * static_cast<double>(ideal.size());
      for (std::size_t lane = 0; lane < ideal.size(); ++lane) {
        const double tokens = scores_[lane] * pool + b - share;
        ideal[lane] = official_ ? round_half_even(tokens) : tokens;
      }
    });
  }

 private:
  LaneTable table_;
  std::vector<double> scores_;
  double beta_;
  bool official_;
};

/// The same budget for all layers but some, which keep everything. A share is one of each lane's
/// own tokens; a total is shared out among the lanes that are cut, its odd entries to the first
/// ones.
class SkippedLayers {
 public:
  /// @param layers        that keep everything; empty: none
  /// @param prompts_only  decoded tokens stay and have no part in a share
  SkippedLayers(std::string_view where, const CacheShape& shape, const Budget& budget,
                std::span<const std::size_t> layers, bool prompts_only)
      : budget_(budget),
        prompts_only_(prompts_only),
        budgets_(layers.empty() ? 0 : shape.num_lanes(MaskScope::kHead)) {
    for (const std::size_t layer : layers) {
      detail::require(layer < shape.num_layers, where, "skip_layers", layer,
                      "must be < num_layers");
      std::fill_n(budgets_.begin() + static_cast<std::ptrdiff_t>(layer * shape.num_kv_heads),
                  shape.num_kv_heads, kAll);
    }
    num_cut_ = budgets_.size() -
               static_cast<std::size_t>(std::count(budgets_.begin(), budgets_.end(), kAll));
    detail::require(layers.empty() || num_cut_ > 0, where, "layers beside skip_layers", 0,
                    "must be > 0");
  }

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (budgets_.empty())
      return {.budget = budget_};
    // A share of a prompt that is still coming is not known.
    if (budget_.is_share() && sequence.in_prompt())
      return {.budget = kAll};
    const std::size_t tokens =
        budget_.tokens_of(detail::tokens_so_far(sequence, prompts_only_), num_cut_);
    std::size_t odd = budget_.is_total() ? budget_.count() - tokens * num_cut_ : 0;
    for (std::size_t& lane : budgets_) {
      if (lane == kAll)
        continue;
      lane = tokens + (odd > 0 ? 1 : 0);
      odd -= odd > 0 ? 1 : 0;
    }
    return {.budget = budget_, .lane_budgets = budgets_};
  }

 private:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  Budget budget_;
  bool prompts_only_;
  std::size_t num_cut_ = 0;
  mutable std::vector<std::size_t> budgets_;  // by lane; filled by each allocation
};

/// How shares of lanes become whole numbers.
enum class ShareRounding : std::uint8_t {
  kFloors,   ///< each rounded down, but not to 0: rule R6 for every lane by itself
  kExact,    ///< largest remainder, at least 1 each, which the largest pay for: the sum is the
             ///< rounded sum of the shares, or 1 each
  kClamped,  ///< largest remainder, then clamped to [1, n], so that the sum may leak (kvpress)
};

/// A share of its tokens for every lane, whatever the others get: of a layer (kvpress' per-layer
/// compression) or of a head (LU-KV).
class ShareTable {
 public:
  /// @param ratios        of tokens that go, in [0, 1]: [layers] or [layers * KV heads]; empty:
  ///                      none goes
  /// @param prompts_only  decoded tokens stay and have no part in it
  ShareTable(std::string_view where, std::string_view field, const CacheShape& shape,
             std::span<const double> ratios, ShareRounding rounding, bool prompts_only)
      : rounding_(rounding),
        prompts_only_(prompts_only),
        keep_(shape.num_lanes(MaskScope::kHead), Budget::keep_ratio(1.0)),
        ideal_(keep_.size()),
        budgets_(keep_.size()) {
    detail::check_numbers(where, field, ratios, 0.0, 1.0, "must be in [0, 1]");
    for (std::size_t lane = 0; lane < keep_.size() && !ratios.empty(); ++lane)
      keep_[lane] = Budget::compression_ratio(ratios[lane * ratios.size() / keep_.size()]);
  }

  /// A share of a prompt that is still coming is not known, so nothing goes before its end.
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    return sequence.in_prompt() ? Allocation{.budget = std::numeric_limits<std::size_t>::max()}
                                : budgets(detail::tokens_so_far(sequence, prompts_only_));
  }
  /// For lanes of `len` tokens.
  [[nodiscard]] Allocation budgets(std::size_t len) const noexcept {
    double sum = 0.0;
    for (std::size_t lane = 0; lane < keep_.size(); ++lane) {
      budgets_[lane] = keep_[lane].tokens_of(len);
      sum += ideal_[lane] = keep_[lane].unrounded_tokens_of(len);
    }
    if (rounding_ != ShareRounding::kFloors && len > 0) {
      auto entries = static_cast<std::size_t>(round_half_even(sum));
      if (rounding_ == ShareRounding::kExact)
        entries = std::max(entries, budgets_.size());
      apportion(
          ideal_, entries, [&](std::size_t) { return len; }, budgets_);
      if (rounding_ == ShareRounding::kExact) {
        lift(budgets_, [](std::size_t) { return std::size_t{1}; });
      } else {
        for (std::size_t& tokens : budgets_)
          tokens = std::max<std::size_t>(tokens, 1);
      }
    }
    return {.budget = Budget::keep_ratio(1.0), .lane_budgets = budgets_};
  }

 private:
  ShareRounding rounding_;
  bool prompts_only_;
  std::vector<Budget> keep_;
  mutable std::vector<double> ideal_;
  mutable std::vector<std::size_t> budgets_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_BUDGET_TABLES_HPP_
