#ifndef KVEVICT_POLICIES_EPIKV_LAG_HPP_
#define KVEVICT_POLICIES_EPIKV_LAG_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/lag_deviation.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/late_scores.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVLagOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t chunk_len = 128;  ///< tokens per chunk; each is scaled by the one before
  bool frozen = false;  ///< keep a token's first score instead of scoring anew at every eviction
};

/// Lag-KV and Lag-KV-key (EpiKV, arXiv 2606.26472): score(t) = u_K(t) + u_V(t), or u_K(t) alone,
/// the deviation over channels of the token's lag-scaled key and value (LagDeviation).
///
/// Paper and code disagree on the life of a score. As published in code (default): everything is
/// scored anew at each eviction over the compacted cache, so chunk borders move with what goes,
/// and the result depends on the order of evictions. As in section 3.3 (`frozen`): a token keeps
/// the score that it has at the first eviction at which it is a candidate. The chunk it is scaled
/// by is then whatever the cache held at that time.
///
/// Recomputed, a step costs O(layers * kv_heads * K * head_dim); frozen, a few chunks. There is no
/// streaming() as in EpiKV: chunks are of tokens in order, and a cache in which the next token
/// takes the evicted one's slot has lost it.
template <bool kWithValues>
class EpiKVLagMethod : public detail::EpiKVRules {
 public:
  using Options = EpiKVLagOptions;
  static constexpr std::string_view kName = kWithValues ? "EpiKVLag" : "EpiKVLagKey";
  static constexpr Inputs kRequiredInputs =
      kWithValues ? Inputs::kKeys | Inputs::kValues : Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  EpiKVLagMethod(const Options& options, const CacheShape& shape)
      : EpiKVRules(kName, shape, options.budget, options.recent_window),
        options_(options),
        frozen_(shape) {
    detail::require(options.chunk_len > 0, kName, "chunk_len", options.chunk_len, "must be > 0");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(frozen_); }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const {
    std::fill(out.begin(), out.end(), 0.0F);
    std::size_t first = 0;
    if (options_.frozen) {
      first = out.size();
      for_each_decoded_slot(input.sequence, lane, [&](std::size_t slot) {
        if (!frozen_.is_frozen(slot))
          first = std::min(first, slot);
      });
    }
    LagDeviation deviation(input.view, options_.chunk_len, input.kernel, input.scratch);
    deviation.add(KvPart::kKeys, first, out);
    if constexpr (kWithValues)
      deviation.add(KvPart::kValues, first, out);
    if (!options_.frozen)
      return;
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      if (frozen_.is_frozen(slot))
        out[slot] = frozen_.values()[slot];
    }
  }
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& /*input*/) const {
    if (!options_.frozen)
      return;
    frozen_.clear_proposals();
    detail::for_each_bit(lanes[0].candidates,
                         [&](std::size_t slot) { frozen_.propose(slot, lanes[0].scores[slot]); });
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("chunk_len", options.chunk_len);
    visit("frozen", options.frozen);
  }

 private:
  Options options_;
  LateScores frozen_;
};

// policy: EpiKVLag
//   | `u_K + u_V`, `u_K = mean_H std_c((k_i - low) / (high - low))`, k the mean over layers, low
//     and high of the chunk before; u_V of v alike
//   | K, V | - | model | decoded tokens | 4 B; scratch 8 chunk_len head_dim B
//   | a pass over K and V (frozen: over the new ones) | 2606.26472
using EpiKVLag = Policy<EpiKVLagMethod<true>>;
// policy: EpiKVLagKey | `u_K`, as in `EpiKVLag` | K | - | model | decoded tokens
//   | 4 B; scratch 8 chunk_len head_dim B | a pass over K (frozen: over the new ones) | 2606.26472
using EpiKVLagKey = Policy<EpiKVLagMethod<false>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_LAG_HPP_
