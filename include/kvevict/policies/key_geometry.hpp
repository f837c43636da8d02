#ifndef KVEVICT_POLICIES_KEY_GEOMETRY_HPP_
#define KVEVICT_POLICIES_KEY_GEOMETRY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/cache_signals.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <string_view>

KVEVICT_NAMESPACE_BEGIN

// Policies that look at cached keys alone, so that any fused attention will do.

/// Keys of small norm stay (L2 norm eviction, arXiv 2406.11430, section 3): score = -|k|. The
/// authors leave layers 0 and 1 whole and start at 2048 tokens; kvpress and this do neither.
struct KnormRecipe : CutsByCacheScore {
  static constexpr std::string_view kName = "Knorm";

  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(KeyNorm());
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

using Knorm = Policy<Composed<KnormRecipe>>;
using KeyDiff = Policy<Composed<KeyDiffRecipe>>;

static_assert(EvictionPolicy<Knorm>);
static_assert(EvictionPolicy<KeyDiff>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_KEY_GEOMETRY_HPP_
