// What a signal would never be asked for is an error, not passed over.
// expected: a signal's observe_cache takes \(ScoreInput\)
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <cstddef>
#include <string_view>
#include <tuple>

struct Signal {
  static constexpr kvevict::Inputs kRequiredInputs = kvevict::Inputs::kKeys;
  static constexpr kvevict::AttentionUse kAttentionUse = kvevict::AttentionUse::kNone;

  [[nodiscard]] std::tuple<> state() const { return {}; }
#ifdef KVEVICT_MUST_NOT_COMPILE
  std::size_t observe_cache(const kvevict::ViewRef& /*view*/) {
    return 0;
  }
#else
  std::size_t observe_cache(const kvevict::ScoreInput& /*input*/) {
    return 0;
  }
#endif
  void score(const kvevict::ScoreInput& /*input*/, kvevict::LaneScores& scores) const {
    scores.start_one(0, 0);
  }
};

struct Recipe : kvevict::CutsByCacheScore {
  static constexpr std::string_view kName = "Recipe";
  static auto pipeline(const Options& /*options*/, const kvevict::CacheShape& /*shape*/) {
    return kvevict::Pipeline(Signal());
  }
};

kvevict::Policy<kvevict::Composed<Recipe>> made(const kvevict::CacheShape& shape) {
  return {{.budget = 2}, shape};
}
