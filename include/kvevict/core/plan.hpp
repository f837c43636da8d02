#ifndef KVEVICT_CORE_PLAN_HPP_
#define KVEVICT_CORE_PLAN_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

// A mask in the form in which an engine executes it, beside those that KeepMask has itself (bits,
// kept slots, kept and evicted runs, slot map). All walk the bits and allocate nothing.

/// Calls visit(from, to, count) for each run of rows that compacting moves: slots [from, from +
/// count) go to [to, to + count). Ascending, to < from, and no target overtakes a later source, so
/// the copy may be in place. Rows that lie right already are not named.
template <class Visit>
void for_each_move(const KeepMask& mask, std::size_t layer, std::size_t kv_head, Visit&& visit) {
  std::size_t target = 0;
  mask.for_each_kept_run(layer, kv_head, [&](std::size_t first, std::size_t last) {
    if (target != first)
      visit(first, target, last - first);
    target += last - first;
  });
}

/// Calls visit(page) for each page of `page_size` slots of which no slot is kept, ascending: what a
/// paged cache can free without moving anything. A last, partial page counts by the slots it has.
template <class Visit>
void for_each_free_page(const KeepMask& mask, std::size_t layer, std::size_t kv_head,
                        std::size_t page_size, Visit&& visit) {
  const std::size_t len = mask.seq_len(layer, kv_head);
  mask.for_each_evicted_run(layer, kv_head, [&](std::size_t first, std::size_t last) {
    for (std::size_t page = (first + page_size - 1) / page_size; page * page_size < last; ++page) {
      if ((page + 1) * page_size <= last || last == len)
        visit(page);
    }
  });
}

/// Writes the pages of `page_size` slots that hold a kept one, ascending, to `pages` [at least as
/// many as the lane has]; returns how many.
inline std::size_t kept_pages(const KeepMask& mask, std::size_t layer, std::size_t kv_head,
                              std::size_t page_size, std::span<std::uint32_t> pages) noexcept {
  std::size_t count = 0;
  mask.for_each_kept_run(layer, kv_head, [&](std::size_t first, std::size_t last) {
    for (std::size_t page = first / page_size; page * page_size < last; ++page) {
      if (count == 0 || pages[count - 1] != page)
        pages[count++] = static_cast<std::uint32_t>(page);
    }
  });
  return count;
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_PLAN_HPP_
