#ifndef KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_
#define KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/lane_scores.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Tokens of the newest append that come after the newest prompt; they are its last ones. 0 inside
/// a prompt.
[[nodiscard]] inline std::size_t decoded_in_step(const Sequence& sequence) noexcept {
  const std::size_t length = sequence.length();
  const auto prompt_end = sequence.prompt_end();
  return length - std::clamp(prompt_end, length - sequence.step_len(), length);
}

/// Calls visit(first, last) for every run of slots of `lane` that hold no prompt tokens, ascending.
template <class Visit>
void for_each_decoded_run(const Sequence& sequence, std::size_t lane, Visit&& visit) {
  std::size_t slot = 0;
  const auto visit_until = [&](std::size_t last) {
    if (slot < last)
      visit(slot, last);
  };
  for (const PositionSpan& prompt : sequence.prompts()) {
    visit_until(sequence.slots_before(lane, static_cast<std::size_t>(prompt.first)));
    slot = sequence.slots_before(lane, static_cast<std::size_t>(prompt.last));
  }
  visit_until(sequence.seq_len(lane));
}
/// Calls visit(slot) for each of their slots.
template <class Visit>
void for_each_decoded_slot(const Sequence& sequence, std::size_t lane, Visit&& visit) {
  for_each_decoded_run(sequence, lane, [&](std::size_t first, std::size_t last) {
    for (; first < last; ++first)
      visit(first);
  });
}

/// Makes one array of a lane's scores from score_run(first, out), which says those of the slots
/// [first, first + out.size()). Prompt tokens are not scored: the array starts behind them, and
/// those of further prompts are 0.
template <class ScoreRun>
void score_decoded_runs(const Sequence& sequence, LaneScores& scores, ScoreRun&& score_run) {
  const std::size_t len = scores.seq_len();
  bool started = false;
  std::span<float> left;  // of the array
  for_each_decoded_run(sequence, scores.lane(), [&](std::size_t first, std::size_t last) {
    if (!std::exchange(started, true)) {
      scores.start_one(first, len);
      left = scores.array(0);
    }
    const std::span<float> prompt = left.first(left.size() - (len - first));
    std::fill(prompt.begin(), prompt.end(), 0.0F);
    left = left.subspan(prompt.size());
    score_run(first, left.first(last - first));
    left = left.subspan(last - first);
  });
  if (!started)
    scores.start_one(len, len);
  std::fill(left.begin(), left.end(), 0.0F);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_
