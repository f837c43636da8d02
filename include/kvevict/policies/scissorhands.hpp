#ifndef KVEVICT_POLICIES_SCISSORHANDS_HPP_
#define KVEVICT_POLICIES_SCISSORHANDS_HPP_

#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/below_uniform.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct ScissorHandsOptions {
  std::size_t budget = 1024;       ///< tokens per KV head (B)
  std::size_t drop = 0;            ///< tokens that go at once (m); 0: half the budget
  std::size_t history = 400;       ///< newest rows that are asked (w)
  std::size_t recent_window = 10;  ///< newest tokens that always stay (r)
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
/// Chosen here: the mean over the group for GQA (rule R10); every layer has the same budget, where
/// the paper gives later layers more: Allocation::lane_budgets can say so in a recipe of your own.
struct ScissorHandsRecipe : CutsEveryStep {
  using Options = ScissorHandsOptions;
  static constexpr std::string_view kName = "ScissorHands";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.budget > 0, kName, "budget", options.budget, "must be > 0");
    detail::require(options.drop <= options.budget, kName, "drop", options.drop,
                    "must not exceed the budget");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(BelowUniformCount(kName, shape, options.history));
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.recent_window};
  }
  static WholePrompts allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    const std::size_t drop = options.drop > 0 ? options.drop : (options.budget + 1) / 2;
    return {{.budget = options.budget, .headroom = drop - 1}};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("drop", options.drop);
    visit("history", options.history);
    visit("recent_window", options.recent_window);
  }
};

// policy: ScissorHands
//   | `-#{t: mean_h a[h,t,i] < 1 / n_t}` over the newest 400 rows, n_t the tokens that t saw
//   | newest rows | - | head | at any time | 56 B per KV head (1 bit x history 400, whole words)
//   | a pass over the row; a cut counts bits | 2305.17118
using ScissorHands = Policy<Composed<ScissorHandsRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_SCISSORHANDS_HPP_
