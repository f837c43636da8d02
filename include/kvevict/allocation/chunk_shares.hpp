#ifndef KVEVICT_ALLOCATION_CHUNK_SHARES_HPP_
#define KVEVICT_ALLOCATION_CHUNK_SHARES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How a prompt is cut in chunks that keep a share each, and what that leaves.
struct ChunkShareOptions {
  Budget budget = Budget::tokens(0);  ///< with chunks, a share of each chunk's tokens
  std::size_t chunk_len = 0;          ///< tokens; 0: no chunks, the budget is that of a lane
  std::size_t window = 0;  ///< last tokens of the prompt, which stay whatever their chunk's share
};

/// Calls visit(first, last, count) for each chunk of the newest prompt: the slots of it that are
/// left, and how many of them may stay. Chunks are made of positions, from the first token that is
/// no padding on, so that a chunk that was cut is not cut again; the last may be short.
template <class Visit>
void for_each_prompt_chunk(const Sequence& sequence, std::size_t lane,
                           const ChunkShareOptions& options, Visit&& visit) {
  const auto end = sequence.prompt_end();
  const std::size_t window_start = end - std::min(end, options.window);
  std::size_t first = static_cast<std::size_t>(sequence.prompt().first);
  if (first == 0)
    first += sequence.first_prompt_padding();
  while (first < end) {
    const std::size_t last = end - first > options.chunk_len ? first + options.chunk_len : end;
    const std::size_t protected_tokens = last - std::min(last, std::max(first, window_start));
    visit(sequence.slots_before(lane, first), sequence.slots_before(lane, last),
          std::max(options.budget.tokens_of(last - first), protected_tokens));
    first = last;
  }
}

/// Each lane may keep the shares of the newest prompt's chunks and all that came before it.
class ChunkShares {
 public:
  ChunkShares(const ChunkShareOptions& options, const CacheShape& shape, MaskScope scope)
      : options_(options), lane_budgets_(shape.num_lanes(scope)) {}

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (options_.chunk_len == 0)
      return {.budget = options_.budget};
    const auto start = static_cast<std::size_t>(sequence.prompt().first);
    for (std::size_t lane = 0; lane < lane_budgets_.size(); ++lane) {
      lane_budgets_[lane] = sequence.slots_before(lane, start);
      for_each_prompt_chunk(sequence, lane, options_,
                            [&](std::size_t first, std::size_t last, std::size_t count) {
                              lane_budgets_[lane] += std::min(count, last - first);
                            });
    }
    return {.budget = options_.budget, .lane_budgets = lane_budgets_};
  }

 private:
  ChunkShareOptions options_;
  mutable std::vector<std::size_t> lane_budgets_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_CHUNK_SHARES_HPP_
