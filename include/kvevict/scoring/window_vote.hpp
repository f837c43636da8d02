#ifndef KVEVICT_SCORING_WINDOW_VOTE_HPP_
#define KVEVICT_SCORING_WINDOW_VOTE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// How the last queries of a prompt vote for what they look at (SnapKV): the score of many
/// policies, which differ in who gets how much.
struct WindowVoteOptions {
  std::size_t window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {};
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group
  SoftmaxSupport support = SoftmaxSupport::kAll;
  bool score_window = false;  ///< the window's own slots have a score too
};

/// score(i) = reduce_h( pool( sum_t a[h, t, i] ) ), `pool` and `reduce` in either order.
[[nodiscard]] inline auto window_vote(std::string_view where, const CacheShape& shape,
                                      const WindowVoteOptions& options) {
  options.pooling.check(where);
  // A mean over heads can be taken row by row: it commutes with the sum over rows, and with an
  // average over slots. Only what does not commute needs an array per query head.
  const bool commutes = !options.pool_first || options.pooling.kind == PoolKind::kAverage;
  const HeadReduce early = options.group_reduce == GroupReduce::kMean && commutes
                               ? HeadReduce::kGroupMean
                               : HeadReduce::kNone;
  return WindowAttention(where, shape,
                         {.window = options.window,
                          .heads = early,
                          .support = options.support,
                          .score_window = options.score_window}) |
         when(options.pool_first, Pool{options.pooling}) | GroupReduction{options.group_reduce} |
         when(!options.pool_first, Pool{options.pooling});
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_WINDOW_VOTE_HPP_
