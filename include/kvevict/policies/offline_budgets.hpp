#ifndef KVEVICT_POLICIES_OFFLINE_BUDGETS_HPP_
#define KVEVICT_POLICIES_OFFLINE_BUDGETS_HPP_

#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pooling.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Policies whose budgets come from tables that were made offline.

struct EvolKVOptions {
  Budget budget = 2048;  ///< tokens per KV head on average, window included
  /// [layers] tokens per KV head, window included, as the search found them; empty: all equal
  std::vector<std::size_t> layer_budgets = {};
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
};

/// SnapKV with budgets of layers that a search found (EvolKV, arXiv 2509.08315): the table is used
/// as it is where its mean is the budget, and completed in proportion where it is not, as
/// LayerTable says. The search itself is not part of this. Open and chosen here: the table counts
/// the window, and a layer below the window has the window.
struct EvolKVRecipe : VotesByWindow<EvolKVRecipe, EvolKVOptions> {
  static constexpr std::string_view kName = "EvolKV";
  static constexpr bool kNeedsArtefact = true;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return LayerTable(kName, "layer_budgets", shape, options.budget, options.observation_window,
                      options.layer_budgets);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    visit("layer_budgets", options.layer_budgets);
  }
};

struct HeadKVOptions {
  Budget budget = 1024;  ///< tokens per KV head on average, window included
  /// [layers * KV heads] or [layers * query heads], layer by layer, >= 0: how much a head retrieves
  /// (or reasons, R2); empty: all equal
  std::vector<double> head_scores = {};
  double power = 1;   ///< >= 0, that scores are raised to before they are divided by their sum
  double beta = 1.5;  ///< >= 1: one part in beta of the budget goes by score; 1: all of it
  bool official_rounding = false;       ///< as the authors: the sum may leak
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kMax, .kernel_size = 7};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
};

/// SnapKV with budgets of heads by their retrieval scores (HeadKV and HeadKV-R2, arXiv 2410.19258,
/// section 3): with b = budget - window, share = floor(b / beta),
///
///   budget(l, h) = window + s(l, h) share L H + b - share,  sum s = 1.
///
/// The authors select per query head, which a GQA cache cannot store; here a group's mean score is
/// its KV head's. They round each budget by itself, 33 entries for 32 in one small example, and do
/// not mind a budget above the prompt; the default conserves the sum by largest remainder and gives
/// what a short prompt cannot take to the other heads.
struct HeadKVRecipe : VotesByWindow<HeadKVRecipe, HeadKVOptions> {
  static constexpr std::string_view kName = "HeadKV";
  static constexpr bool kNeedsArtefact = true;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return HeadTable(kName, "head_scores", shape, options.budget, options.observation_window,
                     options.head_scores, options.power, options.beta, options.official_rounding);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    visit("head_scores", options.head_scores);
    visit("power", options.power);
    visit("beta", options.beta);
    visit("official_rounding", options.official_rounding);
  }
};

namespace detail {

/// The options of a recipe whose budget a table replaces.
template <class Base, class Visit>
void visit_all_but_budget(typename Base::Options& options, Visit&& visit) {
  Base::visit_options(options, [&](std::string_view name, auto& field) {
    if (name != "budget")
      visit(name, field);
  });
}

}  // namespace detail

/// Options of a recipe whose budgets are shares of a table; its own `budget` has no meaning.
template <class Base>
struct PerLayerOptions : Base::Options {
  std::vector<double> compression_ratios = {};  ///< [layers] of tokens that go; empty: none goes
};

/// A compression ratio for every layer over any scores (kvpress' PerLayerCompressionPress): layer l
/// keeps n (1 - ratio_l), rounded down, but not to 0 unless the ratio is 1 (rule R6; kvpress keeps
/// one token then too). Of what follows a prompt the same share stays, unless prompts alone are
/// cut. The base must have one set per KV head and no allocator or allocation: AdaKVOver and
/// DMSOver go over this.
template <Recipe Base>
struct PerLayerRecipe : Base {
  static_assert(
      !detail::Allocates<Base>,
      "the base of PerLayerRecipe must have no allocator or allocation, whose place the table "
      "takes; AdaKVOver and DMSOver go over PerLayerRecipe");
  using Options = PerLayerOptions<Base>;
  static constexpr std::string_view kPrefix = "PerLayer";
  static constexpr std::string_view kName = detail::JoinedName<kPrefix, Base::kName>::kName;
  static constexpr bool kNeedsArtefact = true;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    detail::check_single_heads<Base>(kName, options);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    detail::check_table_size(kName, "compression_ratios", options.compression_ratios.size(),
                             {{}, detail::for_each_layer(shape)});
    return ShareTable(kName, "compression_ratios", shape, options.compression_ratios,
                      ShareRounding::kFloors, Base::protection(options).after_prompt);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    detail::visit_all_but_budget<Base>(options, visit);
    visit("compression_ratios", options.compression_ratios);
  }
};

/// The first four tokens and the newest one stay, as in kvpress; `budget` has no meaning.
template <class Base>
struct LUKVOptions : Base::Options {
  LUKVOptions() {
    this->num_sink_tokens = 4;
    this->recent_window = 1;
  }
  /// [layers * KV heads] of tokens that go: the table's row for the wanted ratio; empty: none goes
  std::vector<double> prune_ratios = {};
  bool official_rounding = false;  ///< as kvpress: counts are clamped to [1, n] at last
};

/// Ratios for every head from a table of utility curves (LU-KV, arXiv 2602.08585, as in kvpress):
/// head h keeps (1 - prune_h) n, as whole numbers by largest remainder that add up to the rounded
/// sum, at least 1 each, over any scores. kvpress clamps afterwards, so that its sum may leak; the
/// default takes the missing ones from the largest. Choosing the row, round(100 ratio) - 1 of 99,
/// is the caller's. The base must be as that of PerLayerRecipe and have both windows among its
/// options.
template <Recipe Base>
  requires requires(typename Base::Options& options) {
    options.num_sink_tokens;
    options.recent_window;
  }
struct LUKVRecipe : Base {
  static_assert(
      !detail::Allocates<Base>,
      "the base of LUKVRecipe must have no allocator or allocation, whose place the table "
      "takes; AdaKVOver and DMSOver go over LUKVRecipe");
  using Options = LUKVOptions<Base>;
  static constexpr std::string_view kPrefix = "LUKV";
  static constexpr std::string_view kName = detail::JoinedName<kPrefix, Base::kName>::kName;
  static constexpr bool kNeedsArtefact = true;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    detail::check_single_heads<Base>(kName, options);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    detail::check_table_size(kName, "prune_ratios", options.prune_ratios.size(),
                             {{}, detail::for_each_kv_head(shape)});
    return ShareTable(kName, "prune_ratios", shape, options.prune_ratios,
                      options.official_rounding ? ShareRounding::kClamped : ShareRounding::kExact,
                      Base::protection(options).after_prompt);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    detail::visit_all_but_budget<Base>(options, visit);
    visit("prune_ratios", options.prune_ratios);
    visit("official_rounding", options.official_rounding);
  }
};

// policy: EvolKV | `pool_5(sum_w mean_h a[h,t,i])`; layer budgets from a table
//   | last rows of the prompt | budgets of layers | head | at prompt ends | 4 B per KV head | none
//   | 2509.08315
using EvolKV = Policy<Composed<EvolKVRecipe>>;
// policy: HeadKV | `maxpool_7(sum_w mean_h a[h,t,i])`; head budgets from a table
//   | last rows of the prompt | scores of heads | head | at prompt ends | 4 B per KV head | none
//   | 2410.19258
using HeadKV = Policy<Composed<HeadKVRecipe>>;
// policy: PerLayerKnorm | `-norm(k_i)`; layer budgets from a table | K | ratios of layers | head
//   | at any time | 4 B per KV head | the new keys, a pass over the scores | kvpress
using PerLayerKnorm = Policy<Composed<PerLayerRecipe<KnormRecipe>>>;
// policy: LUKVKnorm | `-norm(k_i)`; head budgets from a table | K | ratios of heads | head
//   | at any time | 4 B per KV head | the new keys, a pass over the scores | 2602.08585
using LUKVKnorm = Policy<Composed<LUKVRecipe<KnormRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_OFFLINE_BUDGETS_HPP_
