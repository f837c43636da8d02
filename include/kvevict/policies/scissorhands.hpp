#ifndef KVEVICT_POLICIES_SCISSORHANDS_HPP_
#define KVEVICT_POLICIES_SCISSORHANDS_HPP_

#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/below_uniform.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct ScissorHandsOptions {
  std::size_t budget = 1024;       ///< tokens per KV head (B)
  std::size_t drop = 0;            ///< tokens that go at once (m); 0: half the least budget
  std::size_t history = 400;       ///< newest rows that are asked (w)
  std::size_t recent_window = 10;  ///< newest tokens that always stay (r)
  /// [layers] tokens per KV head of each layer in the place of `budget`; empty: the same for all
  std::vector<std::size_t> layer_budgets = {};
};

/// Persistence of importance (ScissorHands, arXiv 2305.17118, section 4, algorithm 2): tokens that
/// attention passed over keep being passed over. Per KV head, when more than `budget` tokens are
/// cached, the `drop` go of which most of the newest rows thought less than of an even share,
///
///   score(i) = -#{ t in the history : mean_h a[h, t, i] < 1 / n_t },
///
/// n_t being the tokens that row t saw. The history then starts over. A cache far above the budget,
/// after a prompt, is cut to the same budget + 1 - drop tokens.
///
/// Chosen here: the mean over the group for GQA (rule R10); every layer has the same budget unless
/// layer_budgets says otherwise. The paper gives later layers more, whose tokens persist less, but
/// no rule of how much; `drop` is one number for all of them, so that layers go on being cut in the
/// same steps. A lane's history starts over when that lane is cut.
struct ScissorHandsRecipe : CutsEveryStep {
  using Options = ScissorHandsOptions;
  static constexpr std::string_view kName = "ScissorHands";

  static void check(const Options& options, const CacheShape& shape) {
    const std::size_t size = options.layer_budgets.size();
    detail::check_table_size(kName, "layer_budgets", size, {{}, detail::for_each_layer(shape)});
    const std::size_t least = least_budget(options);
    const std::string_view field = size == 0 ? "budget" : "layer_budgets";
    detail::require(least > 0, kName, field, least, "must be > 0");
    detail::require(options.drop <= least, kName, "drop", options.drop,
                    "must not exceed the budget");
    // Asked here, where what the caller wrote is known; by default half of the budget goes.
    if (least + 1 - drop(options) < options.recent_window) {
      const std::size_t fits =
          options.recent_window - 1 + (options.drop > 0 ? options.drop : options.recent_window - 1);
      detail::throw_invalid_field(kName, field, least,
                                  std::string("must be at least ")
                                      .append(std::to_string(fits))
                                      .append(": a cut leaves the recent window"));
    }
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(BelowUniformCount(kName, shape, options.history));
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.recent_window};
  }
  static WholePrompts allocator(const Options& options, const CacheShape& shape) {
    WholePrompts allocator{{.budget = options.budget, .headroom = drop(options) - 1}};
    for (const std::size_t tokens : options.layer_budgets)
      allocator.lane_budgets.insert(allocator.lane_budgets.end(), shape.num_kv_heads, tokens);
    return allocator;
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("drop", options.drop);
    visit("history", options.history);
    visit("recent_window", options.recent_window);
    visit("layer_budgets", options.layer_budgets);
  }

 private:
  [[nodiscard]] static std::size_t least_budget(const Options& options) noexcept {
    const auto& table = options.layer_budgets;
    return table.empty() ? options.budget : *std::min_element(table.begin(), table.end());
  }
  [[nodiscard]] static std::size_t drop(const Options& options) noexcept {
    return options.drop > 0 ? options.drop : (least_budget(options) + 1) / 2;
  }
};

// policy: ScissorHands
//   | `-#{t: mean_h a[h,t,i] < 1 / n_t}` over the newest 400 rows, n_t the tokens that t saw
//   | newest rows | - | head | at any time | 56 B per KV head (1 bit x history 400, whole words)
//   | a pass over the row; a cut counts bits | 2305.17118
using ScissorHands = Policy<Composed<ScissorHandsRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_SCISSORHANDS_HPP_
