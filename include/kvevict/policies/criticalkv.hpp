#ifndef KVEVICT_POLICIES_CRITICALKV_HPP_
#define KVEVICT_POLICIES_CRITICALKV_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/critical_scores.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/selection/two_stage.hpp"

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// The two stages over any scores.
struct CriticalOptions {
  double first_stage = 0.5;  ///< share of the budget that the scores themselves fill (alpha)
  double epsilon = 1e-4;     ///< added to scores, in units of attention, whatever they are the sum
                             ///< over; behind a part of a text that makes something else of them,
                             ///< in units of that
  bool l2_norm = false;      ///< |v W_O|_2 for |v W_O|_1: 2 hidden_size / head_dim times cheaper

  /// Throws InvalidArgument, naming `where`.
  void check(std::string_view where, const OutputProjection* projection,
             const CacheShape& shape) const {
    detail::require(first_stage >= 0.0 && first_stage <= 1.0, where, "first_stage", first_stage,
                    "must be in [0, 1]");
    detail::require(epsilon >= 0.0, where, "epsilon", epsilon, "must be >= 0");
    check_value_factor(where, norm(), projection, shape, GroupReading::kMeanNorms);
  }
  [[nodiscard]] TwoStage<CriticalScores> stages(
      std::shared_ptr<const OutputProjection> projection) const {
    return {.first_share = Budget::keep_ratio(first_stage),
            .second = {.epsilon = static_cast<float>(epsilon),
                       .norm = norm(),
                       .projection = std::move(projection)}};
  }
  template <class Visit>
  void visit_options(Visit&& visit) {
    visit("first_stage", first_stage);
    visit("epsilon", epsilon);
    visit("l2_norm", l2_norm);
  }

 private:
  [[nodiscard]] ValueFactor norm() const noexcept {
    return l2_norm ? ValueFactor::kProjected : ValueFactor::kProjectedL1;
  }
};

template <class Base>
struct CriticalKVOptions {
  typename Base::Options base = {};  ///< of the policy whose scores these are
  CriticalOptions critical = {};
  bool first_stage_counts_window = false;  ///< a share of the budget with the protected entries,
                                           ///< which fill it first (kvpress); false: without them
  /// Of the model. The L1 norm needs the weight: OutputProjection with keep_weight.
  std::shared_ptr<const OutputProjection> output_projection = nullptr;
};

/// Selection by the perturbation that eviction causes (CriticalKV, arXiv 2502.03805, section 4 and
/// algorithm 1), over the scores s of another policy: the best by s fill a share of the budget,
/// which guards against attention that changes; the best of the others by
///
///   (s(i) + epsilon) mean_h |v_i W_O^h|_1
///
/// fill the rest. A share of 1 is the base policy, one of 0 the plain product. Over a base whose
/// heads share a budget (CriticalAdaKV over AdaKV) the base says how many entries each head keeps,
/// and each chooses its own in two stages.
///
/// Open in the paper and chosen here: scores and norms of a group are each averaged, as kvpress
/// has it. kvpress takes the first stage of the unrounded budget (1 - ratio) n; here it is of whole
/// tokens.
template <class Base>
struct CriticalKVRecipe : Base {
  static_assert(
      !requires(const typename Base::Options& options) {
        Base::scored_layer(options, std::size_t{});
      },
      "the base of CriticalKVRecipe must have no scored_layer: a layer that takes another one's "
      "scores has values of its own");
  using Options = CriticalKVOptions<Base>;
  static constexpr std::string_view kPrefix = "Critical";
  static constexpr std::string_view kName = Base::kName == SnapKVRecipe::kName
                                                ? "CriticalKV"
                                                : detail::JoinedName<kPrefix, Base::kName>::kName;
  /// Or the allocator's matter.
  static constexpr bool kWindowsAreOptions = requires(const typename Base::Options& options) {
    Base::protection(options);
  };

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options.base, shape);
    options.critical.check(kName, options.output_projection.get(), shape);
    detail::require(kWindowsAreOptions || !options.first_stage_counts_window, kName,
                    "first_stage_counts_window", options.first_stage_counts_window,
                    "must be false where the base has no protection(options)");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Base::pipeline(options.base, shape);
  }
  static auto selector(const Options& options) {
    TwoStage<CriticalScores> stages = options.critical.stages(options.output_projection);
    stages.second.epsilon *= static_cast<float>(detail::rows_summed<Base>(options.base));
    if constexpr (kWindowsAreOptions) {
      const Protection windows = Base::protection(options.base);
      if (options.first_stage_counts_window)
        stages.counted = windows.recent_window + windows.num_sink_tokens;
    }
    if constexpr (detail::Selects<Base>) {
      return TwoStageWithin(Base::selector(options.base), std::move(stages));
    } else {
      return stages;
    }
  }
  static MaskScope scope(const Options& options) noexcept { return Base::scope(options.base); }
  static Trigger trigger(const Options& options) noexcept { return Base::trigger(options.base); }
  static CutSchedule schedule(const Options& options) noexcept {
    return detail::schedule_of<Base>(options.base);
  }
  static double num_rows_summed(const Options& options) noexcept {
    return detail::rows_summed<Base>(options.base);
  }
  static Protection protection(const Options& options) noexcept requires kWindowsAreOptions {
    return Base::protection(options.base);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return detail::allocator_of<Base>(options.base, shape);
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options.base, visit);
    options.critical.visit_options(visit);
    visit("first_stage_counts_window", options.first_stage_counts_window);
  }
};

/// Over SnapKV.
// policy: CriticalKV
//   | half of the budget by s, the rest by `(s_i + eps) mean_h norm1(v_i W_h)`, s as `SnapKV`
//   | last rows of the prompt, V, W_O | - | head | at prompt ends | 4 B per KV head | none
//   | 2502.03805
using CriticalKV = Policy<Composed<CriticalKVRecipe<SnapKVRecipe>>>;
/// Over AdaKV.
// policy: CriticalAdaKV
//   | half of the budget by s, the rest by `(s_i + eps) mean_h norm1(v_i W_h)`, s as `AdaKV`, which
//     says how many each head keeps
//   | last rows of the prompt, V, W_O | - | head | at prompt ends | 4 B per KV head | none
//   | 2502.03805
using CriticalAdaKV = Policy<Composed<CriticalKVRecipe<AdaKVRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CRITICALKV_HPP_
