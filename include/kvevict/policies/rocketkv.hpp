#ifndef KVEVICT_POLICIES_ROCKETKV_HPP_
#define KVEVICT_POLICIES_ROCKETKV_HPP_

#include "kvevict/allocation/rocket_split.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pooling.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: NVlabs' code. TensorRT-LLM has SoftmaxSupport::kPast and a prompt budget of 2048.
struct RocketKVOptions {
  Budget budget = 512;  ///< T: tokens that a decode step may cost; where `split` is false, tokens
                        ///< of the prompt that stay, per KV head
  bool split = true;    ///< the prompt's budget follows from its length (rocket_split)
  std::size_t max_new_tokens = 0;       ///< room for the answer that the split leaves in the budget
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kMax, .kernel_size = 63};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kSum;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
};

/// The first stage of RocketKV (arXiv 2502.14051, section 3): SnapKV's scores with a wide maximum
/// pooling, cut once at the end of a prompt to a budget between the prompt's length and what a step
/// may cost. The second stage, sparse attention over the pages of what is left, evicts nothing and
/// is the engine's; rocket_split has its numbers too.
///
/// The length that the split starts from is taken to be the prompt and the answer together, so that
/// a prompt stays whole where both fit in the budget. The window is never cut, however small the
/// budget that is left beside max_new_tokens.
struct RocketKVRecipe : VotesByWindow<RocketKVRecipe, RocketKVOptions> {
  static constexpr std::string_view kName = "RocketKV";

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape,
                                options.split ? 1 : options.observation_window);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return RocketBudget(shape, options.budget, options.observation_window, options.max_new_tokens,
                        options.split);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    visit("split", options.split);
    visit("max_new_tokens", options.max_new_tokens);
  }
};

// policy: RocketKV | `maxpool_63(sum_h sum_w a[h,t,i])` | last rows of the prompt | - | head
//   | at prompt ends | 4 B per query head | none | 2502.14051 (stage 1)
using RocketKV = Policy<Composed<RocketKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_ROCKETKV_HPP_
