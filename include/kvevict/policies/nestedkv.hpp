#ifndef KVEVICT_POLICIES_NESTEDKV_HPP_
#define KVEVICT_POLICIES_NESTEDKV_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/nested_anomalies.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/head_floors.hpp"

#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

struct NestedKVOptions {
  Budget budget = 1024;              ///< tokens per KV head on average, protected ones included
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = true;   ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut otherwise
  std::size_t trailing_window = 64;  ///< tokens up to a key that it is compared with
  double gap_gain = 3.0;             ///< how much a scale that tells tokens apart gains
  double gate_gain = 10.0;           ///< how sharply disagreement of scales switches to the maximum
  double gate_centre = 0.6;          ///< and where
  double floor = 0.2;                ///< in [0, 1], of an equal share, that each head keeps
};

/// Keys that differ from the text, from their block or from what comes just before them stay
/// (NestedKV, arXiv 2605.26678): NestedAnomalies at three scales, brought together by BlendOfScales
/// with the priors 0.4, 0.4, 0.2. The heads of a layer compete: each keeps its best `floor` of an
/// equal share, the best of all that are left fill the layer's budget. KeyDiff is the first scale
/// alone. Keys are read as they are cached; no attention and no query is needed.
///
/// Constants are those of a port that takes the paper's. Chosen here: a tenth of the tokens is
/// rounded down; blocks are counted from the first token; nothing is protected.
struct NestedKVRecipe : CutsByCacheScore {
  using Options = NestedKVOptions;
  static constexpr std::string_view kName = "NestedKV";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.trailing_window > 0, kName, "trailing_window", options.trailing_window,
                    "must be > 0");
    for (const auto& [field, value] :
         {std::pair{"gap_gain", options.gap_gain}, std::pair{"gate_gain", options.gate_gain},
          std::pair{"gate_centre", options.gate_centre}})
      detail::require(std::isfinite(value), kName, field, value, "must be finite");
    detail::check_floor(kName, options.floor);
  }
  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return NestedAnomalies(options.trailing_window) |
           BlendOfScales{.gap_gain = options.gap_gain,
                         .gate_gain = options.gate_gain,
                         .gate_centre = options.gate_centre};
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget, .competition = Competition::kLayer};
  }
  static HeadFloors selector(const Options& options) noexcept {
    return {FloorRule::kGuarantee, options.floor, false, false};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    CutsByCacheScore::visit_options(options, visit);
    visit("trailing_window", options.trailing_window);
    visit("gap_gain", options.gap_gain);
    visit("gate_gain", options.gate_gain);
    visit("gate_centre", options.gate_centre);
    visit("floor", options.floor);
  }
};

// policy: NestedKV
//   | `(1 - b_i) sum_s w_s u_s + b_i max_s u_s`, u_s `-unit(k_i) mean_j unit(k_j)` over all, the
//     own block, the 64 newest up to i, each minmax; heads of a layer compete
//   | K | - | head | at prompt ends | none; scratch 12 + head_dim / 16 B
//   | none; a cut: three passes over K | 2605.26678
using NestedKV = Policy<Composed<NestedKVRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_NESTEDKV_HPP_
