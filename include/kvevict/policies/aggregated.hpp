#ifndef KVEVICT_POLICIES_AGGREGATED_HPP_
#define KVEVICT_POLICIES_AGGREGATED_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/temporal/refresh_steps.hpp"
#include "kvevict/temporal/scores_over_steps.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

template <class Base>
struct AggregatedOptions : Base::Options {
  TemporalRule temporal_rule = TemporalRule::kEma;  ///< what a token's scores become
  double decay = 0.8;               ///< weight of the past in the EMA, in [0, 1); InertiaKV's alpha
  float temporal_threshold = 0;     ///< above which a score counts, for kCount and kLastTime
  std::size_t temporal_window = 0;  ///< scores that a sum, mean, maximum or count is of; 0: all
  std::size_t refresh_interval = 1;  ///< decode steps from one sample to the next (r)
  bool score_free = false;           ///< sample the first step after a prompt and no later one
};

/// What a token is worth, aggregated over the steps since it came, over any recipe that has scores
/// in every step: the inertia of InertiaKV (arXiv 2609.03515, the wrapper of its ablations), for
/// each set of tokens by itself, and with kLifetimeMean the equal weight of all steps, without
/// favour to recent ones, that FAEDKV (arXiv 2507.20030) asks for in another domain. kSingle is the
/// base. A rule of one's own, or one in the middle of a pipeline, is ScoresOverSteps.
///
/// One sample a step, of all that is cached, and one at the end of a prompt, inside which nothing
/// is cut. Tokens that come together, drafts too, count as the one step that they are. Wants
/// observe_cache in every such step, behind the attention of all layers where the base reads some.
///
/// Lazily, steps t = 1, 1 + r, .. behind a prompt alone are sampled, score-free t = 1: in the
/// others nothing is wanted but what the base accumulates, and a new token has the mean of its set
/// until it has a sample.
template <Recipe Base>
struct AggregatedOver : Base {
  using Options = AggregatedOptions<Base>;
  static constexpr std::string_view kPrefix = "Aggregated";
  static constexpr std::string_view kName = detail::JoinedName<kPrefix, Base::kName>::kName;

  static void check(const Options& options, const CacheShape& shape) {
    static_assert(decltype(Base::pipeline(options, shape))::kAttentionUse != AttentionUse::kWindow,
                  "votes of a prompt's window are given once: there are no steps to aggregate");
    detail::check_recipe<Base>(options, shape);
    rule(options).check(kName, "temporal_");
    refresh(options).check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(ScoresOverSteps(shape, Base::scope(options), Base::pipeline(options, shape),
                                    rule(options), refresh(options)));
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    visit("temporal_rule", options.temporal_rule);
    visit("decay", options.decay);
    visit("temporal_threshold", options.temporal_threshold);
    visit("temporal_window", options.temporal_window);
    visit("refresh_interval", options.refresh_interval);
    visit("score_free", options.score_free);
  }

 private:
  [[nodiscard]] static NamedRule rule(const Options& options) noexcept {
    return {options.temporal_rule, options.decay, options.temporal_threshold,
            options.temporal_window};
  }
  [[nodiscard]] static RefreshSteps refresh(const Options& options) noexcept {
    return {options.refresh_interval, options.score_free};
  }
};

// policy: AggregatedKeyDiff | `m_i = 0.8 m_i + 0.2 s_i` in each step, s as `KeyDiff` | K | - | head
//   | at any time | 8 B per KV head | a pass over K | 2609.03515 (ablation)
using AggregatedKeyDiff = Policy<Composed<AggregatedOver<KeyDiffRecipe>>>;
// policy: AggregatedTOVA | `m_i = 0.8 m_i + 0.2 s_i` in each step, s as `TOVA` | newest row | -
//   | layer | at any time | 4 B per KV head + 8 B per layer
//   | a pass over the row, one over the scores | 2609.03515 (ablation), 2401.06104
using AggregatedTOVA = Policy<Composed<AggregatedOver<TOVARecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_AGGREGATED_HPP_
