#ifndef KVEVICT_POLICIES_LAZY_LANES_HPP_
#define KVEVICT_POLICIES_LAZY_LANES_HPP_

#include "kvevict/allocation/streaming_lanes.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/equal_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Policies under which a part of the model keeps its first and its newest tokens, as StreamingLLM
// does, and the other part everything.

struct DuoAttentionOptions {
  /// [layers * KV heads], layer by layer: the trained gates (alpha), large where a head needs its
  /// whole cache
  std::vector<double> head_scores = {};
  double streaming_ratio = 0.5;       ///< in [0, 1], of all heads that stream
  std::size_t num_sink_tokens = 128;  ///< first tokens that a streaming head keeps
  std::size_t recent_window = 256;    ///< newest tokens that it keeps
  bool only_at_prefill_end = false;   ///< cut each prompt once and keep what is decoded (kvpress)
};

/// Heads of low gates stream, retrieval heads keep all (DuoAttention, arXiv 2410.10819, section 2):
/// the round(streaming_ratio L H) lowest gates of all layers and KV heads, halves to even; equal
/// gates stream from the last head on. Window sizes as in the published patterns. kvpress masks
/// once at the end of a prompt; its reported ratio of a short prompt is negative, here nothing
/// goes.
struct DuoAttentionRecipe {
  using Options = DuoAttentionOptions;
  static constexpr std::string_view kName = "DuoAttention";
  static constexpr bool kNeedsArtefact = true;

  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(EqualScores());
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return StreamingHeads(kName, shape, options.head_scores, options.streaming_ratio,
                          detail::saturating_add(options.num_sink_tokens, options.recent_window));
  }
  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.num_sink_tokens > 0 || options.recent_window > 0, kName,
                    "recent_window", options.recent_window,
                    "must be > 0 where num_sink_tokens is 0");
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kHead; }
  static Trigger trigger(const Options& options) noexcept {
    return options.only_at_prefill_end ? Trigger::kPrefillEnd : Trigger::kEveryStep;
  }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens,
            .recent_window = options.recent_window,
            .after_prompt = options.only_at_prefill_end};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("head_scores", options.head_scores);
    visit("streaming_ratio", options.streaming_ratio);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("only_at_prefill_end", options.only_at_prefill_end);
  }
};

/// Threshold: that of Llama-3; 0.65 for Llama-2, 0.8 for Mistral, 0.85 for Qwen.
struct SimLayerKVOptions {
  double lazy_threshold = 0.9;       ///< a layer with more mass on its ends is lazy; 1: none is
  std::size_t num_initial = 4;       ///< first tokens
  std::size_t recent_window = 1024;  ///< newest tokens, those that vote included
  std::size_t num_last = 1;          ///< last queries of the prompt, which vote
};

/// Layers that look at nothing but the first and the newest tokens keep no others (SimLayerKV,
/// arXiv 2410.13846, section 3, as in kvpress): LazyLayers says which are lazy. A lazy layer keeps
/// its first num_initial tokens and its last recent_window - num_last; all others keep all. Once,
/// at the end of a prompt of more than num_initial + recent_window + num_last tokens; what is
/// decoded later is all kept.
///
/// The voting rows are cut to the slots before them without renormalising, and the recent part of
/// their mass ends there, as in kvpress' code.
struct SimLayerKVRecipe : CutsPrompts {
  using Options = SimLayerKVOptions;
  static constexpr std::string_view kName = "SimLayerKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.num_last > 0, kName, "num_last", options.num_last, "must be > 0");
    detail::require(options.recent_window >= options.num_last, kName, "recent_window",
                    options.recent_window, "must be at least num_last");
    detail::require(options.lazy_threshold >= 0.0, kName, "lazy_threshold", options.lazy_threshold,
                    "must be >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WindowAttention(kName, shape,
                           {.window = options.num_last, .heads = HeadReduce::kGroupMean}) |
           HeadReduction{};
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return LazyLayers(shape, options.num_initial, options.recent_window, options.num_last,
                      options.lazy_threshold);
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_initial,
            .recent_window = options.recent_window - options.num_last,
            .after_prompt = true};
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("lazy_threshold", options.lazy_threshold);
    visit("num_initial", options.num_initial);
    visit("recent_window", options.recent_window);
    visit("num_last", options.num_last);
  }
};

// policy: DuoAttention
//   | none: heads of low gates keep the first 128 and the newest 256 tokens, the others all
//   | nothing | gates of heads | head | at any time | none | the mask | 2410.10819
using DuoAttention = Policy<Composed<DuoAttentionRecipe>>;
// policy: SimLayerKV
//   | none: a layer whose last row gives the first and the newest tokens over 0.9 keeps no others
//   | last row of the prompt | - | layer | at prompt ends | 4 B per KV head | none | 2410.13846
using SimLayerKV = Policy<Composed<SimLayerKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_LAZY_LANES_HPP_
