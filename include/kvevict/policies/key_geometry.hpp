#ifndef KVEVICT_POLICIES_KEY_GEOMETRY_HPP_
#define KVEVICT_POLICIES_KEY_GEOMETRY_HPP_

#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/cache_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/pool_selection.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Policies that look at cached keys alone, so that any fused attention will do.

/// Keys of small norm stay (L2 norm eviction, arXiv 2406.11430, section 3): score = -|k|.
struct KnormRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "Knorm";

  template <class O>
  static auto pipeline(const O& /*options*/, const CacheShape& shape) {
    return Pipeline(KeyNorm(shape));
  }
};

/// Those of CacheScoreOptions, and the layers.
struct KnormOptions {
  Budget budget = 1024;              ///< tokens per KV head, protected ones included; a total is
                                     ///< one of the layers that are cut
  std::size_t num_sink_tokens = 0;   ///< first tokens that always stay
  std::size_t recent_window = 0;     ///< newest tokens that always stay
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
  CutSchedule schedule = {};         ///< how often to cut
  std::vector<std::size_t> skip_layers = {};  ///< layers that are not cut (authors: 0 and 1)
};

/// The policy of these scores. The authors leave layers 0 and 1 whole (skip_layers) and start at
/// 2048 tokens; kvpress does neither, and so does this by default. Recipes over KnormRecipe have
/// budgets of their own and skip no layer.
struct KnormOfLayersRecipe : KnormRecipe {
  using Options = KnormOptions;

  static void check(const Options& options, const CacheShape& shape) {
    // Rule R7, which is not asked of tables.
    if (!options.budget.is_total())
      detail::check_allocation({.budget = options.budget}, protection(options), shape, kName);
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return SkippedLayers(kName, shape, options.budget, options.skip_layers,
                         options.only_at_prefill_end);
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    KnormRecipe::visit_options(options, visit);
    visit("skip_layers", options.skip_layers);
  }
};

/// Keys that differ from the others stay (KeyDiff, arXiv 2504.15364): score = -cos(k, m) with m the
/// mean of the unit keys in the cache now. Nothing is protected. The authors cut after each block
/// of 128 tokens of the prompt: feed chunks of 128 and ask between them.
struct KeyDiffRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "KeyDiff";

  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(KeyDifference());
  }
};

/// Tokens about which the heads of a layer differ stay: score = mean over its KV heads of
/// |k_h - mean of the heads' k|, one set per layer. This is no published eviction policy: it reads
/// the mean-centred keys that TaDA (arXiv 2506.04642) quantises as a score, since a token that is
/// close to its mean is told by the mean. Needs more than one KV head to tell tokens apart.
struct MeanCentredNormRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "MeanCentredNorm";

  static auto pipeline(const Options& /*options*/, const CacheShape& shape) {
    return KeyDeviationFromHeads(shape) | HeadReduction{GroupReduce::kMean};
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
};

// policy: Knorm | `-norm(k_i)` | K | - | head | at any time | 4 B per KV head
//   | the new keys, a pass over the scores | 2406.11430
using Knorm = Policy<Composed<KnormOfLayersRecipe>>;
// policy: KeyDiff | `-cos(k_i, mean_j unit(k_j))` | K | - | head | at any time | none
//   | a pass over K | 2504.15364
using KeyDiff = Policy<Composed<KeyDiffRecipe>>;
// policy: MeanCentredNorm | `mean_H norm(k_i - mean_H k_i)` | K of all heads | - | layer
//   | at any time | 4 B per KV head | the new keys, a pass over the scores | after 2506.04642
using MeanCentredNorm = Policy<Composed<MeanCentredNormRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_KEY_GEOMETRY_HPP_
