#ifndef KVEVICT_CORE_COUNTERS_HPP_
#define KVEVICT_CORE_COUNTERS_HPP_

#include "kvevict/config.hpp"

#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// What a policy has done since it was made or reset, so that "it never ran" is visible. Entries
/// are counted over all layers and KV heads.
struct Counters {
  std::size_t steps = 0;               ///< calls of append
  std::size_t firings = 0;             ///< masks applied
  std::size_t evicted = 0;             ///< entries that masks took away, all firings together
  std::size_t kept = 0;                ///< entries left by the newest firing
  std::size_t protected_entries = 0;   ///< of these, protected ones
  std::size_t missing_signals = 0;     ///< layers whose attention a step wanted and did not get;
                                       ///< steps without a wanted observe_cache; layers without
                                       ///< observe_scores since the firing before
  std::size_t non_finite = 0;          ///< samples or scores that were NaN or infinite
  std::size_t budget_not_reached = 0;  ///< firings at which what has to stay exceeded the budget
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_COUNTERS_HPP_
