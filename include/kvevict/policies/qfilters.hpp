#ifndef KVEVICT_POLICIES_QFILTERS_HPP_
#define KVEVICT_POLICIES_QFILTERS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/query_filters.hpp"

#include <cstddef>
#include <memory>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct QFiltersOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
  /// Of the model: [num_layers, num_kv_heads, head_dim]; needed.
  std::shared_ptr<const QueryFilters> query_filters = nullptr;
};

/// Keys that lie against a direction which the head's queries avoid stay (Q-Filters, arXiv
/// 2503.02812, section 3): score = -<f, k>, f of each KV head the main right singular vector of its
/// queries, with the sign that the published filters have: a large dot product draws little
/// attention. Keys are read as they are cached, after rotary embedding. Nothing is protected; the
/// authors' code and kvpress' neither.
///
/// Filters are made offline, from queries of sample texts, and belong to one model. Under GQA the
/// authors average the filters of a group's query heads.
struct QFiltersRecipe : CutsByCacheScore {
  using Options = QFiltersOptions;
  static constexpr std::string_view kName = "QFilters";
  static constexpr bool kNeedsArtefact = true;

  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(FilteredKeys(kName, shape, options.query_filters));
  }
};

// policy: QFilters | `-<f, k_i>`, f the filter of the KV head | K | filters | head | at any time
//   | 4 B per KV head | the new keys, a pass over the scores | 2503.02812
using QFilters = Policy<Composed<QFiltersRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_QFILTERS_HPP_
