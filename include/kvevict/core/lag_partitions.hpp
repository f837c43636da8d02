#ifndef KVEVICT_CORE_LAG_PARTITIONS_HPP_
#define KVEVICT_CORE_LAG_PARTITIONS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"

#include <algorithm>
#include <cstddef>

KVEVICT_NAMESPACE_BEGIN

/// What a lane behind its first tokens is cut into for LagKV.
struct LagLayout {
  std::size_t num_sink_tokens = 16;
  std::size_t lag_len = 1024;  ///< tokens in a partition, > 0
  /// Partitions that were cut before are left alone. Otherwise all that is cached is cut anew.
  bool once = true;
};

/// Partitions of a lane that have one behind them to be compared with: slots
/// [first + p * len, first + (p + 1) * len) for p < num.
struct LagPartitions {
  std::size_t first = 0;
  std::size_t len = 0;
  std::size_t num = 0;

  [[nodiscard]] std::size_t end() const noexcept { return first + num * len; }
};

/// Where `once`, partitions are made of positions, and one that lost tokens has been cut: what is
/// found depends on the tokens alone, not on how often the cache was cut. Left padding comes before
/// the first sink.
[[nodiscard]] inline LagPartitions find_lag_partitions(const Sequence& sequence, std::size_t lane,
                                                       const LagLayout& layout) noexcept {
  const std::size_t len = layout.lag_len;
  const std::size_t seq_len = sequence.seq_len(lane);
  const std::size_t start = sequence.first_prompt_padding() + layout.num_sink_tokens;
  if (!layout.once) {
    // Padding goes with the first cut.
    const std::size_t first =
        seq_len == sequence.length() ? start : std::min(start, layout.num_sink_tokens);
    const std::size_t num = seq_len > first ? (seq_len - first) / len : 0;
    return {first, len, num > 0 ? num - 1 : 0};
  }
  const std::size_t num = sequence.length() > start ? (sequence.length() - start) / len : 0;
  const auto slot_of = [&](std::size_t partition) {
    return sequence.slots_before(lane, start + partition * len);
  };
  std::size_t whole = num;  // the first of those that are whole up to the newest
  while (whole > 0 && slot_of(whole) - slot_of(whole - 1) == len)
    --whole;
  const std::size_t count = num - whole;
  return {slot_of(whole), len, count > 0 ? count - 1 : 0};
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_LAG_PARTITIONS_HPP_
