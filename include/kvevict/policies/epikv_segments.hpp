#ifndef KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_
#define KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/token_variance.hpp"
#include "kvevict/selection/segment_caps.hpp"
#include "kvevict/temporal/hidden_trend.hpp"
#include "kvevict/temporal/step_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// What makes a segment important: importance(input, slots) of its candidate slots, higher = more,
// and what an engine has to hand over for it.

/// Segment-HS: low entropy of the newest token's attention inside the segment, the row averaged
/// over the query heads of the last four layers. A segment without any attention counts as evenly
/// attended.
class AttentionEntropy {
 public:
  static constexpr std::string_view kName = "EpiKVSegmentHS";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  explicit AttentionEntropy(const CacheShape& shape) : shape_(shape), row_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(row_); }
  [[nodiscard]] bool wants_layer(std::size_t layer) const noexcept {
    return layer + kNumLayers >= shape_.num_layers;
  }
  std::size_t observe_rows(const GroupRows& rows, const kernels::KernelSet& kernel) noexcept {
    const std::size_t layers = std::min(kNumLayers, shape_.num_layers);
    return add_rows(rows, 1.0F / static_cast<float>(layers * shape_.num_q_heads), kernel,
                    row_.values());
  }
  [[nodiscard]] float importance(const ScoreInput& /*input*/,
                                 std::span<const std::uint32_t> slots) const noexcept {
    double sum = 0.0;
    for (const std::uint32_t slot : slots)
      sum += static_cast<double>(row_.values()[slot]);
    if (!(sum > 0.0))
      return -std::log(static_cast<float>(slots.size()));
    double entropy = 0.0;
    for (const std::uint32_t slot : slots) {
      const double share = static_cast<double>(row_.values()[slot]) / sum;
      if (share > 0.0)
        entropy -= share * std::log(share);
    }
    return static_cast<float>(-entropy);
  }

 private:
  static constexpr std::size_t kNumLayers = 4;

  CacheShape shape_;
  StepSum row_;
};

/// EpiKV-Seg: high mean key variance (token_variances). Needs no attention.
class KeyVariance {
 public:
  static constexpr std::string_view kName = "EpiKVSeg";
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  explicit KeyVariance(const CacheShape& /*shape*/) noexcept {}

  [[nodiscard]] std::tuple<> state() noexcept { return {}; }
  [[nodiscard]] float importance(const ScoreInput& input,
                                 std::span<const std::uint32_t> slots) const {
    const std::size_t first = slots.front();
    const std::span<float> variances = input.scratch.floats(2, slots.back() + 1 - first);
    token_variances(input.view, KvPart::kKeys, first, input.kernel, input.scratch, variances);
    double sum = 0.0;
    for (const std::uint32_t slot : slots)
      sum += static_cast<double>(variances[slot - first]);
    return static_cast<float>(sum / static_cast<double>(slots.size()));
  }
};

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
class EpiKVSegmentsMethod : public detail::EpiKVRules {
 public:
  using Options = EpiKVSegmentOptions;
  static constexpr std::string_view kName = Importance::kName;
  static constexpr Inputs kRequiredInputs = Inputs::kHiddenStates | Importance::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Importance::kAttentionUse;

  EpiKVSegmentsMethod(const Options& options, const CacheShape& shape)
      : EpiKVRules(kName, shape, options.budget, options.recent_window),
        caps_{options.segment_len, {options.cap_high, options.cap_middle, options.cap_low}},
        hidden_(shape,
                {{detail::epikv_layers(kName, "layers_a", options.layers_a, kEpiKVLayerA,
                                       kEpiKVLayerA, shape.num_layers)},
                 {detail::epikv_layers(kName, "layers_b", options.layers_b, kEpiKVLayerB,
                                       kEpiKVLayerB, shape.num_layers),
                  -1.0}},
                BandStatistic::kZScore,
                detail::epikv_window(kName, options.window, options.max_rollback),
                options.max_rollback),
        importance_(shape) {
    detail::require(options.segment_len > 0, kName, "segment_len", options.segment_len,
                    "must be > 0");
  }

  [[nodiscard]] auto state() noexcept {
    return std::tuple_cat(std::tie(hidden_), importance_.state());
  }

  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept { return hidden_.wants(layer); }
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) {
    return hidden_.observe(layer, rows, sequence, kernel);
  }
  /// The newest row, and that only in a step that cuts.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    const bool cuts = decoded_in_step(sequence) > 0 && sequence.seq_len(0) > budget();
    return cuts && importance_.wants_layer(layer) ? 1 : 0;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) noexcept {
    return importance_.observe_rows(rows, kernel);
  }

  void score(const ScoreInput& /*input*/, std::size_t /*lane*/,
             std::span<float> out) const noexcept {
    std::copy(hidden_.scores().begin(), hidden_.scores().end(), out.begin());
  }
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    const std::size_t held = detail::count_bits(lanes[0].keep);
    segments_.run(
        caps_, budget() > held ? budget() - held : 0, lanes[0],
        [&](std::span<const std::uint32_t> slots) { return importance_.importance(input, slots); });
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

 private:
  SegmentCapOptions caps_;
  HiddenTrend hidden_;
  Importance importance_;
  mutable SegmentCaps segments_;  // scratch of select
};

// policy: EpiKVSegmentHS
//   | as `EpiKV`; segments of 128 keep 64, 32 or 8, most where `a[H,new,.]` has low entropy
//   | newest row, hidden states | - | model | decoded tokens | 8 B; fixed as `EpiKV`
//   | a pass over the row | 2606.26472
using EpiKVSegmentHS = Policy<EpiKVSegmentsMethod<AttentionEntropy>>;
// policy: EpiKVSeg | as `EpiKV`; segments of 128 keep 64, 32 or 8, most where `var_c(k)` is large
//   | hidden states, K | - | model | decoded tokens | 4 B; fixed as `EpiKV` | a pass over K
//   | 2606.26472
using EpiKVSeg = Policy<EpiKVSegmentsMethod<KeyVariance>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_SEGMENTS_HPP_
