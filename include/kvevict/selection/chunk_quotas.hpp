#ifndef KVEVICT_SELECTION_CHUNK_QUOTAS_HPP_
#define KVEVICT_SELECTION_CHUNK_QUOTAS_HPP_

#include "kvevict/allocation/chunk_shares.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/selection/stretch_top_k.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// In every chunk of the newest prompt the best stay, as many as ChunkShares gives it, protected
/// ones included; what came before the prompt stays. Without chunks the best of all.
class ChunkQuotas {
 public:
  explicit ChunkQuotas(const ChunkShareOptions& options) : options_(options) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    if (options_.chunk_len == 0)
      return select_top_k(lanes, quota);
    for (ScoredLane& lane : lanes) {
      const auto start = static_cast<std::size_t>(input.sequence.prompt().first);
      quota -= best_.select(lane, 0, input.sequence.slots_before(lane.lane, start), quota);
      // Pinned tokens may need more than their chunk's share: later chunks then give way.
      for_each_prompt_chunk(input.sequence, lane.lane, options_,
                            [&](std::size_t first, std::size_t last, std::size_t count) {
                              const std::size_t held = detail::count_bits(lane.keep, first, last);
                              quota -= best_.select(lane, first, last,
                                                    std::min(quota, count - std::min(count, held)));
                            });
    }
  }

 private:
  ChunkShareOptions options_;
  mutable StretchTopK best_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_CHUNK_QUOTAS_HPP_
