#ifndef KVEVICT_POLICIES_CAKE_HPP_
#define KVEVICT_POLICIES_CAKE_HPP_

#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/allocation/layer_preference.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/scoring/window_moments.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct CAKEOptions {
  Budget budget = 1024;  ///< tokens per KV head on average, window included (cache size)
  std::size_t observation_window = 32;  ///< last tokens, whose queries vote and that stay
  double gamma = 200;                   ///< weight of the variance over the window beside its mean
  double tau1 = 1;  ///< > 0: temperature of a layer's entropy; the authors tune it per model
  double tau2 = 1;  ///< > 0: the same of its variance
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool official_rounding = false;                 ///< budgets as the authors': the sum may leak
  bool cascading = false;            ///< budgets as layers cut one after another leave them
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
};

/// Layers share the budget by what their attention looks like, and tokens whose attention shifts
/// stay (CAKE, arXiv 2503.12491, sections 4.1 to 4.3): over the last rows t of a prompt, per KV
/// head and per layer
///
///   score(i)  = mean_h pool( mean_t a[h, t, i] + gamma var_t a[h, t, i] )
///   P         = (- sum a ln a)^(1 / tau1) (sum_h,i var_t a[h, t, i])^(1 / tau2)
///   budget(l) = window + (C - window) L P_l / sum P
///
/// with i before the window, whose columns are cut off without renormalising. At the end of each
/// prompt layers are cut to their budgets and stay there: while decoding a step that exceeds one
/// lets go of the tokens with the least attention from the newest query, pooled alike, and never of
/// the newest `window` ones.
///
/// The authors cut layers one after another during the prompt pass, which saves its peak of memory.
/// An engine that executes masks between passes has the same cache afterwards: what an early layer
/// kept for a while is gone again once the later ones have their share. Budgets differ by
/// roundings; `cascading` has those too. Open and chosen here: a prompt is cut where it exceeds C,
/// in the authors' code where it exceeds C + window; exact budgets with largest remainder and
/// water-filling at n - window; the variance of a single row is 0; where all preferences are 0 all
/// layers are equal.
struct CAKERecipe {
  using Options = CAKEOptions;
  static constexpr std::string_view kName = "CAKE";

  static void check(const Options& options, const CacheShape& shape) {
    options.pooling.check(kName);
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
    detail::require(options.tau1 > 0.0, kName, "tau1", options.tau1, "must be > 0");
    detail::require(options.tau2 > 0.0, kName, "tau2", options.tau2, "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WindowMoments(kName, shape, options.observation_window, options.gamma,
                         !options.only_at_prefill_end) |
           Pool{options.pooling} | GroupReduction{options.group_reduce};
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return LayerPreference(shape, options.budget, options.observation_window, options.tau1,
                           options.tau2, options.official_rounding, options.cascading);
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kHead; }
  static Trigger trigger(const Options& options) noexcept {
    return options.only_at_prefill_end ? Trigger::kPrefillEnd : Trigger::kEveryStep;
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.observation_window,
            .after_prompt = options.only_at_prefill_end};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("gamma", options.gamma);
    visit("tau1", options.tau1);
    visit("tau2", options.tau2);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("group_reduce", options.group_reduce);
    visit("official_rounding", options.official_rounding);
    visit("cascading", options.cascading);
    visit("only_at_prefill_end", options.only_at_prefill_end);
  }
};

// policy: CAKE
//   | `mean_h pool_5(mean_w a[h,t,i] + 200 var_w a[h,t,i])`, while decoding `mean_h
//     pool_5(a[h,new,i])`; layer budgets by entropy and variance of a
//   | last rows of the prompt, newest row | - | head | at any time | 8 B per query head
//   | two passes over the row, one over the scores | 2503.12491
using CAKE = Policy<Composed<CAKERecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CAKE_HPP_
