#ifndef KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_
#define KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lag_partitions.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/stretch_top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

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
    const std::size_t pinned = detail::count_bits(lane.keep, first, last);
    best_.select(lane, first, last, kept_ - std::min(kept_, pinned));
  }

  LagLayout layout_;
  std::size_t kept_;
  mutable StretchTopK best_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_PARTITION_QUOTAS_HPP_
