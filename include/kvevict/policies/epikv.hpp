#ifndef KVEVICT_POLICIES_EPIKV_HPP_
#define KVEVICT_POLICIES_EPIKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/temporal/hidden_trend.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// The variants of EpiKV that look at hidden states alone.

/// EpiKV: s(t) = z_10(t) - z_21(t) (eq. 3 and 4).
struct EpiKVZScore {
  static constexpr std::string_view kName = "EpiKV";
  static constexpr BandStatistic kStatistic = BandStatistic::kZScore;
  static constexpr std::size_t kFirstA = kEpiKVLayerA, kLastA = kEpiKVLayerA;
  static constexpr std::size_t kFirstB = kEpiKVLayerB, kLastB = kEpiKVLayerB;
  static constexpr double kWeightA = 1.0, kWeightB = 1.0;
};

/// HS-variance: rolling means in place of z-scores (eq. 2), no correction of their trend.
struct EpiKVRollingMean : EpiKVZScore {
  static constexpr std::string_view kName = "EpiKVRaw";
  static constexpr BandStatistic kStatistic = BandStatistic::kMean;
};

/// Band-adaptive: whole bands, g averaged over their layers before the z-score; weights from the
/// bands' correlations .141 and .109 (authors' code).
struct EpiKVBandMean {
  static constexpr std::string_view kName = "EpiKVBands";
  static constexpr BandStatistic kStatistic = BandStatistic::kZScore;
  static constexpr std::size_t kFirstA = 7, kLastA = 13;
  static constexpr std::size_t kFirstB = 18, kLastB = 25;
  static constexpr double kWeightA = 1.29, kWeightB = 1.0;
};

template <class Variant>
struct EpiKVOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::vector<std::size_t> layers_a = {};     ///< zero-based blocks; empty: the paper's, by depth
  std::vector<std::size_t> layers_b = {};     ///< the same for the band that counts against
  double weight_a = Variant::kWeightA;        ///< factor of band A
  double weight_b = Variant::kWeightB;        ///< factor of band B, subtracted
  std::size_t window = 64;                    ///< differences under the rolling statistic (w)
  std::size_t max_rollback = 16;              ///< tokens that truncate takes back without loss
};

/// EpiKV (arXiv 2606.26472): keeps tokens at which the middle of the network moves unusually far
/// and its upper part does not.
///
///   g_l(t) = || h_l(t) - h_l(t - 1) ||_2 after block l, in the step that feeds token t   (1)
///   s(t) = weight_a f(mean over A of g_l) - weight_b f(mean over B of g_l), frozen       (2) - (4)
///
/// with f a rolling statistic of the last w decoded tokens, t included; population deviation,
/// z = 0 for fewer than two values and for equal ones. No attention, no keys, no values.
///
/// Hidden states: each decode step's rows of the layers for which wants_hidden holds, and, in the
/// prompt, those of its last token. Without them the first difference is 0 and enters the window.
/// Left open by the paper: several tokens in a step are scored one by one; a vector that is not
/// finite spoils the two differences it is part of, whose tokens score 0; equal scores keep the
/// older token. A rollback of more than max_rollback tokens leaves shorter windows and a first
/// difference of 0.
///
/// method().scores(): [seq_len] the frozen score of each slot, -infinity where none was given.
///
/// method().streaming(): the same decisions in O(log K) a token, for engines that put the next
/// token where the evicted one was. The policy then only scores, without should_evict, select and
/// apply: push the newest of scores() for every decoded token.
template <class Variant>
struct EpiKVRecipe : detail::EpiKVRules<EpiKVRecipe<Variant>> {
  using Options = EpiKVOptions<Variant>;
  static constexpr std::string_view kName = Variant::kName;

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(
        detail::epikv_trend(kName, options, shape, bands(options, shape), Variant::kStatistic));
  }
  [[nodiscard]] static StreamingTopK streaming(const detail::EpiKVBudget& budget) {
    return budget.streaming();
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("layers_a", options.layers_a);
    visit("layers_b", options.layers_b);
    visit("weight_a", options.weight_a);
    visit("weight_b", options.weight_b);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }

 private:
  [[nodiscard]] static std::vector<LayerBand> bands(const Options& options,
                                                    const CacheShape& shape) {
    return {{detail::epikv_layers(kName, "layers_a", options.layers_a, Variant::kFirstA,
                                  Variant::kLastA, shape.num_layers),
             detail::epikv_weight(kName, "weight_a", options.weight_a)},
            {detail::epikv_layers(kName, "layers_b", options.layers_b, Variant::kFirstB,
                                  Variant::kLastB, shape.num_layers),
             -detail::epikv_weight(kName, "weight_b", options.weight_b)}};
  }
};

// policy: EpiKV | `z_64(g_10) - z_64(g_21)` when i came, `g_l = norm(hid_l(i) - hid_l(i-1))`
//   | hidden states of 2 layers | - | model | decoded tokens
//   | 4 B; fixed: (max_rollback + 2) 4 hidden_size B per layer that it looks at
//   | hidden size + a pass over the scores, or O(log budget) by `streaming()` | 2606.26472
using EpiKV = Policy<Composed<EpiKVRecipe<EpiKVZScore>>>;
// policy: EpiKVRaw | `mean_64(g_10) - mean_64(g_21)` when i came | hidden states of 2 layers | -
//   | model | decoded tokens | 4 B; fixed as `EpiKV` | as `EpiKV` | 2606.26472
using EpiKVRaw = Policy<Composed<EpiKVRecipe<EpiKVRollingMean>>>;
// policy: EpiKVBands | `1.29 z_64(mean g_7..13) - z_64(mean g_18..25)` when i came
//   | hidden states of two bands of layers | - | model | decoded tokens | 4 B; fixed as `EpiKV`
//   | as `EpiKV`, for all layers of the bands | 2606.26472
using EpiKVBands = Policy<Composed<EpiKVRecipe<EpiKVBandMean>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_HPP_
