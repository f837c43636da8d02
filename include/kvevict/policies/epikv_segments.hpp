#ifndef KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_
#define KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/segment_caps.hpp"
#include "kvevict/temporal/segment_trend.hpp"

#include <concepts>
#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVSegmentOptions {
  Budget budget = 1024;                       ///< most tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t segment_len = 128;              ///< evictable tokens per segment
  std::size_t cap_high = 64;                  ///< kept of a segment of the most important third (R)
  std::size_t cap_middle = 32;                ///< of the middle third (E)
  std::size_t cap_low = 8;                    ///< of the least important third (T)
  std::vector<std::size_t> layers_a = {};     ///< zero-based blocks; empty: block 10, by depth
  std::vector<std::size_t> layers_b = {};     ///< empty: block 21, by depth
  std::size_t window = 64;                    ///< differences under the z-score (w)
  std::size_t max_rollback = 16;              ///< tokens that truncate takes back without loss
};

/// Segment-HS and EpiKV-Seg (EpiKV, arXiv 2606.26472, and the authors' code): when the cache
/// exceeds K, the tokens outside prompt and recent window are cut into segments, these are ranked
/// by importance, and each keeps at most the cap of its third, its best by z_10 - z_21; segments
/// are served oldest first until K is used up. Fewer than K tokens may stay.
///
/// Left open by the paper: segments are counted from the oldest evictable token of the cache as
/// it is now, the last one is short; thirds go by rank (SegmentCaps), not by quantile.
template <class Importance>
struct EpiKVSegmentsRecipe : detail::EpiKVRules<EpiKVSegmentsRecipe<Importance>> {
  using Options = EpiKVSegmentOptions;
  static constexpr std::string_view kName =
      std::same_as<Importance, AttentionEntropy> ? "EpiKVSegmentHS" : "EpiKVSeg";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.segment_len > 0, kName, "segment_len", options.segment_len,
                    "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(SegmentTrend<Importance>(
        shape,
        detail::epikv_trend(kName, options, shape,
                            {{detail::epikv_layers(kName, "layers_a", options.layers_a,
                                                   kEpiKVLayerA, kEpiKVLayerA, shape.num_layers)},
                             {detail::epikv_layers(kName, "layers_b", options.layers_b,
                                                   kEpiKVLayerB, kEpiKVLayerB, shape.num_layers),
                              -1.0}}),
        EpiKVSegmentsRecipe::allocator(options, shape).tokens()));
  }
  static auto selector(const Options& options) {
    return CappedSegments(
        {options.segment_len, {options.cap_high, options.cap_middle, options.cap_low}});
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("segment_len", options.segment_len);
    visit("cap_high", options.cap_high);
    visit("cap_middle", options.cap_middle);
    visit("cap_low", options.cap_low);
    visit("layers_a", options.layers_a);
    visit("layers_b", options.layers_b);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }
};

// policy: EpiKVSegmentHS
//   | as `EpiKV`; segments of 128 keep 64, 32 or 8, most where `a[H,new,.]` has low entropy
//   | newest row, hidden states | - | model | decoded tokens | 8 B; fixed as `EpiKV`
//   | a pass over the row | 2606.26472
using EpiKVSegmentHS = Policy<Composed<EpiKVSegmentsRecipe<AttentionEntropy>>>;
// policy: EpiKVSeg | as `EpiKV`; segments of 128 keep 64, 32 or 8, most where `var_c(k)` is large
//   | hidden states, K | - | model | decoded tokens | 4 B; fixed as `EpiKV` | a pass over K
//   | 2606.26472
using EpiKVSeg = Policy<Composed<EpiKVSegmentsRecipe<KeyVariance>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_
