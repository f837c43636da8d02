#ifndef KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_
#define KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/temporal/trend_and_attention.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVAttentionOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t num_sink_tokens = 4;            ///< first tokens kept, should the prompt be shorter
  std::vector<std::size_t> layers = {};       ///< of band A, zero-based; empty: block 10, by depth
  double hidden_weight = 1.0;                 ///< factor of the hidden-state term
  std::size_t window = 64;                    ///< differences under the z-score (w)
  std::size_t max_rollback = 16;              ///< tokens that truncate takes back without loss
};

/// Attn x HS (EpiKV, arXiv 2606.26472): in spite of its name the sum
///
///   score(t) = minmax(attention that t received so far) + hidden_weight minmax(z_10(t)),
///
/// attention summed over the queries of decoded tokens, mean over layers and query heads; z frozen
/// at birth, of band A alone; both scaled to [0, 1] over the decoded tokens that are in the cache
/// now, recent ones included. A range of zero gives 0.
struct EpiKVAttentionRecipe : detail::EpiKVRules<EpiKVAttentionRecipe> {
  using Options = EpiKVAttentionOptions;
  static constexpr std::string_view kName = "EpiKVAttention";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(TrendAndAttention(
        shape,
        detail::epikv_trend(kName, options, shape,
                            {{detail::epikv_layers(kName, "layers", options.layers, kEpiKVLayerA,
                                                   kEpiKVLayerA, shape.num_layers)}}),
        static_cast<float>(detail::epikv_weight(kName, "hidden_weight", options.hidden_weight))));
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("layers", options.layers);
    visit("hidden_weight", options.hidden_weight);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }
};

// policy: EpiKVAttention | `minmax(sum_decoded mean_l mean_H a[H,t,i]) + minmax(z_64(g_10))`
//   | newest row, hidden states | - | model | decoded tokens
//   | 4 B + 4 B per KV head; fixed as `EpiKV` | a pass over the row | 2606.26472
using EpiKVAttention = Policy<Composed<EpiKVAttentionRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_
