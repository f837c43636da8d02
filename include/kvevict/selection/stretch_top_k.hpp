#ifndef KVEVICT_SELECTION_STRETCH_TOP_K_HPP_
#define KVEVICT_SELECTION_STRETCH_TOP_K_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/top_k.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// select_top_k among the slots of a stretch of one lane. Owns the memory that this takes.
class StretchTopK {
 public:
  /// Marks the `quota` best candidates of [first, last), which are none any more then; returns how
  /// many there were of them, at most `quota`.
  std::size_t select(const ScoredLane& lane, std::size_t first, std::size_t last,
                     std::size_t quota) {
    if (first >= last || quota == 0)
      return 0;
    const std::size_t first_word = first / 64;
    const std::size_t num_words = (last + 63) / 64 - first_word;
    candidates_.resize(num_words);
    for (std::size_t w = 0; w < num_words; ++w)
      candidates_[w] = detail::word_of_range(lane.candidates, first_word + w, first, last);
    const ScoredLane stretch{lane.lane, lane.scores.subspan(first_word * 64), candidates_,
                             lane.keep.subspan(first_word, num_words)};
    select_top_k({&stretch, 1}, quota);
    for (std::size_t w = 0; w < num_words; ++w) {
      candidates_[w] &= stretch.keep[w];
      lane.candidates[first_word + w] &= ~candidates_[w];
    }
    return detail::count_bits(candidates_);
  }

 private:
  std::vector<std::uint64_t> candidates_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_STRETCH_TOP_K_HPP_
