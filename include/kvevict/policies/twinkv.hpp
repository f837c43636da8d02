#ifndef KVEVICT_POLICIES_TWINKV_HPP_
#define KVEVICT_POLICIES_TWINKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/key_twins.hpp"
#include "kvevict/selection/twin_repair.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// What TwinKVOver adds to the options of the recipe below it.
template <class Base>
struct TwinKVOverOptions : Base::Options {
  TwinRepairOptions twins = {};
};

/// Any other policy, its choice repaired (TwinKV, arXiv 2608.27128): a token that would go and has
/// no likeness among those that stay takes the place of one that has, as TwinRepair says. Whoever
/// scores, what is protected and how much stays in each lane are the base policy's, but for its
/// min_keep where lanes share a budget. A cut compares all keys that may go or stay with all that
/// stay: O(n budget head_dim).
///
/// Keys are compared as they are cached, after rotary embedding. Lanes have to be single KV heads.
/// Templates of few-shot prompts look redundant to it and are not.
template <Recipe Base>
struct TwinKVOver : Base {
  using Options = TwinKVOverOptions<Base>;
  static constexpr std::string_view kPrefix = "TwinKV";
  static constexpr std::string_view kName = detail::JoinedName<kPrefix, Base::kName>::kName;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    options.twins.check(kName, "twin_");
    detail::check_single_heads<Base>(kName, options);
  }
  static auto selector(const Options& options) {
    const KeyTwins twins(options.twins.distance);
    if constexpr (detail::Selects<Base>) {
      return TwinRepair(Base::selector(options), twins, options.twins);
    } else {
      return TwinRepair(BestOfAll{}, twins, options.twins);
    }
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    visit("twin_similarity", options.twins.similarity);
    visit("twin_distance", options.twins.distance);
    visit("twin_num_sinks", options.twins.num_sink_tokens);
    visit("twin_recent", options.twins.recent_window);
  }
};

// policy: TwinKVSnapKV
//   | `pool_5(sum_w mean_h a[h,t,i])`; then tokens without a twin (cos >= 0.85) among those kept
//     take the place of those with one
//   | last rows of the prompt, K | - | head | at prompt ends
//   | 4 B per KV head; scratch 4 head_dim B per token kept
//   | none; a cut compares all keys with those that stay | 2608.27128, 2404.14469
using TwinKVSnapKV = Policy<Composed<TwinKVOver<SnapKVRecipe>>>;
// policy: TwinKVKnorm
//   | `-norm(k_i)`; then tokens without a twin (cos >= 0.85) among those kept take the place of
//     those with one
//   | K | - | head | at any time | 4 B per KV head; scratch 4 head_dim B per token kept
//   | the new keys; a cut compares all keys with those that stay | 2608.27128, 2406.11430
using TwinKVKnorm = Policy<Composed<TwinKVOver<KnormRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_TWINKV_HPP_
