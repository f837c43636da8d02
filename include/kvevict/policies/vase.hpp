#ifndef KVEVICT_POLICIES_VASE_HPP_
#define KVEVICT_POLICIES_VASE_HPP_

#include "kvevict/allocation/whole_prompts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/finite_rows.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/random_scores.hpp"
#include "kvevict/scoring/recent_queries.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/scoring/value_range.hpp"
#include "kvevict/selection/reserve.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct VaSEOptions {
  std::size_t budget = 4096;  ///< tokens per KV head that a cut leaves, protected included (B)
  std::size_t interval = 64;  ///< tokens above the budget at which it is time to cut
  std::size_t num_sink_tokens = 4;            ///< first tokens, which stay and count in the reserve
  std::size_t recent_window = 64;             ///< newest tokens, which stay (R)
  std::size_t observation_window = 64;        ///< newest queries, which vote
  Budget reserve = Budget::keep_ratio(0.25);  ///< of the budget, for values of large range
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};  ///< over neighbouring tokens
  bool sample = true;             ///< false: the best by their scores, without noise
  std::uint64_t seed = 0;         ///< of the noise
  std::uint64_t sequence_id = 0;  ///< sequences of one seed with other numbers draw for themselves
};

/// Values of abnormally large range stay, and the others are drawn by attention (VaSE, arXiv
/// 2606.03928): dropping the former makes models repeat themselves. Of the budget B, per KV head,
/// the newest tokens and the sinks stay; with them the B / 4 - num_sink_tokens tokens of largest
/// max_c v_c - min_c v_c; the places that are left are drawn without replacement, in proportion to
///
///   mean_h( average over neighbours of ( mean over queries of softmax( q k / sqrt(d) ) ) ),
///
/// over all but the newest tokens. A draw is the top k of log(score) + Gumbel noise, which is the
/// same law without an order. Prompts are not protected. Noise is anew at every firing and comes
/// from counters.
///
/// Chosen here: when to cut is not said beyond "periodically"; a prompt is cut at its end, whole.
/// The softmax is over what is cached at the cut, as the authors' query buffer does it; engines
/// hand over queries, no row.
struct VaSERecipe {
  using Options = VaSEOptions;
  static constexpr std::string_view kName = "VaSE";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.interval > 0, kName, "interval", options.interval, "must be > 0");
    options.pooling.check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return RecentQueries(kName, shape, options.observation_window, options.recent_window) |
           Pool{options.pooling} | GroupReduction{GroupReduce::kMean} | FiniteRowsOnly{} |
           when(options.sample,
                DrawByWeight{
                    {.seed = options.seed, .sequence_id = options.sequence_id, .redraw = true}});
  }
  static Reserve<ValueRange> selector(const Options& options) {
    const std::size_t places = options.reserve.tokens_of(options.budget);
    return Reserve<ValueRange>(places - std::min(places, options.num_sink_tokens));
  }
  static WholePrompts allocator(const Options& options, const CacheShape& /*shape*/) noexcept {
    return {Allocation::in_batches(options.budget, options.interval)};
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kHead; }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kEveryStep; }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .recent_window = options.recent_window};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("interval", options.interval);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
    visit("observation_window", options.observation_window);
    visit("reserve", options.reserve);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("sample", options.sample);
    visit("seed", options.seed);
    visit("sequence_id", options.sequence_id);
  }
};

// policy: VaSE
//   | largest `max_c v - min_c v` first; the rest drawn by `mean_h pool_5(mean_w softmax_i(q_t k_i
//     / sqrt(d)))`, w the newest queries
//   | newest queries, K, V | - | head | at any time
//   | none; fixed: window x (4 head_dim + 8) B per query head; scratch 64 B
//   | a copy of the query; a cut: window passes over K, one over V | 2606.03928
using VaSE = Policy<Composed<VaSERecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_VASE_HPP_
