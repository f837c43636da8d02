#ifndef KVEVICT_POLICIES_KVCOMPOSE_HPP_
#define KVEVICT_POLICIES_KVCOMPOSE_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/given_scores.hpp"
#include "kvevict/scoring/head_means.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/composite_ranks.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct KVComposeOptions {
  Budget budget = Budget::keep_ratio(0.5);     ///< per KV head on average
  bool add_mean_across_heads = true;           ///< to each score, the mean of the layer's KV heads
  RankReduce head_reduce = RankReduce::kMean;  ///< of the r-th best scores of a layer's heads
  std::size_t min_keep = 1;                    ///< tokens that each KV head keeps at least
  bool official_rounding = false;  ///< as kvpress: a layer that would be empty keeps a token per
                                   ///< head on top of the budget
};

struct KVComposeUnstructuredOptions {
  Budget budget = Budget::keep_ratio(0.5);  ///< per KV head on average
  bool add_mean_across_heads = true;        ///< to each score, the mean of the layer's KV heads
  std::size_t min_keep = 1;                 ///< tokens that each KV head keeps at least
};

/// What both forms of KVCompose have in common.
template <class O>
struct ComposesPrompts : CutsPrompts {
  using Options = O;

  static Protection protection(const Options& /*options*/) noexcept {
    return {.after_prompt = true};
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return GivenScores(shape) | when(options.add_mean_across_heads, AddHeadMean{});
  }
  static Allocation allocation(const Options& options) noexcept {
    return {
        .budget = options.budget, .competition = Competition::kModel, .min_keep = options.min_keep};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("add_mean_across_heads", options.add_mean_across_heads);
    visit("min_keep", options.min_keep);
  }
};

/// Layers share the budget and their heads have equal parts, so that each layer's cache is a
/// rectangle although heads keep different tokens (KVCompose, arXiv 2509.05165): scores as of
/// KVzip, from rows that read the text a second time, plus the mean over the layer's KV heads; how
/// many each layer keeps is the work of CompositeRanks. Once, at the end of each prompt; what is
/// decoded stays.
///
/// Scores come through observe_scores between end_prefill and select: ReplayScores with rows = max
/// (or mean), heads = mean and, if values are to count, value = norm. kvpress gives no reason why
/// the first layer takes the best of all curves beyond that it is to be the largest.
struct KVComposeRecipe : ComposesPrompts<KVComposeOptions> {
  static constexpr std::string_view kName = "KVCompose";

  static Allocation allocation(const Options& options) noexcept {
    Allocation allocation = ComposesPrompts::allocation(options);
    if (options.official_rounding)  // a budget below the minimum is exceeded then
      allocation.min_keep = 0;
    return allocation;
  }
  static auto selector(const Options& options) noexcept {
    return CompositeRanks(options.head_reduce, options.min_keep, options.official_rounding);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    ComposesPrompts::visit_options(options, visit);
    visit("head_reduce", options.head_reduce);
    visit("official_rounding", options.official_rounding);
  }
};

/// The same scores without the rectangle: the best of all layers and heads stay (KVCompose'
/// unstructured variant).
struct KVComposeUnstructuredRecipe : ComposesPrompts<KVComposeUnstructuredOptions> {
  static constexpr std::string_view kName = "KVComposeUnstructured";
};

// policy: KVCompose
//   | `s_i + mean_H s_i`, s given; heads of a layer keep as many, by the mean of their r-th best
//   | scores of a second pass over the prompt (`ReplayScores`) | - | head | at prompt ends
//   | 4 B per KV head; scratch 4 B per KV head and 4 B per layer, of all layers | none | 2509.05165
using KVCompose = Policy<Composed<KVComposeRecipe>>;
// policy: KVComposeUnstructured | `s_i + mean_H s_i`, s given
//   | scores of a second pass over the prompt (`ReplayScores`) | - | head | at prompt ends
//   | 4 B per KV head | none | 2509.05165
using KVComposeUnstructured = Policy<Composed<KVComposeUnstructuredRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_KVCOMPOSE_HPP_
