#ifndef KVEVICT_SELECTION_MASS_THEN_DIVERSE_HPP_
#define KVEVICT_SELECTION_MASS_THEN_DIVERSE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Chunks in two stages: the best ones until they hold a share `mass` of the scores of all that
/// compete, then of the others those of the best second scores: diversity.rescore(input, lane,
/// area) writes these over the first, area being the bits of all that competed.
template <class Diversity>
class MassThenDiverse {
 public:
  static constexpr Inputs kRequiredInputs = Diversity::kRequiredInputs;

  MassThenDiverse(const ChunkOptions& chunks, double mass, Diversity diversity)
      : chunks_(chunks), mass_(mass), diversity_(std::move(diversity)) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    area_.clear();
    for (const ScoredLane& lane : lanes)
      area_.insert(area_.end(), lane.candidates.begin(), lane.candidates.end());
    chunks_.take_best(lanes, quota, mass_);
    std::size_t word = 0;
    for (const ScoredLane& lane : lanes) {
      const std::size_t words = lane.candidates.size();
      if (quota > 0)
        diversity_.rescore(input, lane, std::span<const std::uint64_t>(area_).subspan(word, words));
      word += words;
    }
    chunks_.choose(lanes, quota, input);
  }

 private:
  WholeChunks chunks_;
  double mass_;
  Diversity diversity_;
  mutable std::vector<std::uint64_t> area_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_MASS_THEN_DIVERSE_HPP_
