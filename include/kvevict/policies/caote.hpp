#ifndef KVEVICT_POLICIES_CAOTE_HPP_
#define KVEVICT_POLICIES_CAOTE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/output_change.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// CAOTE (arXiv 2504.14051, section 3) turns the scores of another policy, read as attention, into
// how far the attention output would move without the token:
//
//   c_j = a_j / (1 - a_j) |X - v_j|_2,  X = sum_i a_i v_i,
//
// and FastCAOTE takes the plain mean of the cached values for X. The tokens of least c go. Errors
// of several tokens do not add up: cutting many at once is the greedy reading, cutting at every
// step comes closest to the derivation.
//
// Open in the paper and chosen here: c is taken per query head, then the mean over the heads that
// share a set of tokens; the norm is not squared, which would weigh heads otherwise. Everything but
// the score is the base policy's: its options, its protection, who shares a set. The paper feeds
// prompts in chunks of 128 and cuts between them.

/// CAOTE over TOVA: a is the newest token's row as it is, which makes c exact for the next step.
template <OutputEstimate kEstimate>
struct TOVACAOTERecipe : TOVARecipe {
  static constexpr std::string_view kName =
      kEstimate == OutputEstimate::kExact ? "TOVACAOTE" : "TOVAFastCAOTE";

  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return LastRowAttention(shape, HeadReduce::kNone) | OutputChange{kEstimate} |
           HeadReduction{GroupReduce::kMean};
  }
};

/// CAOTE over H2O: sums over rows are no distribution, so each query head's are divided by their
/// sum first.
template <OutputEstimate kEstimate>
struct H2OCAOTERecipe : KeepsHeavyAndRecent<H2OCAOTERecipe<kEstimate>> {
  static constexpr std::string_view kName =
      kEstimate == OutputEstimate::kExact ? "H2OCAOTE" : "H2OFastCAOTE";

  static auto pipeline(const H2OOptions& options, const CacheShape& shape) {
    return AccumulatedAttention(shape, options.scope, options.lifetime_mean, HeadReduce::kNone) |
           SumToOne{} | OutputChange{kEstimate} | HeadReduction{GroupReduce::kMean};
  }
};

// policy: TOVACAOTE
//   | `mean_H a_i / (1 - a_i) norm(X - v_i)`, `a_i = a[H,new,i]`, `X = sum_j a_j v_j`
//   | newest row, V | - | layer | at any time | 4 B per query head
//   | as `TOVA`, a pass over V per query head | 2504.14051
using TOVACAOTE = Policy<Composed<TOVACAOTERecipe<OutputEstimate::kExact>>>;
// policy: TOVAFastCAOTE | as `TOVACAOTE`, `X = mean_j v_j` | newest row, V | - | layer
//   | at any time | 4 B per query head | as `TOVA`, a pass over V per query head | 2504.14051
using TOVAFastCAOTE = Policy<Composed<TOVACAOTERecipe<OutputEstimate::kMeanValue>>>;
// policy: H2OCAOTE
//   | `mean_h A_i / (1 - A_i) norm(X - v_i)`, `A = sum_all a[h,t,.]` scaled to sum 1, `X = sum_j
//     A_j v_j`
//   | every row, V | - | head | at any time | 4 B per query head
//   | as `H2O`, a pass over V per query head | 2504.14051
using H2OCAOTE = Policy<Composed<H2OCAOTERecipe<OutputEstimate::kExact>>>;
// policy: H2OFastCAOTE | as `H2OCAOTE`, `X = mean_j v_j` | every row, V | - | head | at any time
//   | 4 B per query head | as `H2O`, a pass over V per query head | 2504.14051
using H2OFastCAOTE = Policy<Composed<H2OCAOTERecipe<OutputEstimate::kMeanValue>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CAOTE_HPP_
