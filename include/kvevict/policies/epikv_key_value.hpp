#ifndef KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_
#define KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/epikv_rules.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/temporal/variance_trend.hpp"

#include <cstddef>
#include <string_view>

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
///
/// method().scores() and method().streaming() are as for EpiKV. The view of an engine that streams
/// maps slots to memory token by token, evicted ones too (PagedView with pages of one slot); only
/// the newest are read.
template <KvPart kPart>
struct EpiKVKeyValueRecipe : detail::EpiKVRules<EpiKVKeyValueRecipe<kPart>> {
  using Options = EpiKVKeyValueOptions;
  static constexpr std::string_view kName = kPart == KvPart::kKeys ? "EpiKVKey" : "EpiKVValue";

  static auto pipeline(const Options& options, const CacheShape& shape) {
    detail::check_epikv_window(kName, options);
    return Pipeline(VarianceTrend<kPart>(shape, options.window, options.max_rollback));
  }
  [[nodiscard]] static StreamingTopK streaming(const detail::EpiKVBudget& budget) {
    return budget.streaming();
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("recent_window", options.recent_window);
    visit("window", options.window);
    visit("max_rollback", options.max_rollback);
  }
};

// policy: EpiKVKey
//   | `mean_64(mean_l mean_H var_c(k_i))` when i came, over i and the decoded tokens before | K | -
//   | model | decoded tokens | 4 B | layers x heads x head_dim | 2606.26472
using EpiKVKey = Policy<Composed<EpiKVKeyValueRecipe<KvPart::kKeys>>>;
// policy: EpiKVValue
//   | `mean_64(mean_l mean_H var_c(v_i))` when i came, over i and the decoded tokens before | V | -
//   | model | decoded tokens | 4 B | layers x heads x head_dim | 2606.26472
using EpiKVValue = Policy<Composed<EpiKVKeyValueRecipe<KvPart::kValues>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_KEY_VALUE_HPP_
