#ifndef KVEVICT_SELECTION_HAMMING_REPRESENTATIVES_HPP_
#define KVEVICT_SELECTION_HAMMING_REPRESENTATIVES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/random_stream.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What the bits of a chunk are compared with (KVCrush).
enum class AnchorPoint : std::uint8_t {
  kRandom,  ///< bits by chance, the same for every selection
  kZeros,
  kOnes,
  kMean,         ///< 1 where more than half of the chunks that compete have a 1
  kAlternating,  ///< 0, 1, 0, 1, ..
};

[[nodiscard]] constexpr auto enum_names(AnchorPoint /*type*/) noexcept {
  return std::array<std::pair<std::string_view, AnchorPoint>, 5>{
      {{"random", AnchorPoint::kRandom},
       {"zeros", AnchorPoint::kZeros},
       {"ones", AnchorPoint::kOnes},
       {"mean", AnchorPoint::kMean},
       {"alternating", AnchorPoint::kAlternating}}};
}

struct RepresentativeOptions {
  std::size_t num_chunks = 1;  ///< of the quota that go to representatives
  std::size_t chunk_len = 16;  ///< tokens, that of the base selection
  AnchorPoint anchor = AnchorPoint::kRandom;
  std::uint64_t seed = 0;  ///< of a random anchor
};

/// Some of the chunks that another selection would evict stay as representatives of the others
/// (KVCrush, arXiv 2503.00022): a token has bit 1 if it is in the better half, rounded down, of all
/// that compete in its lane; a chunk is the word of its tokens' bits. Of the victims, by Hamming
/// distance from the anchor, equal ones the earlier first, every (victims / num_chunks)-th stays,
/// from the nearest on.
///
/// They are part of the quota: the base selection has that much less.
template <class Base>
class HammingRepresentatives {
 public:
  static constexpr Inputs kRequiredInputs = detail::required_by<Base>();

  HammingRepresentatives(Base base, const RepresentativeOptions& options)
      : options_(options), base_(std::move(base)) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    find_words(lanes);
    const std::size_t reserved = std::min(quota, options_.num_chunks * options_.chunk_len);
    base_.choose(lanes, quota - reserved, input);
    for (const ScoredLane& lane : lanes)
      drop_chosen(lane);
    std::erase_if(chunks_, [&](const Chunk& chunk) { return num_left(lanes, chunk) == 0; });
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) {
      return std::tie(a.distance, a.lane, a.first) < std::tie(b.distance, b.lane, b.first);
    });
    const std::size_t count = std::min(options_.num_chunks, chunks_.size());
    std::size_t left = reserved;
    for (std::size_t i = 0; i < count; ++i) {
      const Chunk& chunk = chunks_[i * (chunks_.size() / count)];
      if (num_left(lanes, chunk) > left)
        break;
      left -= detail::SlotTaker(lanes[chunk.lane].keep, lanes[chunk.lane].candidates)
                  .take(chunk.first, chunk.last);
    }
  }

 private:
  struct Chunk {
    std::size_t lane = 0;
    std::size_t first = 0;  // slots
    std::size_t last = 0;
    std::size_t distance = 0;
  };

  [[nodiscard]] static std::size_t num_left(std::span<const ScoredLane> lanes,
                                            const Chunk& chunk) noexcept {
    return detail::count_bits(lanes[chunk.lane].candidates, chunk.first, chunk.last);
  }
  // Calls visit(place in the chunk, bit) for each token of it that competed.
  template <class Visit>
  void for_each_token(const ScoredLane& lane, std::size_t first_word, const Chunk& chunk,
                      Visit&& visit) const {
    const std::span<const std::uint64_t> better =
        std::span<const std::uint64_t>(better_).subspan(first_word, lane.keep.size());
    std::size_t place = 0;
    for (std::size_t slot = chunk.first; slot < chunk.last; ++slot) {
      if (detail::has_bit(lane.candidates, slot))
        visit(place, detail::has_bit(better, slot));
      place += detail::has_bit(lane.candidates, slot) || detail::has_bit(lane.keep, slot) ? 1 : 0;
    }
  }
  // Chunks of all lanes that have candidates, and their distances.
  void find_words(std::span<ScoredLane> lanes) const {
    chunks_.clear();
    better_.clear();
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const std::size_t first_word = better_.size();
      better_.resize(first_word + lanes[l].keep.size(), 0);
      const ScoredLane half{lanes[l].lane, lanes[l].scores, lanes[l].candidates,
                            std::span(better_).subspan(first_word)};
      select_top_k({&half, 1}, detail::count_bits(lanes[l].candidates) / 2);
      const std::size_t first_chunk = chunks_.size();
      detail::for_each_chunk(lanes[l], options_.chunk_len,
                             [&](std::size_t first, std::size_t last) {
                               const Chunk chunk{.lane = l, .first = first, .last = last};
                               if (num_left(lanes, chunk) > 0)
                                 chunks_.push_back(chunk);
                             });
      const std::span<Chunk> chunks = std::span(chunks_).subspan(first_chunk);
      find_anchor(lanes[l], first_word, chunks);
      for (Chunk& chunk : chunks) {
        for_each_token(lanes[l], first_word, chunk, [&](std::size_t place, bool bit) {
          chunk.distance += bit != (anchor_[place] != 0) ? 1 : 0;
        });
      }
    }
  }
  void find_anchor(const ScoredLane& lane, std::size_t first_word,
                   std::span<const Chunk> chunks) const {
    anchor_.assign(options_.chunk_len, 0);
    if (options_.anchor == AnchorPoint::kMean) {
      for (const Chunk& chunk : chunks) {
        for_each_token(lane, first_word, chunk,
                       [&](std::size_t place, bool bit) { anchor_[place] += bit ? 1 : 0; });
      }
    }
    for (std::size_t place = 0; place < anchor_.size(); ++place) {
      switch (options_.anchor) {
        case AnchorPoint::kRandom:
          anchor_[place] = detail::mix_bits(detail::mix_bits(options_.seed) + place) >> 63U;
          break;
        case AnchorPoint::kZeros:
          break;
        case AnchorPoint::kOnes:
          anchor_[place] = 1;
          break;
        case AnchorPoint::kMean:
          anchor_[place] = 2 * anchor_[place] > chunks.size() ? 1 : 0;
          break;
        case AnchorPoint::kAlternating:
          anchor_[place] = place % 2;
          break;
      }
    }
  }

  RepresentativeOptions options_;
  Base base_;
  // Memory that is kept between calls.
  mutable std::vector<Chunk> chunks_;
  mutable std::vector<std::uint64_t> better_;  // bits of all lanes
  mutable std::vector<std::size_t> anchor_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_HAMMING_REPRESENTATIVES_HPP_
