#ifndef KVEVICT_SELECTION_WHOLE_CHUNKS_HPP_
#define KVEVICT_SELECTION_WHOLE_CHUNKS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What a chunk is worth, given the scores of its tokens.
enum class ChunkScore : std::uint8_t {
  kSum,   ///< a last chunk that is not full has less to offer
  kMean,  ///< by the tokens that it has
};

[[nodiscard]] constexpr auto enum_names(ChunkScore /*type*/) noexcept {
  return std::array<std::pair<std::string_view, ChunkScore>, 2>{
      {{"sum", ChunkScore::kSum}, {"mean", ChunkScore::kMean}}};
}

struct ChunkOptions {
  std::size_t chunk_len = 10;  ///< valid tokens in a row that stay or go together, > 0
  ChunkScore score = ChunkScore::kSum;
  bool fill_rest = false;       ///< what is left of the budget goes to the best single tokens
  std::size_t best_newest = 0;  ///< so many newest candidates count as better than any score: the
                                ///< chunk with the larger share of them comes first

  /// Throws InvalidArgument, naming `where`.
  void check(std::string_view where) const {
    detail::require(chunk_len > 0, where, "chunk_len", chunk_len, "must be > 0");
  }
};

namespace detail {

/// Calls visit(first, last) with the slots of each chunk of `chunk_len` valid tokens of a lane,
/// counted from its first valid slot. A slot is valid that competes or was chosen.
template <class Visit>
void for_each_chunk(const ScoredLane& lane, std::size_t chunk_len, Visit&& visit) {
  for (std::size_t slot = 0; slot < lane.scores.size();) {
    const std::size_t first = slot;
    for (std::size_t tokens = 0; tokens < chunk_len && slot < lane.scores.size(); ++slot)
      tokens += has_bit(lane.candidates, slot) || has_bit(lane.keep, slot) ? 1 : 0;
    visit(first, slot);
  }
}

}  // namespace detail

/// Chunks of tokens, cut from the first valid slot of each lane, stay or go as a whole: the best
/// ones in turn, until the next does not fit in what the lane may keep. Equal ones: the earlier
/// first. A token that is protected stays whatever becomes of its chunk and has no part in its
/// score. Where not even the best chunk fits, the best tokens stay, so that a small budget does not
/// empty the cache.
class WholeChunks {
 public:
  explicit WholeChunks(const ChunkOptions& options) : options_(options) {}

  /// Of lanes that compete, each chunk stands alone: chunks do not reach over lanes.
  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& /*input*/) const {
    if (take_best(lanes, quota, 1.0) == 0 || options_.fill_rest)
      select_top_k(lanes, quota);
  }
  /// Takes the best chunks in turn until one does not fit in `quota`, which loses what they need,
  /// or, if `mass` < 1, until they hold that share of the scores of all candidates; returns how
  /// many it took. Scores are >= 0 where there is a mass; what is not finite has none.
  std::size_t take_best(std::span<ScoredLane> lanes, std::size_t& quota, double mass) const {
    find_chunks(lanes);
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) {
      if (a.newest_share != b.newest_share)
        return a.newest_share > b.newest_share;
      if (a.key != b.key)
        return a.key > b.key;
      return std::pair{a.lane, a.first} < std::pair{b.lane, b.first};
    });
    double all = 0.0;
    for (const Chunk& chunk : chunks_)
      all += chunk.mass;
    std::size_t taken = 0;
    double held = 0.0;
    for (const Chunk& chunk : chunks_) {
      if (chunk.num_candidates > quota || (mass < 1.0 && held >= mass * all))
        break;
      held += chunk.mass;
      ++taken;
      quota -= detail::SlotTaker(lanes[chunk.lane].keep, lanes[chunk.lane].candidates)
                   .take(chunk.first, chunk.last);
    }
    return taken;
  }

 private:
  struct Chunk {
    std::size_t lane = 0;
    std::size_t first = 0;  // slots
    std::size_t last = 0;
    std::size_t num_candidates = 0;
    double newest_share = 0;
    double mass = 0;
    std::uint32_t key = 0;  // of its score
  };

  void find_chunks(std::span<const ScoredLane> lanes) const {
    chunks_.clear();
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const ScoredLane& lane = lanes[l];
      std::size_t older = detail::count_bits(lane.candidates);
      older -= std::min(older, options_.best_newest);
      detail::for_each_chunk(lane, options_.chunk_len, [&](std::size_t first, std::size_t last) {
        Chunk chunk{.lane = l, .first = first, .last = last};
        std::size_t num_newest = 0;
        double sum = 0.0;
        for (std::size_t slot = first; slot < last; ++slot) {
          if (!detail::has_bit(lane.candidates, slot))
            continue;
          ++chunk.num_candidates;
          num_newest += older == 0 ? 1 : 0;
          older -= older > 0 ? 1 : 0;
          const auto score = static_cast<double>(lane.scores[slot]);
          sum += score;
          chunk.mass += std::isfinite(score) ? score : 0.0;
        }
        if (chunk.num_candidates == 0)
          return;
        const auto count = static_cast<double>(chunk.num_candidates);
        chunk.newest_share = static_cast<double>(num_newest) / count;
        chunk.key = kernels::order_key(
            static_cast<float>(options_.score == ChunkScore::kMean ? sum / count : sum));
        chunks_.push_back(chunk);
      });
    }
  }

  ChunkOptions options_;
  mutable std::vector<Chunk> chunks_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_WHOLE_CHUNKS_HPP_
