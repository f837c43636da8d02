#ifndef KVEVICT_ALLOCATION_WHOLE_BLOCKS_HPP_
#define KVEVICT_ALLOCATION_WHOLE_BLOCKS_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"

#include <cstddef>
#include <limits>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// A cache of whole blocks: sinks | evictable | recent, all multiples of the block. A cut is due
/// when one more block than the budget holds is full, and leaves the budget and the tokens of the
/// block that is being written, which stay beside the recent ones; so no cache holds more than
/// budget + block_size - 1 tokens for longer than a step. Prompts are cut at their end.
struct WholeBlocks {
  std::size_t budget = 0;  ///< tokens
  std::size_t num_sink_tokens = 0;
  std::size_t recent_window = 0;
  std::size_t block_size = 1;

  /// Throws InvalidArgument, naming `where`, for sizes that are not whole blocks and for a budget
  /// that leaves nothing to choose.
  void check(std::string_view where) const {
    detail::require(block_size > 0, where, "block_size", block_size, "must be > 0");
    detail::require(budget % block_size == 0, where, "budget", budget,
                    "must be a multiple of block_size");
    detail::require(num_sink_tokens % block_size == 0, where, "num_sink_tokens", num_sink_tokens,
                    "must be a multiple of block_size");
    detail::require(recent_window % block_size == 0, where, "recent_window", recent_window,
                    "must be a multiple of block_size");
    detail::require(budget > detail::saturating_add(num_sink_tokens, recent_window), where,
                    "budget", budget, "must exceed the sinks and the recent window");
  }

  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept {
    return {.num_sink_tokens = num_sink_tokens,
            .recent_window = recent_window + num_tokens(sequence) % block_size};
  }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    const std::size_t tokens = num_tokens(sequence);
    if (sequence.in_prompt() || tokens < detail::saturating_add(budget, block_size))
      return {.budget = std::numeric_limits<std::size_t>::max()};
    return {.budget = budget + tokens % block_size};
  }

 private:
  // All lanes lose equally many.
  [[nodiscard]] static std::size_t num_tokens(const Sequence& sequence) noexcept {
    return sequence.seq_len(0) - sequence.padding_left(0);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_WHOLE_BLOCKS_HPP_
