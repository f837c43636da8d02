#ifndef KVEVICT_POLICIES_H2O_HPP_
#define KVEVICT_POLICIES_H2O_HPP_

#include "kvevict/allocation/heavy_and_recent.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the authors' code, int(0.1 L0) of each kind.
struct H2OOptions {
  Budget heavy = Budget::keep_ratio(0.1);   ///< tokens with the largest sums; a share is one of the
                                            ///< first prompt (L0), fixed from then on
  Budget recent = Budget::keep_ratio(0.1);  ///< the newest tokens, the current one included
  MaskScope scope = MaskScope::kHead;       ///< who shares one set of tokens
  bool lifetime_mean = false;  ///< divide a sum by the number of queries that could see the token
  std::size_t num_sink_tokens = 0;  ///< first tokens that always stay, of those that are heavy
  bool cut_between_chunks = false;  ///< cut unfinished prompts too, wherever should_evict is asked:
                                    ///< less memory, but the mask then depends on the chunks
};

/// What H2O and the policies that score its tokens otherwise have in common: a heavy and a recent
/// part. `Self` is the recipe that derives from it.
template <class Self, class O = H2OOptions>
struct KeepsHeavyAndRecent : CutsEveryStep {
  using Options = O;

  static void check(const Options& options, const CacheShape& /*shape*/) {
    for (const auto& [field, budget] :
         {std::pair{"heavy", &options.heavy}, std::pair{"recent", &options.recent}}) {
      detail::require(!budget->is_total(), Self::kName, field, budget->count(),
                      "must be a number of tokens or a share, not a total");
    }
    detail::require(options.heavy.tokens_of(1) > 0 || options.recent.tokens_of(1) > 0, Self::kName,
                    "recent", options.recent.count(), "must be > 0 where heavy is 0");
  }
  static auto allocator(const Options& options, const CacheShape& /*shape*/) {
    return HeavyAndRecent(options.heavy, options.recent, options.cut_between_chunks,
                          options.num_sink_tokens);
  }
  static MaskScope scope(const Options& options) noexcept { return options.scope; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("heavy", options.heavy);
    visit("recent", options.recent);
    visit("scope", options.scope);
    visit("lifetime_mean", options.lifetime_mean);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("cut_between_chunks", options.cut_between_chunks);
  }
};

/// Heavy hitters (H2O, arXiv 2306.14048, section 4 and algorithm 1): per KV head
///
///   score(i) = sum over all queries t so far, prompt and decoding, of mean_h a[h, t, i].
///
/// At the end of a prompt and after every step the newest `recent` tokens stay and the `heavy` best
/// of the others. Sums go with the tokens that stay; a new token starts with what it gives itself.
///
/// The authors' code has one sum per query head; a GQA cache cannot store that, so a group has its
/// mean. Sums favour old tokens, which more queries have seen, and nothing protects a new one that
/// leaves the recent window: with recent = 0 it may go in the step that brought it, and a cache of
/// heavy old tokens can stay closed for good. lifetime_mean divides the advantage of age away
/// (kvpress' ObservedAttention; an attention entry that is not finite then counts as 0).
///
/// A second prompt is cut to the same number of tokens.
struct H2ORecipe : KeepsHeavyAndRecent<H2ORecipe> {
  static constexpr std::string_view kName = "H2O";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return AccumulatedAttention(shape, options.scope, options.lifetime_mean) |
           HeadReduction{GroupReduce::kMean};
  }
};

// policy: H2O | `sum_all mean_h a[h,t,i]` | every row | - | head | at any time | 4 B per KV head
//   | a pass over the row, one over the scores | 2306.14048
using H2O = Policy<Composed<H2ORecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_H2O_HPP_
