#ifndef KVEVICT_SELECTION_TOP_K_HPP_
#define KVEVICT_SELECTION_TOP_K_HPP_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvevict/config.hpp"
#include "kvevict/kernels/kernel_set.hpp"

KVEVICT_NAMESPACE_BEGIN

/// One lane that takes part in a selection.
struct ScoredLane {
  std::size_t lane = 0;                 ///< its number in the mask
  std::span<float> scores;              ///< [seq_len]; read at candidates only
  std::span<std::uint64_t> candidates;  ///< bits of slots that may be chosen
  std::span<std::uint64_t> keep;        ///< bits of chosen slots; bits are only added
};

namespace detail {

template <class Visit>
void for_each_bit(std::span<const std::uint64_t> bits, Visit&& visit) {
  for (std::size_t w = 0; w < bits.size(); ++w) {
    if (bits[w] == ~std::uint64_t{0}) {
      for (std::size_t b = 0; b < 64; ++b) visit(w * 64 + b);
    } else {
      for (std::uint64_t word = bits[w]; word != 0; word &= word - 1) {
        visit(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      }
    }
  }
}

[[nodiscard]] inline std::size_t count_bits(std::span<const std::uint64_t> bits) noexcept {
  std::size_t count = 0;
  for (const std::uint64_t word : bits) count += static_cast<std::size_t>(std::popcount(word));
  return count;
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
    std::array<std::size_t, 2048> histogram{};
    for (const ScoredLane& lane : lanes) {
      for_each_bit(lane.candidates, [&](std::size_t slot) {
        const std::uint32_t key = kernels::order_key(lane.scores[slot]);
        if ((key & prefix_mask) == prefix) {
          ++histogram[key >> digit.shift & ((1U << digit.bits) - 1)];
        }
      });
    }
    std::uint32_t bin = (1U << digit.bits) - 1;
    for (; histogram[bin] < quota; --bin) quota -= histogram[bin];
    prefix |= bin << digit.shift;
    prefix_mask |= ((1U << digit.bits) - 1) << digit.shift;
  }
  ties = quota;
  return prefix;
}

}  // namespace detail

/// Marks the `quota` best candidates of all lanes together in their `keep` bits: exactly
/// min(quota, candidates), whatever the ties (rule R2). The order is total: higher score, then
/// earlier lane in `lanes`, then lower slot (rule R3); NaN comes last, +0 equals -0 (rule R4).
/// O(candidates), no allocation.
inline void select_top_k(std::span<const ScoredLane> lanes, std::size_t quota) noexcept {
  std::size_t num_candidates = 0;
  for (const ScoredLane& lane : lanes) num_candidates += detail::count_bits(lane.candidates);
  if (quota == 0) return;
  if (quota >= num_candidates) {
    for (const ScoredLane& lane : lanes) {
      for (std::size_t w = 0; w < lane.keep.size(); ++w) lane.keep[w] |= lane.candidates[w];
    }
    return;
  }
  std::size_t ties = 0;
  const std::uint32_t threshold = detail::threshold_key(lanes, quota, ties);
  for (const ScoredLane& lane : lanes) {
    detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
      const std::uint32_t key = kernels::order_key(lane.scores[slot]);
      if (key < threshold || (key == threshold && ties == 0)) return;
      if (key == threshold) --ties;
      lane.keep[slot / 64] |= std::uint64_t{1} << (slot % 64);
    });
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TOP_K_HPP_
