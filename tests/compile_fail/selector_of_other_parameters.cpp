// An optional member of a recipe that has other parameters would be passed over: it is an error
// instead.
// expected: a recipe's selector takes
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"

#include <cstddef>
#include <span>

struct Selector {
  void choose(std::span<kvevict::ScoredLane> lanes, std::size_t quota,
              const kvevict::ScoreInput& /*input*/) const {
    kvevict::select_top_k(lanes, quota);
  }
};
struct OwnRecipe : kvevict::KnormRecipe {
#ifndef KVEVICT_MUST_NOT_COMPILE
  static Selector selector(const Options& /*options*/) {
    return {};
  }
#else
  static Selector selector(const Options& /*options*/, const kvevict::CacheShape& /*shape*/) {
    return {};
  }
#endif
};
static_assert(sizeof(kvevict::Policy<kvevict::Composed<OwnRecipe>>) > 0);
