#ifndef KVEVICT_POLICIES_TRIATTENTION_HPP_
#define KVEVICT_POLICIES_TRIATTENTION_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/query_centres.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/equal_quotas.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Who shares a set of tokens, and what its score is.
enum class TriAttentionMode : std::uint8_t {
  kPerLayerHead,  ///< each layer and KV head has its own
  kPerHead,       ///< the KV heads of one number share theirs over layers: mean over layers
  kUnion,         ///< one for all: maximum over layers and heads
};

[[nodiscard]] constexpr auto enum_names(TriAttentionMode /*type*/) noexcept {
  return std::array<std::pair<std::string_view, TriAttentionMode>, 3>{
      {{"per_layer_head", TriAttentionMode::kPerLayerHead},
       {"per_head", TriAttentionMode::kPerHead},
       {"union", TriAttentionMode::kUnion}}};
}

struct TriAttentionOptions {
  static constexpr std::size_t kDefaultLayer = std::numeric_limits<std::size_t>::max();

  std::size_t budget = 2048;        ///< tokens per KV head that a cut leaves, all included (B)
  std::size_t interval = 128;       ///< tokens above the budget at which it is time to cut (beta)
  bool protect_prompt = true;       ///< as far as the budget goes; the oldest of it first
  std::size_t num_sink_tokens = 4;  ///< first tokens that always stay
  std::size_t recent_window = 128;  ///< newest tokens that always stay
  TriAttentionMode mode = TriAttentionMode::kPerLayerHead;  ///< who shares a set of tokens
  /// First layer whose heads are asked where layers share a set. By default the middle of the model
  /// for kUnion, 0 for kPerHead.
  std::size_t first_layer = kDefaultLayer;
  std::size_t largest_offset = 65536;                ///< distances are 1, 2, 4, .. up to it
  OffsetReduce offset_reduce = OffsetReduce::kMean;  ///< over the distances
  bool use_distance = true;                          ///< false: without S_trig (disable_trig)
  BandWeight band_weight = BandWeight::kResidual;    ///< of S_norm (kWhole: disable_mlr)
  bool normalise = true;         ///< z-scores per query head, before heads are compared
  std::size_t min_queries = 64;  ///< until a head saw so many, it keeps the newest tokens
  RotaryEmbedding rotary = {};   ///< of the model, attention_scaling included; needed
  /// Of the model, with lengths of bands; needed for TriAttentionStats, refused by TriAttention.
  std::shared_ptr<const QueryStatistics> query_statistics = nullptr;
};

/// Before rotary embedding the queries of a head gather around a centre that is not zero, so the
/// centre stands for all queries to come, and what a key will be asked for depends on distance
/// alone (TriAttention, arXiv 2604.04921): per query head
///
///   z = (S - mean) / max(deviation, 1e-6) over the tokens that may go, S as QueryCentres says,
///
/// then the maximum over the query heads of each KV head, then as TriAttentionMode says. Whenever
/// the cache holds budget + interval tokens, the prompt, the newest tokens and the best stay. A
/// prompt is cut at its end. Between cuts nothing is computed but statistics.
///
/// The authors gather statistics offline, over any text; that is TriAttentionStats. TriAttention
/// gathers them from the queries of this sequence, prompt and decoding, as attention used them,
/// turned back: after some 256 queries of ordinary text it scores as well, but a repetitive prompt
/// spoils it. Engines whose queries differ (the norm of Qwen3) hand over what attention used.
///
/// Chosen here, where the authors' programs differ from each other:
/// - kPerLayerHead by default; kPerHead is what their tables were run with. Their step of votes
///   before the maximum of kUnion changes no result and is left out.
/// - The budget includes what is protected. A prompt beyond it gives way to the newest tokens and
///   one more; the authors' code then drops all that was decoded.
/// - Four sinks and the newest 128 tokens stay; in the authors' code for Hugging Face none does.
/// - Ties go to the lower slot; they add noise of 1e-6.
/// - Channels that do not turn are left out. Tables whose frequencies change with the length of the
///   text (dynamic NTK, LongRoPE) do not fit: keys in the cache keep the old ones.
template <bool kGiven>
struct TriAttentionRecipe {
  using Options = TriAttentionOptions;
  static constexpr std::string_view kName = kGiven ? "TriAttentionStats" : "TriAttention";
  static constexpr bool kNeedsArtefact = kGiven;

  static void check(const Options& options, const CacheShape& shape) {
    detail::require(options.interval > 0, kName, "interval", options.interval, "must be > 0");
    detail::require(first_layer(options, shape) < shape.num_layers, kName, "first_layer",
                    options.first_layer, "must be < num_layers");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    const std::size_t first = first_layer(options, shape);
    return QueryCentres<kGiven>(kName, shape,
                                {.rotary = options.rotary,
                                 .largest_offset = options.largest_offset,
                                 .offset_reduce = options.offset_reduce,
                                 .use_distance = options.use_distance,
                                 .band_weight = options.band_weight,
                                 .min_queries = options.min_queries,
                                 .first_layer = first,
                                 .statistics = options.query_statistics}) |
           when(options.normalise, StandardScores{}) | GroupReduction{GroupReduce::kMax} |
           HeadReduction{GroupReduce::kMax, first} |
           when(options.mode == TriAttentionMode::kPerHead, MeanOverLayers{first});
  }
  static WholePrompts allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    Allocation allocation = Allocation::in_batches(options.budget, options.interval);
    if (options.mode == TriAttentionMode::kPerHead)
      allocation.competition = Competition::kModel;
    return {allocation};
  }
  static EqualQuotas selector(const Options& /*options*/) noexcept { return {}; }
  static MaskScope scope(const Options& options) noexcept {
    return options.mode == TriAttentionMode::kUnion ? MaskScope::kModel : MaskScope::kHead;
  }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kEveryStep; }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens,
            .recent_window = options.recent_window,
            .prompt = options.protect_prompt,
            .prompt_gives_way = true};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("interval", options.interval);
    visit("protect_prompt", options.protect_prompt);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("mode", options.mode);
    visit("first_layer", options.first_layer);
    visit("largest_offset", options.largest_offset);
    visit("offset_reduce", options.offset_reduce);
    visit("use_distance", options.use_distance);
    visit("band_weight", options.band_weight);
    visit("normalise", options.normalise);
    visit("min_queries", options.min_queries);
  }

 private:
  [[nodiscard]] static std::size_t first_layer(const Options& options,
                                               const CacheShape& shape) noexcept {
    if (options.mode == TriAttentionMode::kPerLayerHead)
      return 0;
    if (options.first_layer != Options::kDefaultLayer)
      return options.first_layer;
    return options.mode == TriAttentionMode::kUnion ? shape.num_layers / 2 : 0;
  }
};

// policy: TriAttention
//   | `max_h z(sum_f Re(u_f conj(k_f)) + c_f abs(k_f))` over bands f of channels, u the mean query
//     turned to come, c what it leaves out of their length
//   | queries, K | - | head | at any time
//   | none; fixed: statistics of queries, 12 head_dim B per query head
//   | head_dim per query head; a cut: a pass over K | 2604.04921
using TriAttention = Policy<Composed<TriAttentionRecipe<false>>>;
// policy: TriAttentionStats | as `TriAttention` | K | statistics of queries | head | at any time
//   | none | none; a cut: a pass over K | 2604.04921
using TriAttentionStats = Policy<Composed<TriAttentionRecipe<true>>>;

/// What `policy` gathered so far: to look at, to save (query_statistics_bytes), or to give to
/// TriAttentionStats.
[[nodiscard]] inline const QueryStatistics& gathered_statistics(
    const TriAttention& policy) noexcept {
  return policy.method().parts().signal().queries().statistics();
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_TRIATTENTION_HPP_
