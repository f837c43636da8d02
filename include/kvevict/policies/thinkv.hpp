#ifndef KVEVICT_POLICIES_THINKV_HPP_
#define KVEVICT_POLICIES_THINKV_HPP_

#include "kvevict/allocation/segment_shares.hpp"
#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/key_clusters.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/thought_segments.hpp"
#include "kvevict/selection/segment_representatives.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the paper, but for the thresholds, which it calibrates for each model, and for budget
/// and rounds, which it leaves open.
struct ThinKVOptions {
  std::size_t budget = 1024;             ///< tokens per KV head, prompts included
  std::size_t segment_len = 128;         ///< decoded tokens that are one thought (tau)
  double execution_below = 0.5;          ///< sparsity below which a thought is execution: calibrate
  double transition_from = 0.8;          ///< sparsity from which on it is a transition: calibrate
  std::vector<std::size_t> layers = {};  ///< whose attention tells (four of them); empty: all
  std::vector<std::size_t> schedule = {64, 32, 16, 8, 4};  ///< tokens of a thought, level by level
  std::size_t max_rounds = 10;                             ///< of k-means
};

/// Thoughts of a chain of thought fade (ThinKV, arXiv 2510.01290): the part of it that evicts, and
/// so no quantisation. Decoded tokens come in segments of segment_len; how sparse their attention
/// is says whether a segment is reasoning, execution or a transition. Whenever a transition ends,
/// all before it move one step down the schedule; where the cache exceeds the budget without, the
/// oldest of the least important does (ThoughtSegments). Of a segment those tokens stay that are
/// nearest to the centroids of k-means over its keys, after RoPE, per KV head (KeyClusters). All
/// heads keep equally many.
///
/// Chosen here: it is time to cut whenever the budget is exceeded, not every segment_len steps;
/// prompts stay whole, and a prompt above the budget leaves nothing for decoding, so that segments
/// go below the schedule's end; a segment is told by all of its own rows; the first centroids are
/// spaced evenly, so that nothing depends on chance. The paper finds layers and thresholds offline
/// by a density estimate over a hundred prompts, which is left to the user. Padding counts as
/// sparse.
struct ThinKVRecipe : CutsEveryStep {
  using Options = ThinKVOptions;
  static constexpr std::string_view kName = "ThinKV";
  static constexpr bool kNeedsArtefact = true;  // layers and thresholds

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(ThoughtSegments(kName, shape,
                                    {.segment_len = options.segment_len,
                                     .execution_below = options.execution_below,
                                     .transition_from = options.transition_from,
                                     .layers = options.layers,
                                     .schedule = options.schedule}));
  }
  static SegmentShares allocator(const Options& options, const CacheShape& shape) {
    return {options.budget, shape.num_layers * shape.num_kv_heads};
  }
  static auto selector(const Options& options) {
    return SegmentRepresentatives(options.budget, KeyClusters(options.max_rounds));
  }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kDecodeSteps; }
  static Protection protection(const Options& /*options*/) noexcept { return {.prompt = true}; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("segment_len", options.segment_len);
    visit("execution_below", options.execution_below);
    visit("transition_from", options.transition_from);
    visit("layers", options.layers);
    visit("schedule", options.schedule);
    visit("max_rounds", options.max_rounds);
  }
};

// policy: ThinKV
//   | nearest to the centroids of k-means over the keys of a segment; 64, 32, 16, 8 or 4 of 128
//     stay, by what attention tells of it
//   | newest rows of the layers that tell, K | layers and thresholds | head | decoded tokens
//   | none; 40 B for each segment of 128; scratch 8 segment_len head_dim B
//   | a pass over the rows; a cut clusters keys of a segment | 2510.01290 (eviction only)
using ThinKV = Policy<Composed<ThinKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_THINKV_HPP_
