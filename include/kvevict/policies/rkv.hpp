#ifndef KVEVICT_POLICIES_RKV_HPP_
#define KVEVICT_POLICIES_RKV_HPP_

#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/key_redundancy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/recent_attention.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cmath>
#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the paper; the authors' code has lambda 0.07 and charge_first.
struct RKVOptions {
  std::size_t budget = 1024;           ///< tokens per KV head that a cut leaves, window included
  std::size_t buffer = 128;            ///< tokens above the budget at which it is time to cut
  std::size_t observation_window = 8;  ///< newest tokens, which stay and whose queries vote (alpha)
  double lambda = 0.1;                 ///< weight of importance; 1: redundancy does not count
  double similarity = 0.5;             ///< cosine from which on two keys are alike
  Pooling pooling = {.kind = PoolKind::kMax, .kernel_size = 7};  ///< over neighbouring tokens
  bool charge_first = false;  ///< LessRedundancy::charge_first, a quirk of the authors' code
};

/// Importance less redundancy, for long chains of thought (R-KV, arXiv 2505.24133, section 3): per
/// KV head, over the tokens before the window,
///
///   Z(i) = lambda I(i) - (1 - lambda) R(i),
///   I = maxpool( mean over the window's rows of softmax over the past( max_h logit_h ) ),
///   R = softmax( mean cosine of key i with the others ), PeakLogitAttention and LessRedundancy.
///
/// Whenever the cache holds budget + buffer tokens, prompt and decoding alike, the window and the
/// best of the rest stay; a prompt is cut at its end. Between cuts nothing is computed but the
/// rows.
///
/// Chosen here: a row's softmax runs over what is cached at the cut, as if its query were kept and
/// asked again. Maximum over logits needs the rows' denominators: from queries they are known, with
/// rows from the engine AttentionRows::log_sums gives them. Left out of the authors' code: the
/// option to spare the first instead of the newest duplicate, which is broken there; cutting where
/// a line ends, which an engine does by asking then; and their share of all that was read as a
/// budget.
struct RKVRecipe : CutsEveryStep {
  using Options = RKVOptions;
  static constexpr std::string_view kName = "RKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    options.pooling.check(kName);
    detail::require(options.buffer > 0, kName, "buffer", options.buffer, "must be > 0");
    detail::require(options.lambda >= 0.0 && options.lambda <= 1.0, kName, "lambda", options.lambda,
                    "must be in [0, 1]");
    detail::require(std::isfinite(options.similarity), kName, "similarity", options.similarity,
                    "must be finite");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return PeakLogitAttention(kName, shape, options.observation_window) | Pool{options.pooling} |
           LessRedundancy{.lambda = static_cast<float>(options.lambda),
                          .threshold = static_cast<float>(options.similarity),
                          .charge_first = options.charge_first};
  }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.observation_window};
  }
  static WholePrompts allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    return {Allocation::in_batches(options.budget, options.buffer)};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("buffer", options.buffer);
    visit("observation_window", options.observation_window);
    visit("lambda", options.lambda);
    visit("similarity", options.similarity);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("charge_first", options.charge_first);
  }
};

// policy: RKV
//   | `0.1 maxpool_7(mean_w softmax_past(max_h x[h,t,i])) - 0.9 softmax(mean_j cos(k_i, k_j))`, w
//     the newest rows
//   | newest rows, K | - | head | at any time
//   | 32 B per KV head (4 B x window 8); scratch 4 (head_dim + 18) B
//   | a pass over the row; a cut compares all keys | 2505.24133
using RKV = Policy<Composed<RKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_RKV_HPP_
