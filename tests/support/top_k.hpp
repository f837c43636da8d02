#ifndef KVEVICT_TESTS_SUPPORT_TOP_K_HPP_
#define KVEVICT_TESTS_SUPPORT_TOP_K_HPP_

#include "kvevict/core/sequence.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvevict_test {

/// Scores of one lane, with bits to select in.
struct Lane {
  explicit Lane(std::vector<float> values)
      : scores(std::move(values)),
        candidates((scores.size() + 63) / 64, 0),
        keep(candidates.size(), 0) {
    for (std::size_t slot = 0; slot < scores.size(); ++slot)
      set(candidates, slot);
  }
  static void set(std::vector<std::uint64_t>& bits, std::size_t slot) {
    bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }
  static bool test(const std::vector<std::uint64_t>& bits, std::size_t slot) {
    return (bits[slot / 64] >> (slot % 64) & 1U) != 0;
  }
  /// Takes a slot out of the choice; it stays.
  void protect(std::size_t slot) {
    candidates[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    set(keep, slot);
  }
  [[nodiscard]] std::vector<std::size_t> kept() const {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < scores.size(); ++slot) {
      if (test(keep, slot))
        slots.push_back(slot);
    }
    return slots;
  }

  std::vector<float> scores;
  std::vector<std::uint64_t> candidates;
  std::vector<std::uint64_t> keep;
};

[[nodiscard]] inline std::vector<kvevict::ScoredLane> views_of(std::vector<Lane>& lanes) {
  std::vector<kvevict::ScoredLane> views;
  for (std::size_t l = 0; l < lanes.size(); ++l)
    views.push_back({l, lanes[l].scores, lanes[l].candidates, lanes[l].keep});
  return views;
}

/// Selects in all lanes together.
inline void select(std::vector<Lane>& lanes, std::size_t quota) {
  std::vector<kvevict::ScoredLane> views = views_of(lanes);
  kvevict::select_top_k(views, quota);
}

/// Slots that each lane keeps by selection.choose(lanes, quota, inputs..).
template <class Selection, class... Inputs>
[[nodiscard]] std::vector<std::vector<std::size_t>> chosen(const Selection& selection,
                                                           std::size_t quota,
                                                           std::vector<Lane> lanes,
                                                           const Inputs&... inputs) {
  std::vector<kvevict::ScoredLane> views = views_of(lanes);
  selection.choose(views, quota, inputs...);
  std::vector<std::vector<std::size_t>> kept;
  for (const Lane& lane : lanes)
    kept.push_back(lane.kept());
  return kept;
}

/// What selections look at that go by positions.
struct SequenceInput {
  const kvevict::Sequence& sequence;
};

/// The definition, as a sort: R3 and R4 word by word. Returns (lane, slot) in order of preference.
inline std::vector<std::pair<std::size_t, std::size_t>> by_preference(
    const std::vector<Lane>& lanes) {
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    for (std::size_t slot = 0; slot < lanes[l].scores.size(); ++slot) {
      if (Lane::test(lanes[l].candidates, slot))
        order.push_back({l, slot});
    }
  }
  // Pairs are in order of (lane, slot); a stable sort keeps that among equals.
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    const float score_a = lanes[a.first].scores[a.second];
    const float score_b = lanes[b.first].scores[b.second];
    if (std::isnan(score_a))
      return false;
    if (std::isnan(score_b))
      return true;
    return score_a > score_b;
  });
  return order;
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_TOP_K_HPP_
