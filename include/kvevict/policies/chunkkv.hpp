#ifndef KVEVICT_POLICIES_CHUNKKV_HPP_
#define KVEVICT_POLICIES_CHUNKKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct ChunkKVOptions {
  Budget budget = 2048;                       ///< tokens per layer, window included
  std::size_t observation_window = 32;        ///< last tokens of the prompt, whose queries vote
  std::size_t chunk_len = 10;                 ///< tokens that stay or go together (c)
  ChunkScore chunk_score = ChunkScore::kSum;  ///< kvpress: kMean, with chunks of 20
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 1};  ///< kvpress: 5, as SnapKV
  bool fill_rest = false;  ///< what whole chunks leave of the budget goes to the best single tokens
  bool window_in_chunks = false;  ///< chunks run over the window too, and those with the larger
                                  ///< share of it come first (kvpress)
  std::size_t index_reuse = 1;    ///< so many layers in a row keep what the first of them keeps
};

/// Chunks of neighbouring tokens stay or go together, so that phrases stay whole (ChunkKV, arXiv
/// 2502.00299, section 3). Per layer, one set for all its heads:
///
///   score(chunk) = sum over its tokens i, all query heads h and window rows t of a[h, t, i].
///
/// Once, at the end of a prompt: the window stays and the best chunks of the tokens before it, as
/// many as fit in the budget. Whole chunks leave up to chunk_len - 1 tokens of it unused;
/// fill_rest uses them. With index_reuse = r (layer-wise index reuse) the layers r l .. r l + r - 1
/// share layer r l's choice, and only that layer's attention is looked at.
///
/// Chunks are cut from the first token that the cache holds. Pooling is kvpress' (whose base is
/// SnapKV); the paper has none. kvpress gives the window's tokens a score above all others instead
/// of keeping them: window_in_chunks comes to the same.
struct ChunkKVRecipe : CutsPrompts {
  using Options = ChunkKVOptions;
  static constexpr std::string_view kName = "ChunkKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    options.pooling.check(kName);
    chunks(options).check(kName);
    detail::require(options.index_reuse > 0, kName, "index_reuse", options.index_reuse,
                    "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WindowAttention(
               kName, shape,
               {.window = options.observation_window, .heads = HeadReduce::kGroupMean}) |
           Pool{options.pooling} | HeadReduction{GroupReduce::kSum};
  }
  static auto selector(const Options& options) { return WholeChunks(chunks(options)); }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
  static Protection protection(const Options& options) noexcept {
    return {.recent_window = options.window_in_chunks ? 0 : options.observation_window,
            .after_prompt = true};
  }
  static std::size_t scored_layer(const Options& options, std::size_t layer) noexcept {
    return layer - layer % options.index_reuse;
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("chunk_len", options.chunk_len);
    visit("chunk_score", options.chunk_score);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("fill_rest", options.fill_rest);
    visit("window_in_chunks", options.window_in_chunks);
    visit("index_reuse", options.index_reuse);
  }

 private:
  [[nodiscard]] static ChunkOptions chunks(const Options& options) noexcept {
    return {.chunk_len = options.chunk_len,
            .score = options.chunk_score,
            .fill_rest = options.fill_rest,
            .best_newest = options.window_in_chunks ? options.observation_window : 0};
  }
};

// policy: ChunkKV | `sum_chunk sum_H sum_w mean_h a[h,t,i]` | last rows of the prompt | - | layer
//   | at prompt ends | 4 B per KV head | none | 2502.00299
using ChunkKV = Policy<Composed<ChunkKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CHUNKKV_HPP_
