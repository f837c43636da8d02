#ifndef KVEVICT_POLICIES_COMPACTOR_HPP_
#define KVEVICT_POLICIES_COMPACTOR_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/blend.hpp"
#include "kvevict/scoring/chunk_attention.hpp"
#include "kvevict/scoring/leverage.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/equal_quotas.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// The parts of Compactor (arXiv 2507.08143), which asks what a context is worth before any question
// about it is known.

struct LeverageOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
  std::size_t sketch_dim = 48;       ///< columns of the random projection
  std::uint64_t seed = 0;            ///< of the projection, where none is given
  RotaryEmbedding rotary = {};       ///< of the model: keys are read as they were before it
  /// [num_kv_heads, head_dim, sketch_dim], in the place of a seeded one.
  std::shared_ptr<const KeySketch> key_sketch = nullptr;
};

/// Keys that others do not span stay (Compactor, section 3, leverage alone): score = approximate
/// statistical leverage of the key, as KeyLeverage says. No attention is needed.
///
/// kvpress then takes the z-score over all heads of a layer, which orders no head otherwise. It
/// raises the ridge where a factorisation fails; sums in double do not need that.
struct LeverageRecipe : CutsByCacheScore {
  using Options = LeverageOptions;
  static constexpr std::string_view kName = "Leverage";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(LeverageOfKeys(KeyLeverage(kName, shape,
                                               {.rotary = options.rotary,
                                                .sketch_dim = options.sketch_dim,
                                                .seed = options.seed,
                                                .sketch = options.key_sketch})));
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("sketch_dim", options.sketch_dim);
    visit("seed", options.seed);
  }
};

struct NonCausalOptions {
  Budget budget = 1024;              ///< tokens per KV head
  std::size_t chunk_len = 256;       ///< tokens that attend to each other
  std::size_t pool_kernel_size = 3;  ///< of an average over neighbours, zeros counted; odd
  bool padded_last_chunk = false;    ///< fill a last chunk that is short with zeros (kvpress)
};

/// Attention that every token of a chunk gives every other (Compactor, section 3, attention alone):
///
///   score(i) = average over neighbours of ( |v_i|_2 mean_h sum_t softmax_i(q_t k_i) ),
///
/// t and i in the same chunk, no causal mask, no 1 / sqrt(d). Once, at the end of a prompt. Tokens
/// of an earlier prompt, and what was decoded before this one, have no score then and go first.
///
/// kvpress fills the last chunk with keys and queries of 0 that are not masked, so that its tokens
/// lose attention to nothing and gain from it; padded_last_chunk does the same. Its z-score over
/// all heads orders no head otherwise.
struct NonCausalRecipe : CutsPrompts {
  using Options = NonCausalOptions;
  static constexpr std::string_view kName = "NonCausal";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    pooling(options).check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return ChunkAttention(
               kName, shape,
               {.chunk_len = options.chunk_len, .padded_last_chunk = options.padded_last_chunk}) |
           TimesValues{ValueFactor::kNorm} | Pool{pooling(options)};
  }
  static Protection protection(const Options& /*options*/) noexcept {
    return {.after_prompt = true};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("chunk_len", options.chunk_len);
    visit("pool_kernel_size", options.pool_kernel_size);
    visit("padded_last_chunk", options.padded_last_chunk);
  }

 private:
  [[nodiscard]] static Pooling pooling(const Options& options) noexcept {
    return {.kind = PoolKind::kAverage, .kernel_size = options.pool_kernel_size};
  }
};

struct CompactorOptions {
  Budget budget = 1024;              ///< tokens per KV head, the protected ones included
  std::size_t num_sink_tokens = 8;   ///< first tokens, which stay and have no part in the scores
  std::size_t recent_window = 4;     ///< last tokens of the prompt, likewise
  std::size_t chunk_len = 256;       ///< tokens that attend to each other
  std::size_t pool_kernel_size = 3;  ///< of an average over neighbours, zeros counted; odd
  double blending = -1.0;  ///< weight of leverage; below 0: the share that the budget takes away
  std::size_t sketch_dim = 48;     ///< columns of the random projection
  std::uint64_t seed = 0;          ///< of the projection, where none is given
  bool padded_last_chunk = false;  ///< fill a last chunk that is short with zeros (kvpress)
  RotaryEmbedding rotary = {};     ///< of the model: leverage reads keys as they were before it
  /// [num_kv_heads, head_dim, sketch_dim], in the place of a seeded one.
  std::shared_ptr<const KeySketch> key_sketch = nullptr;
};

/// What a context is worth before a question about it is known (Compactor, arXiv 2507.08143):
///
///   score(i) = z(attention inside chunks, as NonCausal) + blending z(leverage, as Leverage),
///
/// z-scores over the tokens between the first and the last few of the prompt and over all KV heads
/// of a layer. Once, at the end of a prompt. Each head has its own budget: heads are compared, but
/// do not compete.
struct CompactorRecipe : CutsPrompts {
  using Options = CompactorOptions;
  static constexpr std::string_view kName = "Compactor";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    pooling(options).check(kName);
    detail::require(std::isfinite(options.blending), kName, "blending", options.blending,
                    "must be finite");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return ChunkAttention(kName, shape,
                          {.chunk_len = options.chunk_len,
                           .num_sink_tokens = options.num_sink_tokens,
                           .num_last_tokens = options.recent_window,
                           .padded_last_chunk = options.padded_last_chunk}) |
           TimesValues{ValueFactor::kNorm} | Pool{pooling(options)} |
           BlendWithLeverage{KeyLeverage(kName, shape,
                                         {.rotary = options.rotary,
                                          .sketch_dim = options.sketch_dim,
                                          .seed = options.seed,
                                          .sketch = options.key_sketch}),
                             options.num_sink_tokens, options.recent_window, options.blending,
                             options.budget};
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget, .competition = Competition::kLayer};
  }
  static EqualQuotas selector(const Options& /*options*/) noexcept { return {}; }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens,
            .recent_window = options.recent_window,
            .after_prompt = true};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("chunk_len", options.chunk_len);
    visit("pool_kernel_size", options.pool_kernel_size);
    visit("blending", options.blending);
    visit("sketch_dim", options.sketch_dim);
    visit("seed", options.seed);
    visit("padded_last_chunk", options.padded_last_chunk);
  }

 private:
  [[nodiscard]] static Pooling pooling(const Options& options) noexcept {
    return {.kind = PoolKind::kAverage, .kernel_size = options.pool_kernel_size};
  }
};

// policy: Leverage
//   | `y_i (Y^T Y + ridge I)^-1 y_i`, `y_i = (k_i - mean k) sketch`, k before rotary embedding | K
//   | - | head | at any time | none | one pass over K, sketch_dim head_dim a token | 2507.08143
using Leverage = Policy<Composed<LeverageRecipe>>;
// policy: NonCausal | `pool_3(norm(v_i) mean_h sum_chunk softmax_chunk(q_t k_i))`, no causal mask
//   | queries of the prompt, K, V | - | head | at prompt ends
//   | 4 B per KV head; fixed, in a prompt: 4 chunk_len head_dim B per query head | none
//   | 2507.08143
using NonCausal = Policy<Composed<NonCausalRecipe>>;
// policy: Compactor | `z(s_i) + b z(l_i)`, s as `NonCausal`, l as `Leverage`, b the share that goes
//   | queries of the prompt, K, V | - | head | at prompt ends
//   | 4 B per KV head; fixed, in a prompt: 4 chunk_len head_dim B per query head; scratch 4 B per
//     KV head of a layer
//   | none | 2507.08143
using Compactor = Policy<Composed<CompactorRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_COMPACTOR_HPP_
