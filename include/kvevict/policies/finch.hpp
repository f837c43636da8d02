#ifndef KVEVICT_POLICIES_FINCH_HPP_
#define KVEVICT_POLICIES_FINCH_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct FinchOptions {
  Budget budget = 1024;                 ///< tokens per KV head, the question included
  std::size_t observation_window = 32;  ///< last tokens of the prompt: the question
  bool undo_dilution = true;            ///< count a row as often as it sees tokens before its own
};

/// What the question looks at stays (Finch, arXiv 2408.00167, section 3): per KV head
///
///   score(i) = sum over the question's rows t of (slots before t) mean_h a[h, t, i],
///
/// so that later rows, whose attention is spread over more tokens, weigh as much as earlier ones.
/// No pooling. Once, at the end of a prompt: the question and the best tokens before it stay.
///
/// The authors put the question behind every chunk of a long document, cut, and go on with what was
/// kept; they turn the kept keys to contiguous positions, which an engine does by
/// for_each_rerotation. kvpress takes a mean over rows, which orders tokens alike. The weight
/// counts slots, those of left padding too.
struct FinchRecipe : CutsPrompts {
  using Options = FinchOptions;
  static constexpr std::string_view kName = "Finch";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WindowAttention(
               kName, shape,
               {.window = options.observation_window,
                .heads = HeadReduce::kGroupMean,
                .row_weight = options.undo_dilution ? RowWeight::kSlotsBefore : RowWeight::kOne}) |
           GroupReduction{GroupReduce::kMean};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("undo_dilution", options.undo_dilution);
  }
};

using Finch = Policy<Composed<FinchRecipe>>;

static_assert(EvictionPolicy<Finch>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_FINCH_HPP_
