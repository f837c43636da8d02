#ifndef KVEVICT_TEMPORAL_REFRESH_STEPS_HPP_
#define KVEVICT_TEMPORAL_REFRESH_STEPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// In which steps behind a prompt what is known of tokens is renewed (InertiaKV, arXiv 2609.03515):
/// t = 1, 1 + interval, 1 + 2 interval, .., or t = 1 alone. Steps are tokens: those that are
/// appended together are steps one after another. A further prompt starts the count over.
///
/// A CutSchedule that cuts in every k-th step counts for itself: it cuts in steps k, 2k, .., which
/// are none of these where k and the interval have a divisor in common. With k = interval each cut
/// goes by what is interval - 1 steps old.
struct RefreshSteps {
  std::size_t interval = 1;  ///< steps from one refresh to the next
  bool score_free = false;   ///< refresh in the first step after a prompt and never again, whatever
                             ///< the interval

  /// Throws InvalidArgument, naming `where`.
  void check(std::string_view where) const {
    detail::require(interval > 0, where, "refresh_interval", interval, "must be > 0");
  }
  [[nodiscard]] bool are_all() const noexcept { return interval == 1 && !score_free; }
  /// Whether the step of a decoded token is one.
  [[nodiscard]] bool include(const Sequence& sequence, std::size_t position) const noexcept {
    const std::size_t behind_prompt = position - sequence.prompt_end();
    return score_free ? behind_prompt == 0 : behind_prompt % interval == 0;
  }
  /// How many decoded tokens of the newest append there are from the first one on whose step is
  /// one.
  [[nodiscard]] std::size_t tokens_in_step(const Sequence& sequence) const noexcept {
    std::size_t tokens = decoded_in_step(sequence);
    while (tokens > 0 && !include(sequence, sequence.length() - tokens))
      --tokens;
    return tokens;
  }
  /// Whether the newest append has a token of a prompt, or one whose step is one.
  [[nodiscard]] bool renew_in_step(const Sequence& sequence) const noexcept {
    if (are_all())
      return true;
    const std::size_t decoded = decoded_in_step(sequence);
    return decoded == 0 || decoded < sequence.step_len() || tokens_in_step(sequence) > 0;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_REFRESH_STEPS_HPP_
