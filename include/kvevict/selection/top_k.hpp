#ifndef KVEVICT_SELECTION_TOP_K_HPP_
#define KVEVICT_SELECTION_TOP_K_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// Calls visit(word_index, candidate bits, keys) for every 64 slots of a lane that hold a
/// candidate; key b belongs to bit b. A loop of its own for the keys, so that it vectorises.
template <class Visit>
void for_each_key_word(const ScoredLane& lane, Visit&& visit) {
  std::array<std::uint32_t, 64> keys{};
  for (std::size_t w = 0; w < lane.candidates.size(); ++w) {
    if (lane.candidates[w] == 0)
      continue;
    const float* scores = lane.scores.data() + w * 64;
    const std::size_t count = std::min<std::size_t>(64, lane.scores.size() - w * 64);
    for (std::size_t b = 0; b < count; ++b)
      keys[b] = kernels::order_key(scores[b]);
    visit(w, lane.candidates[w], keys);
  }
}

// The largest key of which at least `quota` >= 1 candidates are equal or larger, found digit by
// digit: three histograms instead of a sort. `ties` becomes how many of that key are wanted.
inline std::uint32_t threshold_key(std::span<const ScoredLane> lanes, std::size_t quota,
                                   std::size_t& ties) noexcept {
  struct Digit {
    unsigned shift;
    unsigned bits;
  };
  constexpr std::array<Digit, 3> kDigits{{{21, 11}, {10, 11}, {0, 10}}};
  std::uint32_t prefix = 0;
  std::uint32_t prefix_mask = 0;
  for (const Digit digit : kDigits) {
    // Two histograms in turn: scores crowd in few bins, and a bin is slow to increment twice
    // in a row.
    std::array<std::array<std::uint64_t, 2048>, 2> histogram{};
    const std::uint32_t digit_mask = (1U << digit.bits) - 1;
    for (const ScoredLane& lane : lanes) {
      for_each_key_word(lane, [&](std::size_t, std::uint64_t bits, const auto& keys) {
        if (bits == ~std::uint64_t{0} && prefix_mask == 0) {
          for (std::size_t b = 0; b < 64; b += 2) {
            ++histogram[0][keys[b] >> digit.shift & digit_mask];
            ++histogram[1][keys[b + 1] >> digit.shift & digit_mask];
          }
          return;
        }
        std::uint64_t matching = 0;
        for (std::size_t b = 0; b < 64; ++b) {
          matching |= std::uint64_t{(keys[b] & prefix_mask) == prefix} << b;
        }
        for (matching &= bits; matching != 0; matching &= matching - 1) {
          const auto b = static_cast<std::size_t>(std::countr_zero(matching));
          ++histogram[0][keys[b] >> digit.shift & digit_mask];
        }
      });
    }
    std::uint32_t bin = digit_mask;
    for (;; --bin) {
      const std::uint64_t count = histogram[0][bin] + histogram[1][bin];
      if (count >= quota)
        break;
      quota -= static_cast<std::size_t>(count);
    }
    prefix |= bin << digit.shift;
    prefix_mask |= digit_mask << digit.shift;
  }
  ties = quota;
  return prefix;
}

/// Candidates whose score is NaN or infinite.
[[nodiscard]] inline std::size_t count_non_finite(const ScoredLane& lane) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::size_t count = 0;
  for (std::size_t w = 0; w < lane.candidates.size(); ++w) {
    const std::span<const float> scores = lane.scores.subspan(w * 64);
    const std::size_t size = std::min<std::size_t>(64, scores.size());
    std::uint32_t any = 0;  // a loop of its own, so that it vectorises
    for (std::size_t b = 0; b < size; ++b)
      any |= (std::bit_cast<std::uint32_t>(scores[b]) & kExponent) == kExponent ? 1U : 0U;
    if (any == 0)
      continue;
    for_each_bit(lane.candidates.subspan(w, 1),
                 [&](std::size_t b) { count += std::isfinite(scores[b]) ? 0 : 1; });
  }
  return count;
}

// Marks all candidates but the worst one: lowest key, then latest lane and slot. One pass, for
// policies that evict a token in every step.
inline void drop_worst(std::span<const ScoredLane> lanes) noexcept {
  std::uint32_t worst = std::numeric_limits<std::uint32_t>::max();
  std::size_t worst_lane = 0;
  std::size_t worst_slot = 0;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    for_each_key_word(lanes[l], [&](std::size_t w, std::uint64_t bits, const auto& keys) {
      if (bits == ~std::uint64_t{0}) {
        std::uint32_t lowest = keys[0];  // a loop of its own, so that it vectorises
        for (const std::uint32_t key : keys)
          lowest = std::min(lowest, key);
        if (lowest > worst)
          return;
      }
      for (; bits != 0; bits &= bits - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(bits));
        if (keys[b] <= worst) {
          worst = keys[b];
          worst_lane = l;
          worst_slot = w * 64 + b;
        }
      }
    });
    for (std::size_t w = 0; w < lanes[l].keep.size(); ++w) {
      lanes[l].keep[w] |= lanes[l].candidates[w];
    }
  }
  clear_bit(lanes[worst_lane].keep, worst_slot);
}

}  // namespace detail

/// What was chosen competes no more.
inline void drop_chosen(const ScoredLane& lane) noexcept {
  for (std::size_t w = 0; w < lane.keep.size(); ++w)
    lane.candidates[w] &= ~lane.keep[w];
}

/// Marks the `quota` best candidates of all lanes together in their `keep` bits: exactly
/// min(quota, candidates), whatever the ties (rule R2). The order is total: higher score, then
/// earlier lane in `lanes`, then lower slot (rule R3); NaN comes last, +0 equals -0 (rule R4).
/// O(candidates), no allocation.
inline void select_top_k(std::span<const ScoredLane> lanes, std::size_t quota) noexcept {
  std::size_t num_candidates = 0;
  for (const ScoredLane& lane : lanes)
    num_candidates += detail::count_bits(lane.candidates);
  if (quota == 0)
    return;
  if (quota >= num_candidates) {
    for (const ScoredLane& lane : lanes) {
      for (std::size_t w = 0; w < lane.keep.size(); ++w)
        lane.keep[w] |= lane.candidates[w];
    }
    return;
  }
  if (quota + 1 == num_candidates)
    return detail::drop_worst(lanes);
  std::size_t ties = 0;
  const std::uint32_t threshold = detail::threshold_key(lanes, quota, ties);
  for (const ScoredLane& lane : lanes) {
    detail::for_each_key_word(lane, [&](std::size_t w, std::uint64_t bits, const auto& keys) {
      std::uint64_t above = 0;
      std::uint64_t equal = 0;
      for (std::size_t b = 0; b < 64; ++b) {
        above |= std::uint64_t{keys[b] > threshold} << b;
        equal |= std::uint64_t{keys[b] == threshold} << b;
      }
      lane.keep[w] |= above & bits;
      for (equal &= bits; equal != 0 && ties > 0; equal &= equal - 1, --ties) {
        lane.keep[w] |= equal & (~equal + 1);  // the lowest slot first
      }
    });
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TOP_K_HPP_
