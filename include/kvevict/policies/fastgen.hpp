#ifndef KVEVICT_POLICIES_FASTGEN_HPP_
#define KVEVICT_POLICIES_FASTGEN_HPP_

#include "kvevict/allocation/profiled_budgets.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/head_profile.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/profiled_heads.hpp"

#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// A portfolio of policies (FastGen, arXiv 2310.01801, section 3 and algorithm 1): the prompt's
/// attention says for each KV head which is the cheapest of
///
///   special tokens < + punctuation < + heavy hitters < + recent tokens < the full cache
///
/// that recovers a share `recovery` of the attention (HeadProfile), and the head follows it while
/// decoding. Lengths differ between heads, and how much goes is an outcome: there is no budget, a
/// lower `recovery` removes more. Which tokens are special or punctuation the engine says with
/// observe_labels, for the tokens of each step; without labels the first two never suffice.
///
/// A head with heavy or recent tokens holds as many tokens as it has labelled ones, plus `heavy`,
/// plus `recent`: labels first, then the newest, the rest by attention sums. A new ordinary token
/// of a head that keeps labels alone goes in the step that brought it. Heavy tokens favour old ones
/// as in H2O, see lifetime_mean there. Inside prompts nothing goes; a later prompt is cut by the
/// profile of the first.
///
/// Chosen here: a mean over the group for GQA (rule R10). Recovered attention is the mass on kept
/// tokens, mean over the prompt's rows; the reproduction in cold-compress counts entries that do
/// not change by more than 1e-4 instead, and chooses heavy tokens among labelled ones too. A share
/// of recent tokens is of the prompt with its padding while the prompt is profiled.
struct FastGenRecipe : CutsEveryStep {
  using Options = HeadProfileOptions;
  static constexpr std::string_view kName = "FastGen";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(HeadProfile(kName, shape, options));
  }
  static ProfiledBudgets allocator(const Options& /*options*/, const CacheShape& shape) {
    return ProfiledBudgets(shape);
  }
  static ProfiledHeads selector(const Options& /*options*/) noexcept { return {}; }
  static Protection protection(const Options& /*options*/) noexcept { return {}; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("recovery", options.recovery);
    visit("heavy", options.heavy);
    visit("recent", options.recent);
    visit("lifetime_mean", options.lifetime_mean);
  }
};

using FastGenOptions = HeadProfileOptions;
// policy: FastGen
//   | `sum_all mean_h a[h,t,i]`, behind labelled and newest tokens; which of the three a head keeps
//     is up to its profile
//   | every row, labels of tokens | - | head | at any time
//   | 4 B per KV head (8 B in the first prompt); 16 B for each token seen that has a label
//   | as `H2O` | 2310.01801
using FastGen = Policy<Composed<FastGenRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_FASTGEN_HPP_
