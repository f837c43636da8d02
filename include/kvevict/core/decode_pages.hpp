#ifndef KVEVICT_CORE_DECODE_PAGES_HPP_
#define KVEVICT_CORE_DECODE_PAGES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// Decoded tokens in pages of `size` by position, counted anew from the end of each prompt. What
/// was evicted leaves its page smaller; prompt tokens are in no such page.
struct DecodePages {
  std::size_t size = 16;

  /// Calls visit(first, last) with the slots of each page of `lane` that has any, ascending.
  template <class Visit>
  void for_each(const Sequence& sequence, std::size_t lane, Visit&& visit) const {
    for_each_stretch(sequence, [&](std::size_t origin, std::size_t end, bool is_decoded) {
      if (is_decoded)
        for_each_from(sequence, lane, origin, end, visit);
    });
  }
  /// The same with the tokens of prompts, in pages from the beginning of each prompt: visit(first,
  /// last, is_decoded).
  template <class Visit>
  void for_each_with_prompts(const Sequence& sequence, std::size_t lane, Visit&& visit) const {
    for_each_stretch(sequence, [&](std::size_t origin, std::size_t end, bool is_decoded) {
      for_each_from(sequence, lane, origin, end,
                    [&](std::size_t first, std::size_t last) { visit(first, last, is_decoded); });
    });
  }

 private:
  // Positions [origin, end) that are decoded or a prompt, in turn.
  template <class Visit>
  static void for_each_stretch(const Sequence& sequence, Visit&& visit) {
    std::size_t end = 0;
    for (const PositionSpan& prompt : sequence.prompts()) {
      visit(end, static_cast<std::size_t>(prompt.first), true);
      end = static_cast<std::size_t>(prompt.last);
      visit(static_cast<std::size_t>(prompt.first), end, false);
    }
    visit(end, sequence.length(), true);
  }
  template <class Visit>
  void for_each_from(const Sequence& sequence, std::size_t lane, std::size_t origin,
                     std::size_t end, Visit&& visit) const {
    const std::size_t last = sequence.slots_before(lane, end);
    for (std::size_t slot = sequence.slots_before(lane, origin); slot < last;) {
      const auto position = static_cast<std::size_t>(sequence.position(lane, slot));
      const std::size_t page_end = origin + ((position - origin) / size + 1) * size;
      std::size_t next = slot + 1;
      while (next < last && static_cast<std::size_t>(sequence.position(lane, next)) < page_end)
        ++next;
      visit(slot, next);
      slot = next;
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_DECODE_PAGES_HPP_
