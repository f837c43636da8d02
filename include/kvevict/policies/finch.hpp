#ifndef KVEVICT_POLICIES_FINCH_HPP_
#define KVEVICT_POLICIES_FINCH_HPP_

#include "kvevict/allocation/chunk_shares.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/chunk_quotas.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct FinchOptions {
  Budget budget = 1024;                 ///< tokens per KV head, the question included
  std::size_t observation_window = 32;  ///< last tokens of the prompt: the question
  bool undo_dilution = true;            ///< count a row as often as it sees tokens before its own
  std::size_t chunk_len =
      0;  ///< > 0: so many tokens in a row keep the budget's share by themselves
};

/// What the question looks at stays (Finch, arXiv 2408.00167, section 3): per KV head
///
///   score(i) = sum over the question's rows t of (slots before t) mean_h a[h, t, i],
///
/// so that later rows, whose attention is spread over more tokens, weigh as much as earlier ones.
/// No pooling. Once, at the end of a prompt: the question and the best tokens before it stay.
///
/// With chunk_len the budget, a share then, is one of each chunk of the prompt: its best tokens
/// stay, at least one (rule R6), so that no part of a document is left out (kvpress). The question
/// stays whole even where its chunk's share is smaller, and so does all that was cached before the
/// prompt; kvpress cuts both.
///
/// The authors put the question behind every chunk of a long document, cut, and go on with what was
/// kept; they turn the kept keys to contiguous positions, which an engine does by
/// for_each_rerotation. kvpress takes a mean over rows, which orders tokens alike. The weight
/// counts slots, those of left padding too.
struct FinchRecipe : CutsPrompts {
  using Options = FinchOptions;
  static constexpr std::string_view kName = "Finch";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.chunk_len == 0 || options.budget.is_share(), kName, "budget",
                    options.budget.count(), "must be a share where chunk_len is > 0");
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return ChunkShares(chunks(options), shape, scope(options));
  }
  static auto selector(const Options& options) { return ChunkQuotas(chunks(options)); }
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
    visit("chunk_len", options.chunk_len);
  }

 private:
  [[nodiscard]] static ChunkShareOptions chunks(const Options& options) noexcept {
    return {.budget = options.budget,
            .chunk_len = options.chunk_len,
            .window = options.observation_window};
  }
};

// policy: Finch | `sum_w (slots before t) mean_h a[h,t,i]` | last rows of the prompt | - | head
//   | at prompt ends | 4 B per KV head | none | 2408.00167
using Finch = Policy<Composed<FinchRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_FINCH_HPP_
