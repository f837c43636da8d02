#ifndef KVEVICT_POLICIES_DROPKV_HPP_
#define KVEVICT_POLICIES_DROPKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/scoring/window_removal.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct DropKVOptions {
  Budget budget = 1024;                 ///< tokens per KV head, window included
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 7};  ///< over neighbouring tokens
};

/// What leaving a token out does to the outputs of the prompt's last queries (DropKV, kvpress issue
/// 284): WindowRemoval's score, then an average over neighbours. Once, at the end of a prompt: the
/// window and the best of the prefix stay; tokens decoded later are all kept. CAOTE asks the same
/// of one row and does not square.
///
/// Scores are squared lengths in value space and can be compared between heads: AdaKVDropKV lets
/// the heads of a layer compete for its budget.
///
/// The reference adds 1e-6 to 1 - p, rounds p to the model's half type before weighting values and
/// expands the square into three products; this is the quantity itself.
struct DropKVRecipe : CutsPrompts {
  using Options = DropKVOptions;
  static constexpr std::string_view kName = "DropKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    options.pooling.check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return WindowRemoval(kName, shape, options.observation_window) | Pool{options.pooling};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
  }
};

// policy: DropKV
//   | `pool_7(mean_h sum_w (a[h,t,i] / (1 - a[h,t,i]))^2 norm(v_i - o_t)^2)`, o_t the output of
//     query t
//   | last queries of the prompt, K, V | - | head | at prompt ends | 4 B per KV head; scratch 256 B
//   | none | kvpress issue 284
using DropKV = Policy<Composed<DropKVRecipe>>;
// policy: AdaKVDropKV | as `DropKV`; heads of a layer compete, each keeps a floor
//   | last queries of the prompt, K, V | - | head | at prompt ends | 4 B per KV head; scratch 256 B
//   | none | kvpress issue 284, 2407.11550
using AdaKVDropKV = Policy<Composed<AdaKVOver<DropKVRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_DROPKV_HPP_
