#ifndef KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_
#define KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/min_max.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/hidden_trend.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVAttentionOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t num_sink_tokens = 4;            ///< first tokens kept, should the prompt be shorter
  std::vector<std::size_t> layers = {};       ///< of band A, zero-based; empty: block 10, by depth
  double hidden_weight = 1.0;                 ///< factor of the hidden-state term
  std::size_t window = 64;                    ///< differences under the z-score (w)
  std::size_t max_rollback = 16;              ///< tokens that truncate takes back without loss
};

/// Attn x HS (EpiKV, arXiv 2606.26472): in spite of its name the sum
///
///   score(t) = minmax(attention that t received so far) + hidden_weight minmax(z_10(t)),
///
/// attention summed over the queries of decoded tokens, mean over layers and query heads; z frozen
/// at birth, of band A alone; both scaled to [0, 1] over the decoded tokens that are in the cache
/// now, recent ones included. A range of zero gives 0.
class EpiKVAttentionMethod : public detail::EpiKVRules {
 public:
  using Options = EpiKVAttentionOptions;
  static constexpr std::string_view kName = "EpiKVAttention";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kHiddenStates;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  EpiKVAttentionMethod(const Options& options, const CacheShape& shape)
      : EpiKVRules(kName, shape, options.budget, options.recent_window, options.num_sink_tokens),
        hidden_weight_(detail::epikv_weight(kName, "hidden_weight", options.hidden_weight)),
        hidden_(shape,
                {{detail::epikv_layers(kName, "layers", options.layers, kEpiKVLayerA, kEpiKVLayerA,
                                       shape.num_layers)}},
                BandStatistic::kZScore,
                detail::epikv_window(kName, options.window, options.max_rollback),
                options.max_rollback),
        attention_(shape, RowReduce::kSum, HeadReduce::kGroupMean) {}

  [[nodiscard]] auto state() noexcept { return std::tie(hidden_, attention_); }

  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept { return hidden_.wants(layer); }
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) {
    return hidden_.observe(layer, rows, sequence, kernel);
  }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return decoded_in_step(sequence);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    return attention_.observe(rows, kernel);
  }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const {
    const std::span<float> attention = input.scratch.floats(0, out.size());
    attention_.mean(MaskScope::kModel, lane, input.kernel, attention);
    const std::span<const float> hidden = hidden_.scores();
    const bool all_valid = input.view.lane(0, 0).valid.empty();
    MinMax attention_range;
    MinMax hidden_range;
    for_each_decoded_slot(input.sequence, lane, [&](std::size_t slot) {
      if (!all_valid && !any_has_token(input.view, slot))
        return;
      attention_range.add(attention[slot]);
      hidden_range.add(hidden[slot]);
    });
    const auto weight = static_cast<float>(hidden_weight_);
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      out[slot] =
          attention_range.scaled(attention[slot]) + weight * hidden_range.scaled(hidden[slot]);
    }
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("layers", options.layers);
    visit("hidden_weight", options.hidden_weight);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }

 private:
  double hidden_weight_;
  HiddenTrend hidden_;
  AttentionColumns attention_;
};

// policy: EpiKVAttention | `minmax(sum_decoded mean_l mean_H a[H,t,i]) + minmax(z_64(g_10))`
//   | newest row, hidden states | - | model | decoded tokens
//   | 4 B + 4 B per KV head; fixed as `EpiKV` | a pass over the row | 2606.26472
using EpiKVAttention = Policy<EpiKVAttentionMethod>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_ATTENTION_HPP_
