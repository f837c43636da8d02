#ifndef KVEVICT_POLICIES_WINDOW_VOTING_HPP_
#define KVEVICT_POLICIES_WINDOW_VOTING_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/window_vote.hpp"

#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// What recipes have in common that score as SnapKV does and differ in who gets how much. Their
/// options have the fields that are read here, with defaults of their own.
template <class R, class O>
struct VotesByWindow : CutsPrompts {
  using Options = O;

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return window_vote(R::kName, shape,
                       {.window = options.observation_window,
                        .pooling = options.pooling,
                        .group_reduce = options.group_reduce,
                        .pool_first = options.pool_first,
                        .support = options.softmax_support});
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
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_WINDOW_VOTING_HPP_
