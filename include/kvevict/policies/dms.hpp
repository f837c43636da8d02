#ifndef KVEVICT_POLICIES_DMS_HPP_
#define KVEVICT_POLICIES_DMS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/qfilters.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/temporal/scores_over_steps.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// No budget and a window of 128 tokens by default. What the threshold is depends on the scores; by
/// default nothing is below it.
template <class Base>
struct DMSOptions : Base::Options {
  DMSOptions() {
    this->budget = std::numeric_limits<std::size_t>::max();
    this->recent_window = 128;
  }
  float threshold = -std::numeric_limits<float>::infinity();  ///< tokens that score less go
};

/// Delayed eviction by a threshold (DMS, arXiv 2506.05345, section 3), over the scores of another
/// recipe: whether a token goes is decided when it comes, and done when it has left the newest
/// `recent_window` tokens, so that what follows can still read it there:
///
///   evict i  if  s_i < threshold, s_i the score of the step that brought it.
///
/// How much stays is up to the text and differs from head to head. A budget, where one is given, is
/// kept to besides: the lowest scores go first. The best token of a head stays however low it is
/// (rule R15), which only shows without a window.
///
/// The paper learns the decision, which needs a model that was trained for it; this is its
/// eviction with any scores, as kvpress' DMSPress. Tokens of one step, a whole prompt too, are
/// scored with each other in the cache. kvpress overwrites the keys of what is evicted; here it is
/// evicted. Wants observe_cache in every step. The base must have a budget and a recent window
/// among its options.
template <Recipe Base>
  requires requires(typename Base::Options& options) {
    options.budget;
    options.recent_window;
  }
struct DMSOver : Base {
  using Options = DMSOptions<Base>;
  static constexpr std::string_view kPrefix = "DMS";
  static constexpr std::string_view kName = detail::JoinedName<kPrefix, Base::kName>::kName;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    detail::require(!std::isnan(options.threshold), kName, "threshold", options.threshold,
                    "must be a number");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(ScoresOverSteps(shape, Base::scope(options), Base::pipeline(options, shape),
                                    NamedRule{.rule = TemporalRule::kFrozen}));
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return detail::EditedAllocator(detail::allocator_of<Base>(options, shape),
                                   detail::SetThreshold{options.threshold});
  }
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    visit("threshold", options.threshold);
  }
};

// policy: DMSKnorm | `-norm(k_i)`; goes if below the threshold, behind the recent window | K | -
//   | head | at any time | 12 B per KV head | the new keys, a pass over the scores | 2506.05345
using DMSKnorm = Policy<Composed<DMSOver<KnormRecipe>>>;
// policy: DMSQFilters
//   | `-<f, k_i>` when i came; goes if below the threshold, behind the recent window | K | filters
//   | head | at any time | 12 B per KV head | the new keys, a pass over the scores
//   | 2506.05345, 2503.02812
using DMSQFilters = Policy<Composed<DMSOver<QFiltersRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_DMS_HPP_
