#ifndef KVEVICT_POLICIES_BLOCK_EVICTION_HPP_
#define KVEVICT_POLICIES_BLOCK_EVICTION_HPP_

#include "kvevict/allocation/whole_blocks.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/forward_max.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/key_diversity.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooled_attention.hpp"
#include "kvevict/scoring/recent_attention.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/hamming_representatives.hpp"
#include "kvevict/selection/mass_then_diverse.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// Policies for caches of blocks, as OpenVINO GenAI has them (openvino.genai, cache_eviction.cpp):
// whole blocks go, as many in every layer, one set for all heads of a layer.

/// Defaults: OpenVINO GenAI.
struct BlockEvictionOptions {
  std::size_t budget = 672;            ///< tokens per layer, all areas included (max_cache_size)
  std::size_t num_sink_tokens = 32;    ///< first tokens that always stay (start_size)
  std::size_t recent_window = 128;     ///< newest tokens that always stay (recent_size)
  std::size_t block_size = 32;         ///< tokens that stay or go together
  std::size_t observation_window = 8;  ///< last tokens of a prompt, whose queries count
                                       ///< (snapkv_window_size)
  std::size_t pool_width = 7;          ///< slots of the forward maximum; 1: none
};

/// What policies of blocks have in common. `Self` is the recipe that derives from it.
template <class Self, class O>
struct CutsWholeBlocks : CutsEveryStep {
  using Options = O;

  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
  static void check(const Options& options, const CacheShape& /*shape*/) {
    blocks(options).check(Self::kName);
  }
  static WholeBlocks allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    return blocks(options);
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("block_size", options.block_size);
    visit("observation_window", options.observation_window);
    visit("pool_width", options.pool_width);
  }

 protected:
  [[nodiscard]] static WholeBlocks blocks(const Options& options) noexcept {
    return {.budget = options.budget,
            .num_sink_tokens = options.num_sink_tokens,
            .recent_window = options.recent_window,
            .block_size = options.block_size};
  }
  [[nodiscard]] static ChunkOptions chunks(const Options& options) noexcept {
    return {.chunk_len = options.block_size};
  }
};

struct BlockSumOptions : BlockEvictionOptions {
  bool lifetime_mean = true;  ///< divide a token's sum by the queries that could see it (NORM_SUM);
                              ///< false: SUM, which favours old blocks
};

/// Blocks by their accumulated attention: PooledAttention summed over the tokens of a block. The
/// blocks of the largest sums stay, of equal ones the earlier.
///
/// Deviations of OpenVINO's code: of equal blocks it evicts the earlier; a prompt that is fed in
/// chunks pools each chunk's part of the window by itself. A window of 0, all queries, is a window
/// that is longer than any prompt. Means over heads stand for its sums.
struct BlockEvictionRecipe : CutsWholeBlocks<BlockEvictionRecipe, BlockSumOptions> {
  static constexpr std::string_view kName = "BlockEviction";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(PooledAttention(kName, shape,
                                    {.window = options.observation_window,
                                     .pool_width = options.pool_width,
                                     .lifetime_mean = options.lifetime_mean}));
  }
  static auto selector(const Options& options) { return WholeChunks(chunks(options)); }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsWholeBlocks::visit_options(options, visit);
    visit("lifetime_mean", options.lifetime_mean);
  }
};

/// Defaults: OpenVINO GenAI.
struct AdaptiveRKVOptions : BlockEvictionOptions {
  double attention_mass = 0.9;  ///< share of the scores that blocks stay for, in [0, 1]
};

/// Blocks by attention, then by difference (OpenVINO's Adaptive R-KV, after R-KV, arXiv
/// 2505.24133): the mean of the newest `observation_window` rows over all heads, pooled by a
/// forward maximum; the blocks with the largest sums stay until they hold `attention_mass` of what
/// all evictable blocks have, and the rest of the budget goes to the blocks of the most diverse
/// keys (KeyDiversity).
///
/// Deviations of OpenVINO's code: all of a prompt's window are rows of the mean, where it counts
/// their sum as one; rows from before an eviction still count, which makes no difference where a
/// block is as long as the window; keys are compared here, not in the attention kernel.
struct AdaptiveRKVRecipe : CutsWholeBlocks<AdaptiveRKVRecipe, AdaptiveRKVOptions> {
  static constexpr std::string_view kName = "AdaptiveRKV";

  static void check(const Options& options, const CacheShape& shape) {
    CutsWholeBlocks::check(options, shape);
    detail::require(options.pool_width > 0, kName, "pool_width", options.pool_width, "must be > 0");
    detail::require(options.attention_mass >= 0.0 && options.attention_mass <= 1.0, kName,
                    "attention_mass", options.attention_mass, "must be in [0, 1]");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return RecentMeanAttention(kName, shape, options.observation_window) |
           HeadReduction{GroupReduce::kMean} | ForwardMax{options.pool_width};
  }
  static auto selector(const Options& options) {
    return MassThenDiverse(chunks(options), options.attention_mass, KeyDiversity());
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsWholeBlocks::visit_options(options, visit);
    visit("attention_mass", options.attention_mass);
  }
};

/// What KVCrushOver adds to the options of the recipe below it.
template <class Base>
struct KVCrushOptions : Base::Options {
  std::size_t num_representatives = 2;        ///< blocks of the budget that go to representatives;
                                              ///< OpenVINO's default is none
  AnchorPoint anchor = AnchorPoint::kRandom;  ///< what the bits of blocks are compared with
  std::uint64_t anchor_seed = 0;              ///< of a random anchor
};

/// Representatives of what another policy of blocks would evict (KVCrush, arXiv 2503.00022, as
/// OpenVINO GenAI has it): HammingRepresentatives keeps some of its victims.
///
/// Deviations of OpenVINO's code: representatives are part of the budget and not on top of it;
/// bits are made of the scores that the base policy chooses by, also where these are normalised; of
/// equal distances the earlier block comes first; a random anchor is that of the seed in every
/// selection.
template <Recipe Base>
struct KVCrushOver : Base {
  using Options = KVCrushOptions<Base>;
  static constexpr std::string_view kName = "KVCrush";

  static void check(const Options& options, const CacheShape& shape) {
    Base::check(options, shape);
    detail::require(
        options.num_representatives <
            (options.budget - options.num_sink_tokens - options.recent_window) / options.block_size,
        kName, "num_representatives", options.num_representatives,
        "must be less than the evictable blocks of the budget");
  }
  static auto selector(const Options& options) {
    return HammingRepresentatives(Base::selector(options),
                                  {.num_chunks = options.num_representatives,
                                   .chunk_len = options.block_size,
                                   .anchor = options.anchor,
                                   .seed = options.anchor_seed});
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    visit("num_representatives", options.num_representatives);
    visit("anchor", options.anchor);
    visit("anchor_seed", options.anchor_seed);
  }
};

// policy: BlockEviction
//   | `sum_block (fmax_7(sum_w mean_H a[H,t,i]) + sum_decoded fmax_7(mean_H a[H,t,i])) / n_i`, n_i
//     the queries that could see i
//   | last rows of the prompt, newest row | - | layer | at any time
//   | 12 B per layer; during a step 4 B more | a pass over the row and over the scores
//   | openvino.genai
using BlockEviction = Policy<Composed<BlockEvictionRecipe>>;
// policy: AdaptiveRKV
//   | `sum_block fmax_7(mean_w mean_H a[H,t,i])`, w the newest rows; behind 90 % of the mass
//     `-mean_j mean_H cos(k_i, k_j)`, low cosines as 0
//   | newest rows, K | - | layer | at any time
//   | 32 B per KV head (4 B x window 8); scratch 4 (head_dim + 1) B
//   | a pass over the row; a cut compares evictable keys | openvino.genai, 2505.24133
using AdaptiveRKV = Policy<Composed<AdaptiveRKVRecipe>>;
// policy: KVCrush
//   | as `BlockEviction`; of what would go some blocks stay, spread by the Hamming distance of
//     their bits
//   | last rows of the prompt, newest row | - | layer | at any time
//   | 12 B per layer; during a step 4 B more | a pass over the row and over the scores | 2503.00022
using KVCrush = Policy<Composed<KVCrushOver<BlockEvictionRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_BLOCK_EVICTION_HPP_
