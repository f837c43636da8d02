#ifndef KVEVICT_POLICIES_INERTIAKV_HPP_
#define KVEVICT_POLICIES_INERTIAKV_HPP_

#include "kvevict/allocation/first_prompt.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/temporal/attention_inertia.hpp"
#include "kvevict/temporal/running_scores.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the paper's main results, with every step a refresh. Lazy4 is refresh_interval = 4.
struct InertiaKVOptions {
  /// Tokens kept (B); a share is one of the first prompt, floor((1 - rho) L0), fixed from then on.
  Budget budget = Budget::compression_ratio(0.9);
  double alpha = 0.8;                        ///< weight of the past in the EMA, in [0, 1)
  Aggregator aggregator = Aggregator::kEma;  ///< EMA, cumulative or single-step
  bool per_step = false;             ///< one update a step with the mean over layers (eq. 2 - 4)
                                     ///< instead of one after each layer (what the authors run)
  std::size_t refresh_interval = 1;  ///< steps from one refresh of m to the next (r)
  bool score_free = false;           ///< refresh in the first step after a prompt and never again
  bool entropy_weighted = false;     ///< weigh a layer's row by its normalised entropy
  std::vector<std::size_t> layers = {};  ///< eligible ones, zero-based; empty: all
  std::size_t num_sink_tokens = 0;       ///< static reserve, inside the budget: first tokens
  std::size_t recent_window = 0;         ///< and newest ones, the current one included
};

/// InertiaKV (arXiv 2609.03515, section 3): one running score per token, shared by all layers. With
/// s_l(i) the mean over query heads of the newest token's attention in layer l,
///
///   m = alpha m + (1 - alpha) s_l   for each eligible layer l, first to last.
///
/// Nothing happens inside a prompt; m starts at 0. Refresh steps are t = 1, 1 + r, 1 + 2r, ..; on
/// the others m stays and no attention is wanted. A new token enters at the mean of m. After each
/// decode step the B tokens with the largest m stay, the same for all layers and heads; the first
/// one cuts the cache from L0 + 1 to B, and a new token may go in its own step.
///
/// Left open by the paper: all layers are eligible; a new token enters at the mean on refresh steps
/// and under every aggregator too; the entropy is that of the mean row, natural, over ln L_t; equal
/// scores keep the older token. Tokens that are appended together are steps one after another, as
/// if fed singly without an eviction between. A further prompt keeps B; its tokens enter at the
/// mean, and the count of steps starts over behind it. Padding, which attention does not reach,
/// counts in that mean until the first cut removes it.
///
/// State: one float per cached token; during a step another one per eligible layer, for value norms
/// one per eligible layer and KV head, and the norms themselves.
///
/// method().scores(): [seq_len] m, by slot.
struct InertiaKVRecipe {
  using Options = InertiaKVOptions;
  static constexpr std::string_view kName = "InertiaKV";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(AttentionInertia<false>(kName, shape, inertia(options)));
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kModel; }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kDecodeSteps; }
  static auto allocator(const Options& options, const CacheShape& /*shape*/) {
    return BudgetOfFirstPrompt(options.budget);
  }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .recent_window = options.recent_window};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("alpha", options.alpha);
    visit("aggregator", options.aggregator);
    visit("per_step", options.per_step);
    visit("refresh_interval", options.refresh_interval);
    visit("score_free", options.score_free);
    visit("entropy_weighted", options.entropy_weighted);
    visit("layers", options.layers);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }

 protected:
  static AttentionInertiaOptions inertia(const Options& options) {
    return {.aggregator = options.aggregator,
            .alpha = options.alpha,
            .per_step = options.per_step,
            .entropy_weighted = options.entropy_weighted,
            .layers = options.layers,
            .refresh = {options.refresh_interval, options.score_free}};
  }
};
/// VNorm: each head's attention times |v_i|_2 / mean_j |v_j|_2 of its KV head, before the mean over
/// heads. Wants observe_cache of prompts and in refresh steps, before or after the attention is
/// observed.
struct InertiaKVValueNormRecipe : InertiaKVRecipe {
  static constexpr std::string_view kName = "InertiaKVValueNorm";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(AttentionInertia<true>(kName, shape, inertia(options)));
  }
};

// policy: InertiaKV | `m_i = 0.8 m_i + 0.2 mean_H a[H,new,i]`, layer after layer
//   | newest row of every r-th step (score-free: of the first) | - | model | while decoding
//   | 4 B; during a step 4 B per eligible layer more | layers x a pass over the row | 2609.03515
using InertiaKV = Policy<Composed<InertiaKVRecipe>>;
// policy: InertiaKVValueNorm
//   | `m_i = 0.8 m_i + 0.2 mean_H a[H,new,i] norm(v_i) / mean_j norm(v_j)`, layer after layer
//   | newest row of every r-th step, V | - | model | while decoding
//   | 4 B + 4 B per KV head; during a step 4 B per KV head of eligible layers more
//   | layers x a pass over the row | 2609.03515
using InertiaKVValueNorm = Policy<Composed<InertiaKVValueNormRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_INERTIAKV_HPP_
