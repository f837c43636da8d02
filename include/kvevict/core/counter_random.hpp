#ifndef KVEVICT_CORE_COUNTER_RANDOM_HPP_
#define KVEVICT_CORE_COUNTER_RANDOM_HPP_

#include "kvevict/config.hpp"

#include <cstdint>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// A number for a counter, the finaliser of SplitMix64 (Steele, Lea, Flood 2014). Chance that is
/// made of counters (seed, lane, position) and not by a running generator depends on no order of
/// calls, and is the same on every standard library.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
  return x ^ x >> 31U;
}

}  // namespace detail

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_COUNTER_RANDOM_HPP_
