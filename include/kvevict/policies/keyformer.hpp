#ifndef KVEVICT_POLICIES_KEYFORMER_HPP_
#define KVEVICT_POLICIES_KEYFORMER_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/gumbel_rows.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the authors' code, a cache of 60 % of the first prompt of which 30 % are recent, and
/// the paper's temperatures.
struct KeyformerOptions {
  Budget heavy = Budget::keep_ratio(0.42);   ///< key tokens: those with the largest scores; a share
                                             ///< is one of the first prompt, fixed from then on
  Budget recent = Budget::keep_ratio(0.18);  ///< the newest tokens, the current one included (w)
  MaskScope scope = MaskScope::kHead;        ///< who shares one set of tokens
  bool lifetime_mean = false;  ///< divide a sum by the number of queries that could see the token
  std::size_t num_sink_tokens = 0;  ///< first tokens that always stay, of those that are heavy
  bool cut_between_chunks = false;  ///< cut unfinished prompts too, wherever should_evict is asked
  double tau_init = 1.0;            ///< temperature in the prompt
  double tau_end = 2.0;             ///< temperature of decode step `generation_len`
  std::size_t generation_len = 64;  ///< tokens that will be decoded (T); later ones have tau_end
  bool gumbel_noise = true;         ///< false: temperature alone, no regularisation
  std::uint64_t seed = 0;           ///< of the noise
  std::uint64_t sequence_id = 0;  ///< sequences of one seed with other numbers draw for themselves
};

/// Key tokens by a regularised score (Keyformer, arXiv 2403.09054, section 3 and algorithm 1): H2O
/// whose attention rows are softened, since what was evicted has left the rows more uneven than
/// they were. Per KV head
///
///   score(i) = sum over all queries t so far of mean_h softmax_i( (x[h, t] + g) / tau(t) ),
///
/// x being the logits, g Gumbel noise and tau the temperature that grows while decoding, as
/// GumbelRows has them. The newest `recent` tokens and the `heavy` best of the others stay. Without
/// noise and with both temperatures at 1 this is H2O.
///
/// Chosen here: the mean over the group for GQA (rule R10), where the authors have no groups; their
/// integer parts (int(n kv_cache), int(that recent)) may differ by a token from these two shares;
/// after T steps the temperature stays, theirs grows on. Their noise is drawn anew at each step
/// too, from a running generator. The paper's variant with one score for all layers is left out.
///
/// Costs a logarithm and a power for each entry of each row, prompts included.
struct KeyformerRecipe : KeepsHeavyAndRecent<KeyformerRecipe, KeyformerOptions> {
  static constexpr std::string_view kName = "Keyformer";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return GumbelRows(kName,
                      {.tau_init = options.tau_init,
                       .tau_end = options.tau_end,
                       .generation_len = options.generation_len,
                       .noise = options.gumbel_noise,
                       .seed = options.seed,
                       .sequence_id = options.sequence_id},
                      AccumulatedAttention(shape, options.scope, options.lifetime_mean)) |
           HeadReduction{GroupReduce::kMean};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    KeepsHeavyAndRecent::visit_options(options, visit);
    visit("tau_init", options.tau_init);
    visit("tau_end", options.tau_end);
    visit("generation_len", options.generation_len);
    visit("gumbel_noise", options.gumbel_noise);
    visit("seed", options.seed);
    visit("sequence_id", options.sequence_id);
  }
};

// policy: Keyformer
//   | `sum_all mean_h softmax_i((x[h,t,i] + gumbel) / tau_t)`, tau from 1 in a prompt to 2
//   | every row | - | head | at any time | 4 B per KV head
//   | as `H2O`, a logarithm and a power per entry of the rows | 2403.09054
using Keyformer = Policy<Composed<KeyformerRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_KEYFORMER_HPP_
