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
#include <functional>
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

/// Order keys from `lowest` to `highest`, both included.
struct KeyRange {
  std::uint32_t lowest = 0;
  std::uint32_t highest = std::numeric_limits<std::uint32_t>::max();
};

/// Where the quota-th best of `num_candidates` most likely lies: four deviations around its place
/// in a sample of candidates that are evenly spaced, one of each 64th to 2048th word. A wrong guess
/// costs a pass and changes nothing.
[[nodiscard]] inline KeyRange likely_range(std::span<const ScoredLane> lanes,
                                           std::size_t num_candidates, std::size_t quota) noexcept {
  constexpr std::size_t kMost = 4096;
  std::size_t num_words = 0;
  for (const ScoredLane& lane : lanes)
    num_words += lane.candidates.size();
  // A sample of a few says nothing, and many are sorted for longer than a pass takes.
  const std::size_t wanted = std::min(num_candidates / 32, kMost);
  if (wanted < 32)
    return {};
  const std::size_t stride = (num_words + wanted - 1) / wanted;
  std::array<std::uint32_t, kMost> sample{};
  std::size_t size = 0;
  std::size_t until_next = 0;
  for (const ScoredLane& lane : lanes) {
    for (; until_next < lane.candidates.size() && size < kMost; until_next += stride) {
      // From a bit on that changes from word to word: neighbours are alike.
      const std::uint64_t bits = lane.candidates[until_next];
      const std::uint64_t turned = std::rotr(bits, static_cast<int>(size * 29 % 64));
      if (bits == 0)
        continue;
      const std::size_t bit = (static_cast<std::size_t>(std::countr_zero(turned)) + size * 29) % 64;
      sample[size++] = kernels::order_key(lane.scores[until_next * 64 + bit]);
    }
    until_next -= std::min(until_next, lane.candidates.size());
  }
  if (size < 32)
    return {};
  const double share = static_cast<double>(quota) / static_cast<double>(num_candidates);
  const double place = share * static_cast<double>(size);
  const double margin = 4.0 * std::sqrt(place * (1.0 - share)) + 1.0;
  const auto key_at = [&](double rank) {
    const auto nth = sample.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(sample.begin(), nth, sample.begin() + static_cast<std::ptrdiff_t>(size),
                     std::greater<>());
    return *nth;
  };
  KeyRange range;
  if (place - margin >= 0.0)
    range.highest = key_at(place - margin);
  if (place + margin < static_cast<double>(size))
    range.lowest = key_at(place + margin);
  return range;
}

/// Keys that the last ones that stay have, and how many of these stay.
struct Threshold {
  KeyRange range;
  std::size_t num_inside = 0;  ///< candidates with such a key
  std::size_t wanted = 0;      ///< of them; all above stay
};

/// Narrows the range down, 2048 bins in each pass, to one that holds at most `enough` candidates or
/// one key.
/// @param quota  in [1, candidates]
[[nodiscard]] inline Threshold find_threshold(std::span<const ScoredLane> lanes, KeyRange range,
                                              std::size_t quota, std::size_t enough,
                                              const kernels::KernelSet& kernel) noexcept {
  constexpr unsigned kBinBits = 11;
  for (;;) {
    const auto width = static_cast<unsigned>(std::bit_width(range.highest - range.lowest));
    const unsigned shift = width > kBinBits ? width - kBinBits : 0;
    std::array<std::uint64_t, std::size_t{1} << kBinBits> histogram{};
    std::size_t above = 0;
    for (const ScoredLane& lane : lanes) {
      for_each_score_word(lane, [&](std::size_t, std::uint64_t bits, const float* scores,
                                    std::size_t n) {
        const kernels::KeyBits found = kernel.compare_keys(scores, n, range.lowest, range.highest);
        above += static_cast<std::size_t>(std::popcount(found.above & bits));
        const std::uint64_t inside = found.inside & bits;
        for_each_bit({&inside, 1}, [&](std::size_t b) {
          ++histogram[(kernels::order_key(scores[b]) - range.lowest) >> shift];
        });
      });
    }
    std::size_t bin = histogram.size();
    std::size_t better = above;
    while (bin > 0 && better < quota)
      better += static_cast<std::size_t>(histogram[--bin]);
    if (above >= quota || better < quota) {
      range = {};  // the guess was wrong
      continue;
    }
    const auto num_inside = static_cast<std::size_t>(histogram[bin]);
    const std::uint32_t lowest = range.lowest + (static_cast<std::uint32_t>(bin) << shift);
    const std::uint32_t size = (std::uint32_t{1} << shift) - 1;
    range = {lowest, lowest + std::min(size, range.highest - lowest)};
    if (shift == 0 || num_inside <= enough)
      return {range, num_inside, quota - (better - num_inside)};
  }
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
  constexpr std::size_t kStretch = 16;  // words that are looked at together
  std::uint32_t worst = std::numeric_limits<std::uint32_t>::max();
  // Where it is: the last such key of these slots.
  std::size_t worst_lane = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  const auto take = [&](std::uint32_t key, std::size_t l, std::size_t from, std::size_t to) {
    if (key > worst)
      return;
    worst = key;
    worst_lane = l;
    first = from;
    last = to;
  };
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const ScoredLane& lane = lanes[l];
    const std::size_t num_words = lane.candidates.size();
    for (std::size_t w = 0; w < num_words;) {
      lane.keep[w] |= lane.candidates[w];
      const std::size_t from = w * 64;
      const std::uint64_t bits = lane.candidates[w++];
      if (bits == 0)
        continue;
      const bool full = bits == lowest_bits(lane.scores.size() - from);
      for (const std::size_t end = std::min(w - 1 + kStretch, num_words);
           full && w < end && lane.candidates[w] == lowest_bits(lane.scores.size() - w * 64); ++w)
        lane.keep[w] |= lane.candidates[w];
      const std::size_t to = std::min(w * 64, lane.scores.size());
      const std::uint32_t lowest = kernel.lowest_key(lane.scores.data() + from, to - from);
      if (full) {
        take(lowest, l, from, to);
      } else if (lowest <= worst) {
        for_each_bit({&bits, 1}, [&](std::size_t b) {
          take(kernels::order_key(lane.scores[from + b]), l, from + b, from + b + 1);
        });
      }
    }
  }
  while (last - first > 1 && kernels::order_key(lanes[worst_lane].scores[last - 1]) != worst)
    --last;
  clear_bit(lanes[worst_lane].keep, last - 1);
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
/// O(candidates), two passes over the scores where a sample says about where the threshold lies, at
/// most five; no allocation.
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
  // Those at the threshold are sorted where they are few.
  struct Rival {
    std::uint32_t key;
    std::size_t lane;
    std::size_t slot;
  };
  constexpr std::size_t kMostRivals = 256;
  const detail::Threshold threshold = detail::find_threshold(
      lanes, detail::likely_range(lanes, num_candidates, quota), quota, kMostRivals, kernel);
  const bool sorts = threshold.num_inside <= kMostRivals && threshold.wanted < threshold.num_inside;
  std::array<Rival, kMostRivals> rivals{};
  std::size_t num_rivals = 0;
  std::size_t wanted = threshold.wanted;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    const ScoredLane& lane = lanes[l];
    detail::for_each_score_word(
        lane, [&](std::size_t w, std::uint64_t bits, const float* scores, std::size_t n) {
          const kernels::KeyBits found =
              kernel.compare_keys(scores, n, threshold.range.lowest, threshold.range.highest);
          lane.keep[w] |= found.above & bits;
          const std::uint64_t inside = found.inside & bits;
          detail::for_each_bit({&inside, 1}, [&](std::size_t b) {
            if (sorts) {
              rivals[num_rivals++] = {kernels::order_key(scores[b]), l, w * 64 + b};
            } else if (wanted > 0) {
              detail::set_bit(lane.keep, w * 64 + b);  // the lowest slot first
              --wanted;
            }
          });
        });
  }
  if (!sorts)
    return;
  const std::span<Rival> all = std::span(rivals).first(num_rivals);
  std::sort(all.begin(), all.end(), [](const Rival& a, const Rival& b) {
    if (a.key != b.key)
      return a.key > b.key;
    return a.lane != b.lane ? a.lane < b.lane : a.slot < b.slot;
  });
  for (const Rival& rival : all.first(wanted))
    detail::set_bit(lanes[rival.lane].keep, rival.slot);
}

/// Of several lanes, the best of each that has nothing yet stays and competes no more (rule R15);
/// returns how many these are, at most `quota`.
inline std::size_t keep_one_each(std::span<const ScoredLane> lanes, std::size_t quota) noexcept {
  std::size_t num_kept = 0;
  for (std::size_t l = 0; l < lanes.size() && lanes.size() > 1 && num_kept < quota; ++l) {
    if (detail::count_bits(lanes[l].keep) > 0 || detail::count_bits(lanes[l].candidates) == 0)
      continue;
    select_top_k(lanes.subspan(l, 1), 1);
    drop_chosen(lanes[l]);
    ++num_kept;
  }
  return num_kept;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TOP_K_HPP_
