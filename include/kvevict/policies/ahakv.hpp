#ifndef KVEVICT_POLICIES_AHAKV_HPP_
#define KVEVICT_POLICIES_AHAKV_HPP_

#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/recent_attention.hpp"
#include "kvevict/scoring/value_prior.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct AhaKVOptions {
  std::size_t budget = 1000;       ///< tokens per KV head, the recent ones included (k)
  std::size_t recent_window = 32;  ///< newest tokens, which stay and whose queries vote (r)
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< of the value prior
};

/// Attention freed from its bias to old tokens (AhaKV, arXiv 2506.03762): per KV head
///
///   score(j) = nu(j) sum over the newest r rows of mean_h a'[h, t, j],
///
/// a' being attention with a gain of sqrt(2 ln(i / k)) on its logits (StepGainAttention) and nu the
/// value prior, |v_j|^2 pooled along the sequence and divided by its maximum. At the end of a
/// prompt and at every step the recent tokens and the best of the others stay.
///
/// Chosen here: i counts the tokens up to the row's own in the sequence, not in the cache, where it
/// would be k + 1 for ever; padding of a prompt whose rows are handed over (observe_attention) is
/// known at its end alone, and counts in them. A group's query heads are averaged. The paper's
/// kernel is not known to us; 5 is that of SnapKV.
struct AhaKVRecipe : CutsEveryStep {
  using Options = AhaKVOptions;
  static constexpr std::string_view kName = "AhaKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    options.pooling.check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return StepGainAttention(kName, shape, options.recent_window, options.budget) |
           ValuePrior{options.pooling};
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.recent_window};
  }
  static WholePrompts allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    return {{.budget = options.budget}};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
  }
};

// policy: AhaKV
//   | `nu_i sum_w mean_h a'[h,t,i]`, w the newest rows; `a' ~ a^sqrt(2 ln(t / budget))`, `nu =
//     pool_5(norm(v)^2) / max`
//   | newest rows, V | - | head | at any time | 128 B per KV head (4 B x recent_window 32)
//   | window passes over the scores, one over V | 2506.03762
using AhaKV = Policy<Composed<AhaKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_AHAKV_HPP_
