#ifndef KVEVICT_SELECTION_TOP_K_HPP_
#define KVEVICT_SELECTION_TOP_K_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernels.hpp"

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

/// Calls visit(word_index, candidate bits, scores, how many) for every 64 slots of a lane that hold
/// a candidate; score b belongs to bit b.
template <class Visit>
void for_each_score_word(const ScoredLane& lane, Visit&& visit) {
  for (std::size_t w = 0; w < lane.candidates.size(); ++w) {
    if (lane.candidates[w] != 0) {
      visit(w, lane.candidates[w], lane.scores.data() + w * 64,
            std::min<std::size_t>(64, lane.scores.size() - w * 64));
    }
  }
}

// The largest key of which at least `quota` >= 1 candidates are equal or larger, found digit by
// digit: three histograms instead of a sort. `ties` becomes how many of that key are wanted.
inline std::uint32_t threshold_key(std::span<const ScoredLane> lanes, std::size_t quota,
                                   const kernels::KernelSet& kernel, std::size_t& ties) noexcept {
  struct Digit {
    unsigned shift;
    unsigned bits;
  };
  constexpr std::array<Digit, 3> kDigits{{{21, 11}, {10, 11}, {0, 10}}};
  std::uint32_t prefix = 0;
  std::uint32_t prefix_mask = 0;
  std::array<std::uint32_t, 64> keys{};
  for (const Digit digit : kDigits) {
    // Two histograms in turn: scores crowd in few bins, and a bin is slow to increment twice
    // in a row.
    std::array<std::array<std::uint64_t, 2048>, 2> histogram{};
    const std::uint32_t digit_mask = (1U << digit.bits) - 1;
    const auto count = [&](std::size_t which, std::uint32_t key) {
      ++histogram[which][key >> digit.shift & digit_mask];
    };
    for (const ScoredLane& lane : lanes) {
      for_each_score_word(lane, [&](std::size_t, std::uint64_t bits, const float* scores,
                                    std::size_t n) {
        if (prefix_mask != 0) {
          bits &= kernel.compare_keys(scores, n, prefix, prefix | ~prefix_mask).inside;
        } else if (bits == ~std::uint64_t{0}) {
          kernel.order_keys(scores, n, keys.data());
          for (std::size_t b = 0; b < 64; b += 2) {
            count(0, keys[b]);
            count(1, keys[b + 1]);
          }
          return;
        }
        for_each_bit({&bits, 1}, [&](std::size_t b) { count(0, kernels::order_key(scores[b])); });
      });
    }
    std::uint32_t bin = digit_mask;
    for (;; --bin) {
      const std::uint64_t in_bin = histogram[0][bin] + histogram[1][bin];
      if (in_bin >= quota)
        break;
      quota -= static_cast<std::size_t>(in_bin);
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
inline void drop_worst(std::span<const ScoredLane> lanes,
                       const kernels::KernelSet& kernel) noexcept {
  std::uint32_t worst = std::numeric_limits<std::uint32_t>::max();
  std::size_t worst_lane = 0;
  std::size_t worst_slot = 0;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    for_each_score_word(lanes[l],
                        [&](std::size_t w, std::uint64_t bits, const float* scores, std::size_t n) {
                          if (kernel.lowest_key(scores, n) > worst)
                            return;
                          for_each_bit({&bits, 1}, [&](std::size_t b) {
                            const std::uint32_t key = kernels::order_key(scores[b]);
                            if (key <= worst) {
                              worst = key;
                              worst_lane = l;
                              worst_slot = w * 64 + b;
                            }
                          });
                        });
    for (std::size_t w = 0; w < lanes[l].keep.size(); ++w)
      lanes[l].keep[w] |= lanes[l].candidates[w];
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
  // The same bits on every machine: keys are integers.
  const kernels::KernelSet& kernel = kernels::best();
  if (quota + 1 == num_candidates)
    return detail::drop_worst(lanes, kernel);
  std::size_t ties = 0;
  const std::uint32_t threshold = detail::threshold_key(lanes, quota, kernel, ties);
  for (const ScoredLane& lane : lanes) {
    detail::for_each_score_word(
        lane, [&](std::size_t w, std::uint64_t bits, const float* scores, std::size_t n) {
          const kernels::KeyBits found = kernel.compare_keys(scores, n, threshold, threshold);
          lane.keep[w] |= found.above & bits;
          for (std::uint64_t equal = found.inside & bits; equal != 0 && ties > 0;
               equal &= equal - 1, --ties) {
            lane.keep[w] |= equal & (~equal + 1);  // the lowest slot first
          }
        });
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TOP_K_HPP_
