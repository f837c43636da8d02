#ifndef KVEVICT_POLICIES_EXPECTED_ATTENTION_HPP_
#define KVEVICT_POLICIES_EXPECTED_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/expected_attention.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/scoring/stages.hpp"

#include <cmath>
#include <cstddef>
#include <memory>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// Policies that ask what queries to come will look at. Queries are taken as attention used them, by
// observe_queries, and turned back; no attention row is needed. Each exists a second time for
// statistics that were gathered before (QueryStatistics), and then looks at no query at all.

struct ExpectedAttentionOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 4;   ///< first tokens: they stay, and do not count as queries
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
  std::size_t num_future = 512;      ///< positions over which rotation is averaged
  bool use_covariance = true;        ///< false: the mean query alone
  bool use_value_norm = true;        ///< times |v|
  float epsilon = 0.0F;              ///< added to the attention before (kvpress' registry: 0.02)
  RotaryEmbedding rotary = {};       ///< of the model
  /// Of the model; needed for ExpectedAttentionStats, refused by ExpectedAttention.
  std::shared_ptr<const QueryStatistics> query_statistics = nullptr;
};

/// The attention that queries to come will give (Expected Attention, arXiv 2510.00636, sections 3
/// and 4): with mean m and covariance S of the queries before rotary embedding, turned to the next
/// num_future positions, per KV head
///
///   score(i) = ( mean_h softmax_i( m_h k_i / sqrt(d) + k_i^T S_h k_i / (2 d) ) + epsilon )
///   |v_i|_2,
///
/// over the tokens behind the sinks. The sinks stay.
///
/// Statistics are of every query so far behind the sinks, of prompt and decoding; kvpress, which
/// this follows elsewhere, takes those of the prompt. The budget is one for all heads; the paper
/// lets the heads of a layer compete. Padding has no position.
template <bool kGiven>
struct ExpectedAttentionRecipe : CutsByCacheScore {
  using Options = ExpectedAttentionOptions;
  static constexpr std::string_view kName = kGiven ? "ExpectedAttentionStats" : "ExpectedAttention";
  static constexpr bool kNeedsArtefact = kGiven;

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.epsilon >= 0.0F && std::isfinite(options.epsilon), kName, "epsilon",
                    options.epsilon, "must be finite and >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return ExpectedAttentionRows<kGiven>(kName, shape,
                                         {.rotary = options.rotary,
                                          .num_future = options.num_future,
                                          .num_sink_tokens = options.num_sink_tokens,
                                          .with_covariance = options.use_covariance,
                                          .statistics = options.query_statistics}) |
           GroupReduction{GroupReduce::kMean} | AddConstant{options.epsilon} |
           when(options.use_value_norm, TimesValues{ValueFactor::kNorm});
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("num_future", options.num_future);
    visit("use_covariance", options.use_covariance);
    visit("use_value_norm", options.use_value_norm);
    visit("epsilon", options.epsilon);
  }
};

/// Defaults: kvpress.
struct CapKVOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 4;   ///< first tokens: they stay, and do not count as queries
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
  std::size_t num_future = 512;      ///< positions over which rotation is averaged
  float tau = 5.0F;                  ///< sharpness of the expected attention
  float epsilon = 1e-6F;             ///< least weight of a value in A
  RotaryEmbedding rotary = {};       ///< of the model
  /// Of the model, its covariance not needed; needed for CapKVStats, refused by CapKV.
  std::shared_ptr<const QueryStatistics> query_statistics = nullptr;
};

/// Tokens that keep the capacity of the cache (CapKV, arXiv 2604.25975): the first-order gain of
/// log det(I + sum w v v^T), as CapacityGain says, for each query head; mean over the group. The
/// sinks stay. As kvpress, except that statistics are of every query so far.
template <bool kGiven>
struct CapKVRecipe : CutsByCacheScore {
  using Options = CapKVOptions;
  static constexpr std::string_view kName = kGiven ? "CapKVStats" : "CapKV";
  static constexpr bool kNeedsArtefact = kGiven;

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(std::isfinite(options.tau), kName, "tau", options.tau, "must be finite");
    detail::require(options.epsilon >= 0.0F && std::isfinite(options.epsilon), kName, "epsilon",
                    options.epsilon, "must be finite and >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return CapacityGain<kGiven>(kName, shape,
                                {.rotary = options.rotary,
                                 .num_future = options.num_future,
                                 .num_sink_tokens = options.num_sink_tokens,
                                 .with_covariance = false,
                                 .statistics = options.query_statistics},
                                options.tau, options.epsilon) |
           GroupReduction{GroupReduce::kMean};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("num_future", options.num_future);
    visit("tau", options.tau);
    visit("epsilon", options.epsilon);
  }
};

// policy: ExpectedAttention
//   | `mean_h softmax_i(m_h k_i / sqrt(d) + k_i S_h k_i / (2 d)) norm(v_i)`, m_h and S_h mean and
//     covariance of queries to come
//   | queries, K, V | - | head | at any time
//   | none; fixed: statistics of queries, 8 head_dim^2 B per query head
//   | a pass over K and V, head_dim^2 a token | 2510.00636
using ExpectedAttention = Policy<Composed<ExpectedAttentionRecipe<false>>>;
// policy: ExpectedAttentionStats | as `ExpectedAttention` | K, V | statistics of queries | head
//   | at any time | none | a pass over K and V, head_dim^2 a token | 2510.00636
using ExpectedAttentionStats = Policy<Composed<ExpectedAttentionRecipe<true>>>;
// policy: CapKV
//   | `mean_h e_i v_i A^-1 v_i`, `e_i = exp(5 cos(m_h, k_i) - max)`, `A = I + sum_j (e_j + 1e-6)
//     v_j v_j^T`, m_h the mean query to come
//   | queries, K, V | - | head | at any time
//   | none; fixed: means of queries, 8 head_dim B per query head
//   | a pass over K and V, head_dim^2 a token | 2604.25975
using CapKV = Policy<Composed<CapKVRecipe<false>>>;
// policy: CapKVStats | as `CapKV` | K, V | statistics of queries | head | at any time | none
//   | a pass over K and V, head_dim^2 a token | 2604.25975
using CapKVStats = Policy<Composed<CapKVRecipe<true>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EXPECTED_ATTENTION_HPP_
