#ifndef KVEVICT_POLICIES_CURDKV_HPP_
#define KVEVICT_POLICIES_CURDKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/cur_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// Defaults: kvpress, whose authors are the method's.
struct CurDKVOptions {
  Budget budget = 1024;                          ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 4;               ///< first tokens that always stay
  std::size_t recent_window = 0;                 ///< newest tokens that always stay
  bool only_at_prefill_end = false;              ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};                     ///< how often to cut
  CurLeverage leverage = CurLeverage::kProduct;  ///< of keys, values or both
  std::size_t block_len =
      16;  ///< tokens that a leverage is a share of; 0: squared norms as they are
};

/// Tokens whose key and value carry much of their block's energy stay, an approximate CUR
/// decomposition of K and V (CurDKV, arXiv 2509.15038): score = l_K l_V as CurScores says. Sinks
/// stay. No attention is needed.
///
/// The paper also offers norms after a random projection to 20 dimensions. They approximate the
/// norms that this takes, which cost one pass over the cache either way: not offered. A last block
/// that is not full is divided by its own sum, so its tokens weigh more.
struct CurDKVRecipe : CutsByCacheScore {
  using Options = CurDKVOptions;
  static constexpr std::string_view kName = "CurDKV";

  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return Pipeline(CurScores(options.leverage, options.block_len));
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("leverage", options.leverage);
    visit("block_len", options.block_len);
  }
};

// policy: CurDKV
//   | `l_K l_V / sum l_K l_V`, `l_K = norm(k_i)^2 / sum_block norm(k_j)^2`, l_V of v alike | K, V
//   | - | head | at any time | none | a pass over K and V | 2509.15038
using CurDKV = Policy<Composed<CurDKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CURDKV_HPP_
