#ifndef KVEVICT_POLICIES_EPIKV_LAG_HPP_
#define KVEVICT_POLICIES_EPIKV_LAG_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/temporal/lag_deviation_scores.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVLagOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t chunk_len = 128;  ///< tokens per chunk; each is scaled by the one before
  bool frozen = false;  ///< keep a token's first score instead of scoring anew at every eviction
};

/// Lag-KV and Lag-KV-key (EpiKV, arXiv 2606.26472): score(t) = u_K(t) + u_V(t), or u_K(t) alone,
/// the deviation over channels of the token's lag-scaled key and value (LagDeviation).
///
/// Paper and code disagree on the life of a score. As published in code (default): everything is
/// scored anew at each eviction over the compacted cache, so chunk borders move with what goes,
/// and the result depends on the order of evictions. As in section 3.3 (`frozen`): a token keeps
/// the score that it has at the first eviction at which it is a candidate. The chunk it is scaled
/// by is then whatever the cache held at that time.
///
/// Recomputed, a step costs O(layers * kv_heads * K * head_dim); frozen, a few chunks. There is no
/// streaming() as in EpiKV: chunks are of tokens in order, and a cache in which the next token
/// takes the evicted one's slot has lost it.
template <bool kWithValues>
struct EpiKVLagRecipe : detail::EpiKVRules<EpiKVLagRecipe<kWithValues>> {
  using Options = EpiKVLagOptions;
  static constexpr std::string_view kName = kWithValues ? "EpiKVLag" : "EpiKVLagKey";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.chunk_len > 0, kName, "chunk_len", options.chunk_len, "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(LagDeviationScores<kWithValues>(shape, options.chunk_len, options.frozen));
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("chunk_len", options.chunk_len);
    visit("frozen", options.frozen);
  }
};

// policy: EpiKVLag
//   | `u_K + u_V`, `u_K = mean_H std_c((k_i - low) / (high - low))`, k the mean over layers, low
//     and high of the chunk before; u_V of v alike
//   | K, V | - | model | decoded tokens | 4 B; scratch 8 chunk_len head_dim B
//   | a pass over K and V (frozen: over the new ones) | 2606.26472
using EpiKVLag = Policy<Composed<EpiKVLagRecipe<true>>>;
// policy: EpiKVLagKey | `u_K`, as in `EpiKVLag` | K | - | model | decoded tokens
//   | 4 B; scratch 8 chunk_len head_dim B | a pass over K (frozen: over the new ones) | 2606.26472
using EpiKVLagKey = Policy<Composed<EpiKVLagRecipe<false>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_LAG_HPP_
