#ifndef KVEVICT_POLICIES_ADAKV_HPP_
#define KVEVICT_POLICIES_ADAKV_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/allocation/pyramid.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/selection/head_floors.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct AdaKVOptions {
  Budget budget = 1024;                 ///< tokens per KV head on average, window included
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  FloorRule floor_rule = FloorRule::kInterpolate;  ///< what a head keeps that wins little
  double floor = 0.2;              ///< in [0, 1], of an equal share (alpha); 1: all heads are equal
  bool official_rounding = false;  ///< of kInterpolate, as the authors: the sum may leak
  bool floor_of_whole = false;     ///< of kGuarantee, as kvpress: the window counts in the floor
  double pyramid_beta =
      1;  ///< > 1: layers have the budgets of PyramidKV with that beta (Ada-Pyramid)
  Pooling pooling = {.kind = PoolKind::kMax, .kernel_size = 7};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
};

namespace detail {

/// What AdaKVOptions and AdaKVOverOptions say of floors.
template <class O>
[[nodiscard]] HeadFloors floors_of(const O& options) noexcept {
  return {options.floor_rule, options.floor, options.official_rounding, options.floor_of_whole};
}
template <class O, class Visit>
void visit_floors(O& options, Visit&& visit) {
  visit("floor_rule", options.floor_rule);
  visit("floor", options.floor);
  visit("official_rounding", options.official_rounding);
  visit("floor_of_whole", options.floor_of_whole);
}

}  // namespace detail

/// SnapKV's scores, with the heads of a layer sharing its budget (AdaKV, arXiv 2407.11550, section
/// 3 and algorithm 1): the best of the layer win, and HeadFloors says what a head that wins little
/// keeps. With b = budget - window:
///
///   keep_h = window + the best c_h (1 - floor) + b floor,  c_h = head h's among the H b best.
///
/// The authors round each number by itself and lose or win an entry here and there; the default
/// conserves the budget by largest remainder, ties to the lower head. Their optional scaling of
/// scores by a head's concentration is not offered. kvpress has another floor of the same name:
/// kGuarantee with floor_of_whole.
struct AdaKVRecipe : VotesByWindow<AdaKVRecipe, AdaKVOptions> {
  static constexpr std::string_view kName = "AdaKV";

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
    detail::check_floor(kName, options.floor);
    detail::require(options.pyramid_beta >= 1.0, kName, "pyramid_beta", options.pyramid_beta,
                    "must be >= 1");
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return PyramidBudgets(
        shape, options.budget, options.observation_window, options.pyramid_beta,
        options.official_rounding ? PyramidRounding::kOfficial : PyramidRounding::kExact,
        Competition::kLayer);
  }
  static auto selector(const Options& options) noexcept { return detail::floors_of(options); }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    detail::visit_floors(options, visit);
    visit("pyramid_beta", options.pyramid_beta);
  }
};

/// What AdaKVOver adds to the options of the recipe below it: those of AdaKVOptions, as kvpress has
/// them.
template <class Base>
struct AdaKVOverOptions : Base::Options {
  FloorRule floor_rule = FloorRule::kGuarantee;
  double floor = 0.2;
  bool official_rounding = false;
  bool floor_of_whole = true;
};

/// The same over the scores of another recipe, whatever it protects (kvpress' AdaKVPress, whose
/// floor is the default here). The base must have one set per KV head and no
/// selector: TwinKVOver and CriticalKVRecipe go over this.
template <Recipe Base>
struct AdaKVOver : Base {
  static_assert(
      !detail::Selects<Base>,
      "the base of AdaKVOver must have no selector, which would be dropped; TwinKVOver and "
      "CriticalKVRecipe go over AdaKVOver");
  using Options = AdaKVOverOptions<Base>;
  static constexpr std::string_view kName =
      detail::JoinedName<AdaKVRecipe::kName, Base::kName>::kName;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    detail::check_single_heads<Base>(kName, options);
    detail::check_floor(kName, options.floor);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return detail::EditedAllocator(detail::allocator_of<Base>(options, shape),
                                   detail::SetCompetition{Competition::kLayer});
  }
  static auto selector(const Options& options) noexcept { return detail::floors_of(options); }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    detail::visit_floors(options, visit);
  }
};

// policy: AdaKV | `maxpool_7(sum_w mean_h a[h,t,i])`; heads of a layer compete, each keeps a floor
//   | last rows of the prompt | - | head | at prompt ends | 4 B per KV head | none | 2407.11550
using AdaKV = Policy<Composed<AdaKVRecipe>>;
// policy: AdaKVKnorm | `-norm(k_i)`; heads of a layer compete, each keeps a floor | K | - | head
//   | at any time | 4 B per KV head | the new keys, a pass over the scores | 2407.11550, 2406.11430
using AdaKVKnorm = Policy<Composed<AdaKVOver<KnormRecipe>>>;
// policy: AdaKVKeyDiff
//   | `-cos(k_i, mean_j unit(k_j))`; heads of a layer compete, each keeps a floor | K | - | head
//   | at any time | none | a pass over K | 2407.11550, 2504.15364
using AdaKVKeyDiff = Policy<Composed<AdaKVOver<KeyDiffRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_ADAKV_HPP_
