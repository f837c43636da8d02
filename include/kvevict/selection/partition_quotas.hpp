#ifndef KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_
#define KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lag_partitions.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/selection/slot_bits.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// In every partition that is due the best stay, so many of each; all that lies outside stays.
class PartitionQuotas {
 public:
  /// @param kept  tokens of a partition that stay, pinned ones included
  PartitionQuotas(const LagLayout& layout, std::size_t kept) : layout_(layout), kept_(kept) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t /*quota*/, const Input& input) const {
    for (ScoredLane& lane : lanes) {
      const LagPartitions parts = find_lag_partitions(input.sequence, lane.lane, layout_);
      detail::SlotTaker outside(lane.keep, lane.candidates);
      outside.take(0, parts.first);
      outside.take(parts.end(), lane.scores.size());
      for (std::size_t p = 0; p < parts.num; ++p)
        keep_best_of(lane, parts.first + p * parts.len, parts.first + (p + 1) * parts.len);
    }
  }

 private:
  void keep_best_of(const ScoredLane& lane, std::size_t first, std::size_t last) const {
    const std::size_t first_word = first / 64;
    const std::size_t words = (last + 63) / 64 - first_word;
    const auto bits_of = [&](std::span<const std::uint64_t> all, std::size_t w) {
      const std::size_t start = (first_word + w) * 64;
      return all[first_word + w] & detail::lowest_bits(last - start) &
             ~detail::lowest_bits(first > start ? first - start : 0);
    };
    candidates_.resize(words);
    std::size_t pinned = 0;
    for (std::size_t w = 0; w < words; ++w) {
      candidates_[w] = bits_of(lane.candidates, w);
      const std::uint64_t kept = bits_of(lane.keep, w);
      pinned += detail::count_bits({&kept, 1});
    }
    const ScoredLane partition{lane.lane, lane.scores.subspan(first_word * 64), candidates_,
                               lane.keep.subspan(first_word, words)};
    select_top_k({&partition, 1}, kept_ - std::min(kept_, pinned));
  }

  LagLayout layout_;
  std::size_t kept_;
  mutable std::vector<std::uint64_t> candidates_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_
