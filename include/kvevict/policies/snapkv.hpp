#ifndef KVEVICT_POLICIES_SNAPKV_HPP_
#define KVEVICT_POLICIES_SNAPKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/window_voting.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/window_vote.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: what the authors' code sets for its models. It pools and selects per query head, which
/// a GQA cache cannot store; the group's mean is then the common reading (AdaKV, KVCache-Factory).
struct SnapKVOptions {
  Budget budget = 2048;                 ///< tokens per KV head, window included (max capacity)
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
  bool protect_window = true;  ///< false: the window's own tokens compete like all others
};

/// The attention of the prompt's last queries (SnapKV, arXiv 2404.14469, section 4): per KV head
///
///   score(i) = reduce_h( pool( sum_t a[h, t, i] ) ),  t in the window, i before it,
///
/// with `pool` and `reduce` in either order. Once, at the end of a prompt: the window and the best
/// of the prefix stay; tokens decoded later are all kept. Pooling sees the prefix only. A later
/// prompt is a fresh window over all that is cached by then.
struct SnapKVRecipe : VotesByWindow<SnapKVRecipe, SnapKVOptions> {
  static constexpr std::string_view kName = "SnapKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.protect_window || options.softmax_support == SoftmaxSupport::kAll,
                    kName, "protect_window", options.protect_window,
                    "must be true where the softmax leaves the window out");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return window_vote(kName, shape,
                       {.window = options.observation_window,
                        .pooling = options.pooling,
                        .group_reduce = options.group_reduce,
                        .pool_first = options.pool_first,
                        .support = options.softmax_support,
                        .score_window = !options.protect_window});
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.protect_window ? options.observation_window : 0,
            .after_prompt = true};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    visit("protect_window", options.protect_window);
  }
};

// policy: SnapKV | `pool_5(sum_w mean_h a[h,t,i])` | last rows of the prompt | - | head
//   | at prompt ends | 4 B per KV head (group maximum or sum: per query head) | none | 2404.14469
using SnapKV = Policy<Composed<SnapKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_SNAPKV_HPP_
