#ifndef KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_
#define KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/token_variance.hpp"
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/frozen_scores.hpp"
#include "kvevict/temporal/rolling_window.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct EpiKVKeyValueOptions {
  Budget budget = 1024;                       ///< tokens kept, prompt included (paper: K)
  std::size_t recent_window = kEpiKVRecency;  ///< newest tokens kept (R); unset: min(128, K / 4)
  std::size_t window = 64;                    ///< decoded tokens under the rolling mean (w)
  std::size_t max_rollback = 16;              ///< tokens that truncate takes back without loss
};

/// KV-key and KV-val (EpiKV, arXiv 2606.26472, section 4.4): the score of a token is the rolling
/// mean, over the last w decoded tokens with itself, of
///
///   mean over layers and KV heads of the sample variance over channels of its key (value),
///
/// as cached, frozen at birth; high stays. Section 4.4 speaks of recomputation, the authors' code
/// freezes. Keys are read after RoPE: the paper found no difference.
///
/// Call observe_cache once per decode step. A variance that is not finite enters no mean and its
/// token scores 0.
template <KvPart kPart>
class EpiKVKeyValueMethod : public detail::EpiKVRules {
 public:
  using Options = EpiKVKeyValueOptions;
  static constexpr std::string_view kName = kPart == KvPart::kKeys ? "EpiKVKey" : "EpiKVValue";
  static constexpr Inputs kRequiredInputs =
      kPart == KvPart::kKeys ? Inputs::kKeys : Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  EpiKVKeyValueMethod(const Options& options, const CacheShape& shape)
      : EpiKVRules(kName, shape, options.budget, options.recent_window),
        window_(detail::epikv_window(kName, options.window, options.max_rollback),
                options.max_rollback),
        scores_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(window_, scores_); }

  std::size_t observe_cache(const ScoreInput& input) {
    step_scores_.assign(decoded_in_step(input.sequence), 0.0F);
    const std::size_t first = input.sequence.seq_len(0) - step_scores_.size();
    token_variances(input.view, kPart, first, input.kernel, input.scratch, step_scores_);
    std::size_t position = input.sequence.length() - step_scores_.size();
    std::size_t non_finite = 0;
    for (float& score : step_scores_) {
      const bool finite = std::isfinite(score);
      if (finite)
        window_.push(position, static_cast<double>(score));
      score = finite ? static_cast<float>(window_.mean()) : 0.0F;
      non_finite += finite ? 0 : 1;
      ++position;
    }
    scores_.set_newest(step_scores_);
    return non_finite;
  }
  void score(const ScoreInput& /*input*/, std::size_t /*lane*/,
             std::span<float> out) const noexcept {
    std::copy(scores_.values().begin(), scores_.values().end(), out.begin());
  }

  /// [seq_len] frozen score of each slot; -infinity where none was given.
  [[nodiscard]] std::span<const float> scores() const noexcept { return scores_.values(); }

  /// The same decisions in O(log K) a token, as for EpiKV. The view of such an engine maps slots to
  /// memory token by token, evicted ones too (PagedView with pages of one slot); only the newest
  /// are read.
  [[nodiscard]] StreamingTopK streaming() const { return {budget(), recency()}; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }

 private:
  RollingWindow window_;
  FrozenScores scores_;
  std::vector<float> step_scores_;
};

// policy: EpiKVKey
//   | `mean_64(mean_l mean_H var_c(k_i))` when i came, over i and the decoded tokens before | K | -
//   | model | decoded tokens | 4 B | layers x heads x head_dim | 2606.26472
using EpiKVKey = Policy<EpiKVKeyValueMethod<KvPart::kKeys>>;
// policy: EpiKVValue
//   | `mean_64(mean_l mean_H var_c(v_i))` when i came, over i and the decoded tokens before | V | -
//   | model | decoded tokens | 4 B | layers x heads x head_dim | 2606.26472
using EpiKVValue = Policy<EpiKVKeyValueMethod<KvPart::kValues>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_
