#ifndef KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_
#define KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <algorithm>
#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// Tokens of the newest append that come after the newest prompt; they are its last ones. 0 inside
/// a prompt.
[[nodiscard]] inline std::size_t decoded_in_step(const Sequence& sequence) noexcept {
  const std::size_t length = sequence.length();
  const auto prompt_end = sequence.prompt_end();
  return length - std::clamp(prompt_end, length - sequence.step_len(), length);
}

/// Calls visit(slot) for every slot of `lane` that holds no prompt token, ascending.
template <class Visit>
void for_each_decoded_slot(const Sequence& sequence, std::size_t lane, Visit&& visit) {
  std::size_t slot = 0;
  for (const PositionSpan& prompt : sequence.prompts()) {
    const std::size_t first = sequence.slots_before(lane, static_cast<std::size_t>(prompt.first));
    for (; slot < first; ++slot)
      visit(slot);
    slot = sequence.slots_before(lane, static_cast<std::size_t>(prompt.last));
  }
  for (; slot < sequence.seq_len(lane); ++slot)
    visit(slot);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_DECODED_TOKENS_HPP_
