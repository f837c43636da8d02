#ifndef KVEVICT_CORE_RANDOM_STREAM_HPP_
#define KVEVICT_CORE_RANDOM_STREAM_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// A number for a counter, the finaliser of SplitMix64 (Steele, Lea, Flood 2014): the same on every
/// standard library.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
  return x ^ x >> 31U;
}

/// An odd multiple far apart, by which parts of a counter are kept from meeting.
inline constexpr std::uint64_t kCounterStep = 0xD1342543DE82EF95U;

/// Where the counters of one lane, or head, of a sequence begin.
[[nodiscard]] constexpr std::uint64_t lane_counter(std::uint64_t seed, std::uint64_t sequence_id,
                                                   std::uint64_t lane) noexcept {
  return mix_bits(seed + mix_bits(lane) + kCounterStep * sequence_id);
}

}  // namespace detail

/// Random numbers for the tokens of a sequence. A number comes from a counter (seed, sequence,
/// lane, firing, position), not from a running generator: it does not depend on the order of calls,
/// on the slot where its token lies, or on the number of workers, and select may be called twice.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t sequence_id = 0;  ///< sequences that run side by side draw for themselves
  bool redraw = false;  ///< anew after each mask that was applied; false: a token keeps its number

  /// 64 random bits for the token in `slot`.
  [[nodiscard]] std::uint64_t bits(const Sequence& sequence, std::size_t lane,
                                   std::size_t slot) const noexcept {
    const std::uint64_t firing = redraw ? sequence.num_firings() : 0;
    const auto position = static_cast<std::uint64_t>(sequence.position(lane, slot));
    // No two of (firing, position) meet in one counter.
    return detail::mix_bits(detail::lane_counter(seed, sequence_id, lane) + position +
                            detail::kCounterStep * firing);
  }
  /// Uniform in (0, 1).
  [[nodiscard]] double uniform(const Sequence& sequence, std::size_t lane,
                               std::size_t slot) const noexcept {
    return (static_cast<double>(bits(sequence, lane, slot) >> 12U) + 0.5) * 0x1p-52;
  }
  /// Standard Gumbel: added to logarithms of weights, the k largest sums are a draw of k without
  /// replacement, each with a probability proportional to its weight.
  [[nodiscard]] double gumbel(const Sequence& sequence, std::size_t lane,
                              std::size_t slot) const noexcept {
    return -std::log(-std::log(uniform(sequence, lane, slot)));
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_RANDOM_STREAM_HPP_
