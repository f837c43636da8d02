#ifndef KVEVICT_POLICIES_DEFENSIVEKV_HPP_
#define KVEVICT_POLICIES_DEFENSIVEKV_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/scoring/worst_case_attention.hpp"
#include "kvevict/selection/mass_first.hpp"

#include <cstddef>
#include <memory>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct DefensiveKVOptions {
  Budget budget = 1024;  ///< tokens per KV head on average, window included
  Competition competition = Competition::kLayer;  ///< kModel: Layer-DefensiveKV
  std::size_t observation_window = 32;            ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< of each row
  double first_stage_mass = 0.9;      ///< in [0, 1], attention that is kept before values count
  bool official_window_mass = false;  ///< as the authors' code: see below
  bool l2_norm = false;  ///< |v W_O|_2 for |v W_O|_1: 2 hidden_size / head_dim times cheaper
  /// Of the model. The L1 norm needs the weight: OutputProjection with keep_weight.
  std::shared_ptr<const OutputProjection> output_projection = nullptr;
};

/// Prepares for the worst of what the window has seen, instead of its mean (DefensiveKV, arXiv
/// 2510.13334): WorstCaseAttention m, lifted to at least its mean over the prefix and multiplied by
/// the value's share among the layer's KV heads,
///
///   score(i) = max(m(i), mean m) |v_i W_O|_1 / mean over heads of |v_i W_O|_1,
///
/// the norm of a KV head the mean over its query heads. MassFirst keeps what holds 90 % of the mean
/// attention, then the best by score of all heads of the layer (or of the model) fill the budget.
/// Once, at the end of each prompt; the window and what is decoded stay.
///
/// The authors subtract from the 90 % what the window itself holds, but take it after the window
/// was cut off, so that they subtract what its last neighbours hold: official_window_mass. They
/// divide by the sum over heads, a constant factor. One KV head alone has no share: its scores are
/// the attention. Open and chosen here: after an earlier cut heads are compared where they hold the
/// same token; padding counts as 0 in the pooling of a row, but that before a first prompt is no
/// neighbour where the view shows it (observe_queries).
struct DefensiveKVRecipe : CutsPrompts {
  using Options = DefensiveKVOptions;
  static constexpr std::string_view kName = "DefensiveKV";

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
    detail::require(options.competition != Competition::kLane, kName, "competition",
                    static_cast<int>(options.competition), "must be layer or model");
    detail::require(options.first_stage_mass >= 0.0 && options.first_stage_mass <= 1.0, kName,
                    "first_stage_mass", options.first_stage_mass, "must be in [0, 1]");
    check_value_factor(kName, norm(options), options.output_projection.get(), shape,
                       GroupReading::kMeanNorms);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WorstCaseAttention(kName, shape, options.observation_window, options.pooling) |
           AtLeastMean{} | TimesNormShare{norm(options), options.output_projection};
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget, .competition = options.competition};
  }
  static auto selector(const Options& options) noexcept {
    return MassFirst(options.first_stage_mass, options.official_window_mass);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("competition", options.competition);
    visit("observation_window", options.observation_window);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("first_stage_mass", options.first_stage_mass);
    visit("official_window_mass", options.official_window_mass);
    visit("l2_norm", options.l2_norm);
  }

 private:
  [[nodiscard]] static ValueFactor norm(const Options& options) noexcept {
    return options.l2_norm ? ValueFactor::kProjected : ValueFactor::kProjectedL1;
  }
};

// policy: DefensiveKV
//   | `max(m_i, mean m) p_i / mean_H p_i`, `m_i = max_w max_h pool_5(a[h,t,i])`, `p_i = mean_h
//     norm1(v_i W_h)`; before, what holds 90 % of the mean attention
//   | last rows of the prompt, V, W_O | - | head | at prompt ends
//   | 8 B per KV head; scratch 4 B per KV head of a layer | none | 2510.13334
using DefensiveKV = Policy<Composed<DefensiveKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_DEFENSIVEKV_HPP_
