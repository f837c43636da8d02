#ifndef KVEVICT_SCORING_OBSERVATION_WINDOW_HPP_
#define KVEVICT_SCORING_OBSERVATION_WINDOW_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Where the last tokens of the newest prompt, whose queries vote, lie in a lane. What is
/// protected as the recent window are the slots [prefix_end, prompt_end).
struct ObservationWindow {
  std::size_t first = 0;       ///< first valid slot: left padding is no neighbour of anything
  std::size_t prefix_end = 0;  ///< where the window begins
  std::size_t prompt_end = 0;  ///< where it ends; decoded tokens follow
};

/// The window of the last tokens before slot `end`.
///
/// @param window  tokens; only valid slots count (rule R9)
/// @param valid   of the lane; empty: all valid
/// @note  O(1), or O(padding + window) where `valid` is given.
[[nodiscard]] inline ObservationWindow find_window(std::size_t end, std::size_t window,
                                                   std::span<const std::uint8_t> valid) noexcept {
  ObservationWindow found{.prefix_end = end, .prompt_end = end};
  if (valid.empty()) {
    found.prefix_end -= window < end ? window : end;
    return found;
  }
  while (found.first < end && valid[found.first] == 0)
    ++found.first;
  while (found.prefix_end > found.first && window > 0) {
    --found.prefix_end;
    if (valid[found.prefix_end] != 0)
      --window;
  }
  return found;
}

/// The window at the end of the newest prompt.
[[nodiscard]] inline ObservationWindow find_observation_window(
    const Sequence& sequence, std::size_t lane, std::size_t window,
    std::span<const std::uint8_t> valid) noexcept {
  return find_window(sequence.slots_before(lane, sequence.prompt_end()), window, valid);
}

/// Slots before the window that the lane has, or will have once all of the prompt is appended:
/// what a row of the window sees of the past. For rows that come while the prompt is being fed.
[[nodiscard]] inline std::size_t past_of_window(const Sequence& sequence, std::size_t layer,
                                                std::size_t kv_head, std::size_t window) noexcept {
  const std::size_t prompt_end = sequence.seq_len(layer, kv_head) + sequence.pending_prompt();
  return prompt_end > window ? prompt_end - window : 0;
}

/// Rows of the newest step that can still be among the newest `window` when something is cut, for
/// policies that look at the newest rows and cut no prompt before its end: of a prompt the last.
[[nodiscard]] inline std::size_t recent_rows_wanted(const Sequence& sequence,
                                                    std::size_t window) noexcept {
  return sequence.num_decoded() > 0 ? window : sequence.step_rows_in_window(window);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OBSERVATION_WINDOW_HPP_
