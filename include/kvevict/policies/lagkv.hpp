#ifndef KVEVICT_POLICIES_LAGKV_HPP_
#define KVEVICT_POLICIES_LAGKV_HPP_

#include "kvevict/allocation/lag_budgets.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lag_partitions.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/lag_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/partition_quotas.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: the authors' code.
struct LagKVOptions {
  std::size_t num_sink_tokens = 16;                ///< first tokens, in no partition
  std::size_t lag_len = 1024;                      ///< tokens in a partition
  Budget per_partition = Budget::keep_ratio(0.5);  ///< tokens of it that stay, or a share
  float value_weight = 1.0F;                       ///< of the values' side; the keys' has 1
};

/// Tokens that deviate from those that follow them stay (LagKV, arXiv 2504.04704, section 3): per
/// KV head, behind the sinks, tokens are cut into partitions of lag_len, and a partition is scored
/// by LagDeviationOfPartition once the next one is complete. The best per_partition of it stay, and
/// it is not looked at again. The newest complete partition and what follows it wait.
///
/// The cache thus grows by that share of the text, with no budget over all. Where a prompt is cut
/// between its chunks the result is the same. No attention is needed.
struct LagKVRecipe : CutsEveryStep {
  using Options = LagKVOptions;
  static constexpr std::string_view kName = "LagKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.lag_len > 0, kName, "lag_len", options.lag_len, "must be > 0");
    detail::require(!options.per_partition.is_total(), kName, "per_partition",
                    options.per_partition.count(), "must be a number of tokens or a share");
    detail::require(options.value_weight >= 0.0F && std::isfinite(options.value_weight), kName,
                    "value_weight", options.value_weight, "must be finite and >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return Pipeline(LagDeviationOfPartition(layout(options), options.value_weight));
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return LagBudgets(layout(options), options.per_partition, shape);
  }
  static auto selector(const Options& options) {
    return PartitionQuotas(layout(options), options.per_partition.tokens_of(options.lag_len));
  }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("lag_len", options.lag_len);
    visit("per_partition", options.per_partition);
    visit("value_weight", options.value_weight);
  }

 private:
  [[nodiscard]] static LagLayout layout(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .lag_len = options.lag_len};
  }
};

/// Defaults: kvpress.
struct LagKVBudgetOptions {
  Budget budget = 1024;             ///< tokens per KV head, sinks and newest partition included
  std::size_t num_sink_tokens = 4;  ///< first tokens that always stay
  std::size_t lag_len = 128;        ///< tokens in a partition
  LagComparison comparison = LagComparison::kRanks;  ///< of tokens of unlike partitions
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
};

/// LagKV's score under a fixed budget (kvpress' LagKVPress): at every cut all that is cached is cut
/// into partitions anew, and their tokens compete by rank or by score. Sinks stay, and the newest
/// complete partition with what follows it as far as the budget goes, newest first. A cache of less
/// than two partitions keeps its newest tokens.
///
/// kvpress protects by a score of 1, so that chance decides where more is protected than fits.
struct LagKVBudgetRecipe : CutsEveryStep {
  using Options = LagKVBudgetOptions;
  static constexpr std::string_view kName = "LagKVBudget";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.lag_len > 0, kName, "lag_len", options.lag_len, "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return LagDeviationOfPartition(layout(options), 1.0F) |
           when(options.comparison == LagComparison::kRanks, RankInPartition(options.lag_len)) |
           RampWithoutPartitions{layout(options)};
  }
  static auto allocator(const Options& options, const CacheShape& /*shape*/) {
    return LagTailFirst(layout(options), options.budget, options.only_at_prefill_end);
  }
  static Trigger trigger(const Options& options) noexcept {
    return options.only_at_prefill_end ? Trigger::kPrefillEnd : Trigger::kEveryStep;
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("lag_len", options.lag_len);
    visit("comparison", options.comparison);
    visit("only_at_prefill_end", options.only_at_prefill_end);
  }

 private:
  [[nodiscard]] static LagLayout layout(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .lag_len = options.lag_len, .once = false};
  }
};

// policy: LagKV
//   | `(s_K + s_V) / 2`, `s_K = softmax_partition(std_c((k_i - low) / (high - low)))`, low and high
//     of the next partition; s_V of v alike
//   | K, V | - | head | at any time | none; scratch 4 lag_len head_dim B
//   | a pass over two partitions of K and V once in lag_len steps | 2504.04704
using LagKV = Policy<Composed<LagKVRecipe>>;
// policy: LagKVBudget | rank of the score of `LagKV` in its partition | K, V | - | head
//   | at any time | none; scratch 4 lag_len head_dim B | a pass over K and V | 2504.04704
using LagKVBudget = Policy<Composed<LagKVBudgetRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_LAGKV_HPP_
