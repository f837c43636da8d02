#ifndef KVEVICT_POLICIES_SNAPKV_HPP_
#define KVEVICT_POLICIES_SNAPKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"

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

/// How the last queries of a prompt vote for what they look at, and what else the recipes have in
/// common that differ in who gets how much: SnapKV's own, AdaKV's, PyramidKV's. Their options have
/// the fields that are read here, with defaults of their own.
template <class R, class O>
struct VotesByWindow : CutsPrompts {
  using Options = O;

  static auto pipeline(const Options& options, const CacheShape& shape) {
    options.pooling.check(R::kName);
    return WindowAttention(R::kName, shape,
                           {.window = options.observation_window,
                            .heads = early_reduction(options),
                            .support = options.softmax_support,
                            .score_window = scores_window(options)}) |
           when(options.pool_first, Pool{options.pooling}) | GroupReduction{options.group_reduce} |
           when(!options.pool_first, Pool{options.pooling});
  }
  /// Rows that a score is the sum over.
  static std::size_t num_rows_summed(const Options& options) noexcept {
    return options.observation_window;
  }
  template <class Visit>
  static void visit_common_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("group_reduce", options.group_reduce);
    visit("pool_first", options.pool_first);
    visit("softmax_support", options.softmax_support);
  }

 private:
  // A mean over heads can be taken row by row: it commutes with the sum over rows, and with an
  // average over slots. Only what does not commute needs an array per query head.
  [[nodiscard]] static HeadReduce early_reduction(const Options& options) noexcept {
    const bool commutes = !options.pool_first || options.pooling.kind == PoolKind::kAverage;
    return options.group_reduce == GroupReduce::kMean && commutes ? HeadReduce::kGroupMean
                                                                  : HeadReduce::kNone;
  }
  // A window that is not protected competes.
  [[nodiscard]] static bool scores_window(const Options& options) noexcept {
    if constexpr (requires { options.protect_window; }) {
      return !options.protect_window;
    } else {
      return false;
    }
  }
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
