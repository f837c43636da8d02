#ifndef KVEVICT_POLICIES_TOVA_HPP_
#define KVEVICT_POLICIES_TOVA_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct TOVAOptions {
  Budget budget = 512;          ///< tokens per KV head
  bool protect_newest = false;  ///< the newest token always stays (kvpress); the authors let it go
  MaskScope scope = MaskScope::kLayer;  ///< who shares one set of tokens
};

/// The attention of the newest token (TOVA, arXiv 2401.06104, section 4): per layer
///
///   score(i) = mean over all query heads h of a[h, newest, i].
///
/// After the prompt, of which the last row counts, and after every step the `budget` best stay, one
/// set for all heads of a layer; with another scope, the mean is over its heads. Nothing is
/// protected, neither sinks nor the newest token.
struct TOVARecipe : CutsEveryStep {
  using Options = TOVAOptions;
  static constexpr std::string_view kName = "TOVA";

  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return LastRowAttention(shape, HeadReduce::kGroupMean) | HeadReduction{GroupReduce::kMean};
  }
  static MaskScope scope(const Options& options) noexcept { return options.scope; }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.protect_newest ? std::size_t{1} : 0};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("protect_newest", options.protect_newest);
    visit("scope", options.scope);
  }
};

// policy: TOVA | `mean_H a[H,new,i]` | newest row | - | layer | at any time | 4 B per KV head
//   | a pass over the row | 2401.06104
using TOVA = Policy<Composed<TOVARecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_TOVA_HPP_
