#ifndef KVEVICT_POLICIES_PYRAMIDKV_HPP_
#define KVEVICT_POLICIES_PYRAMIDKV_HPP_

#include "kvevict/allocation/pyramid.hpp"
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

struct PyramidKVOptions {
  Budget budget = 2048;  ///< tokens per KV head on average, window included (max capacity)
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  double beta = 20;                     ///< > 1: the last layer gets b / beta beside its window
  bool official_rounding = false;       ///< budgets as the authors': the sum may leak
  bool kvpress_budgets = false;         ///< budgets as kvpress', window in the line: it may too
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< over neighbouring tokens
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;  ///< what a row's softmax runs over
};

/// SnapKV with budgets that fall from layer to layer (PyramidKV, arXiv 2406.02069, section 4): the
/// scores are SnapKV's, the budgets those of PyramidBudgets.
///
/// The authors round the step between layers down and so hand out more or less than the budget, 304
/// tokens more of 64512 for 32 layers, 2048 tokens and a prompt of 8192; the default conserves it
/// by largest remainder, ties to the lower layer. One layer divides by zero in all published code:
/// here it gets the budget, and with kvpress_budgets, as there, the top of the line.
struct PyramidKVRecipe : VotesByWindow<PyramidKVRecipe, PyramidKVOptions> {
  static constexpr std::string_view kName = "PyramidKV";

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_covers_window(kName, options.budget, shape, options.observation_window);
    detail::require(!options.official_rounding || !options.kvpress_budgets, kName,
                    "kvpress_budgets", options.kvpress_budgets,
                    "must be 0 where official_rounding is 1");
    detail::require(options.beta >= 1.0, kName, "beta", options.beta, "must be >= 1");
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    PyramidRounding rounding =
        options.official_rounding ? PyramidRounding::kOfficial : PyramidRounding::kExact;
    if (options.kvpress_budgets)
      rounding = PyramidRounding::kKvpress;
    return PyramidBudgets(shape, options.budget, options.observation_window, options.beta,
                          rounding);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit_common_options(options, visit);
    visit("beta", options.beta);
    visit("official_rounding", options.official_rounding);
    visit("kvpress_budgets", options.kvpress_budgets);
  }
};

// policy: PyramidKV | `pool_5(sum_w mean_h a[h,t,i])`; budgets fall from layer to layer
//   | last rows of the prompt | - | head | at prompt ends | 4 B per KV head | none | 2406.02069
using PyramidKV = Policy<Composed<PyramidKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_PYRAMIDKV_HPP_
