#ifndef KVEVICT_POLICIES_VALUE_WEIGHTED_HPP_
#define KVEVICT_POLICIES_VALUE_WEIGHTED_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// Policies that score a token by its attention times the size of its value.

struct LongFlowOptions {
  Budget budget = 1024;           ///< tokens per layer
  std::size_t recent_window = 0;  ///< newest tokens that always stay
};

/// The newest token's contributions to the output (LongFlow, arXiv 2603.11504): per layer
///
///   score(i) = mean over all query heads h of (1/d) sum_c | a[h, newest, i] v[i, c] |.
///
/// At every step the least goes, one for all heads of a layer; nothing is protected, not even the
/// newest token. The authors free one slot per step and write the next token there: here the
/// newest token still competes, as theirs does.
///
/// A prompt above the budget is cut by the same score, that of its last row; one that comes in
/// chunks is cut wherever should_evict is asked, by the last row of the chunk. The authors' code
/// cuts prompts to one token less than the budget with a variant of SnapKV instead. To get theirs
/// let such a policy select when the prompt ends, one set for each layer, and apply its mask to
/// this one too: a cache that fits the budget is left alone until it grows.
struct LongFlowRecipe : CutsEveryStep {
  using Options = LongFlowOptions;
  static constexpr std::string_view kName = "LongFlow";

  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return LastRowAttention(shape, HeadReduce::kGroupMean) | TimesValues{ValueFactor::kL1Norm} |
           HeadReduction{GroupReduce::kMean} | Scale{1.0F / static_cast<float>(shape.value_size())};
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.recent_window};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
  }
};

/// Those of H2O. The paper keeps the first tokens whatever their score; how many is our choice (the
/// authors' code has no default, its README runs 20).
struct VATPOptions {
  Budget heavy = Budget::keep_ratio(0.1);   ///< tokens with the best scores; a share is one of the
                                            ///< first prompt, fixed from then on
  Budget recent = Budget::keep_ratio(0.1);  ///< the newest tokens, the current one included
  MaskScope scope = MaskScope::kHead;       ///< who shares one set of tokens
  bool lifetime_mean = false;  ///< divide a sum by the number of queries that could see the token
  std::size_t num_sink_tokens = 4;  ///< first tokens that always stay, of those that are heavy
  bool cut_between_chunks = false;  ///< cut unfinished prompts too, wherever should_evict is asked
  bool l2_norm = false;             ///< |v|_2 for |v|_1
};

/// Heavy hitters whose values count too (VATP, arXiv 2406.12335): H2O with
///
///   score(i) = |v_i|_1 sum over all queries t so far of mean_h a[h, t, i].
///
/// Attention sinks have tiny values, so this score drops them; the paper protects them. The norm is
/// L1 as in the paper and its code; LongFlow's code has a baseline of this name with the L2 norm
/// (l2_norm).
struct VATPRecipe : KeepsHeavyAndRecent<VATPRecipe, VATPOptions> {
  static constexpr std::string_view kName = "VATP";

  static auto pipeline(const VATPOptions& options, const CacheShape& shape) {
    return AccumulatedAttention(shape, options.scope, options.lifetime_mean) |
           TimesValues{options.l2_norm ? ValueFactor::kNorm : ValueFactor::kL1Norm} |
           HeadReduction{GroupReduce::kMean};
  }

  template <class Visit>
  static void visit_options(VATPOptions& options, Visit&& visit) {
    KeepsHeavyAndRecent::visit_options(options, visit);
    visit("l2_norm", options.l2_norm);
  }
};

// policy: LongFlow | `mean_H a[H,new,i] norm1(v_i) / d` | newest row, V | - | layer | at any time
//   | 4 B per KV head | a pass over the row and V | 2603.11504
using LongFlow = Policy<Composed<LongFlowRecipe>>;
// policy: VATP | `norm1(v_i) sum_all mean_h a[h,t,i]` | every row, V | - | head | at any time
//   | 4 B per KV head | as `H2O`, a pass over V | 2406.12335
using VATP = Policy<Composed<VATPRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_VALUE_WEIGHTED_HPP_
