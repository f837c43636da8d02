// A selector that does not fulfil the concept would leave the choice to top-k: it is an error
// instead.
// expected: a selector has choose
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"

#include <cstddef>
#include <span>

struct Selector {
  void choose(std::span<kvevict::ScoredLane> lanes, std::size_t quota,
              const kvevict::ScoreInput& /*input*/)
#ifndef KVEVICT_MUST_NOT_COMPILE
      const
#endif
  {
    kvevict::select_top_k(lanes, quota);
  }
};
struct OwnRecipe : kvevict::KnormRecipe {
  static Selector selector(const Options& /*options*/) { return {}; }
};
static_assert(sizeof(kvevict::Policy<kvevict::Composed<OwnRecipe>>) > 0);
