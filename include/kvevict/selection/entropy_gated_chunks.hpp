#ifndef KVEVICT_SELECTION_ENTROPY_GATED_CHUNKS_HPP_
#define KVEVICT_SELECTION_ENTROPY_GATED_CHUNKS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/stretch_top_k.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct EntropyGateOptions {
  std::size_t chunk_len = 10;       ///< valid tokens in a chunk, > 1
  std::size_t low_entropy_len = 4;  ///< tokens that stay of one that a few tokens make, < chunk_len

  /// Throws InvalidArgument, naming `where`.
  void check(std::string_view where) const {
    detail::require(chunk_len > 1, where, "chunk_len", chunk_len, "must be > 1");
    detail::require(low_entropy_len < chunk_len, where, "low_entropy_len", low_entropy_len,
                    "must be < chunk_len");
  }
};

/// Chunks as WholeChunks cuts them, those of the highest mean score first; equal ones: the earlier
/// first. A chunk whose mean is at least the median of all chunks' means, while its entropy is
/// below the median of their entropies, owes its place to a few tokens: its best low_entropy_len
/// stay. Any other stays whole; the one that does not fit gives its best. What is left of the quota
/// goes to the best single tokens, so exactly min(quota, candidates) stay.
///
/// The entropy of a chunk with scores s_1 .. s_c, from which the least is subtracted if it is
/// negative, is  - sum p_i ln(p_i + 1e-8) / ln c,  p_i = s_i / (sum s + 1e-8), put into [0, 1]; 0
/// for c = 1. Medians are the lower ones. A protected token has no part in either (it stays
/// anyway); a score that is not finite has none in the entropy.
class EntropyGatedChunks {
 public:
  explicit EntropyGatedChunks(const EntropyGateOptions& options) : options_(options) {}

  /// Chunks of all lanes that compete are compared; none reaches over lanes.
  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& /*input*/) const {
    find_chunks(lanes);
    const std::uint32_t median_key = lower_median([](const Chunk& chunk) { return chunk.key; });
    const std::uint32_t median_entropy =
        lower_median([](const Chunk& chunk) { return chunk.entropy_key; });
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) {
      if (a.key != b.key)
        return a.key > b.key;
      return std::pair{a.lane, a.first} < std::pair{b.lane, b.first};
    });
    for (const Chunk& chunk : chunks_) {
      const bool few_tokens = chunk.key >= median_key && chunk.entropy_key < median_entropy;
      const std::size_t wanted = few_tokens ? std::min(options_.low_entropy_len, quota) : quota;
      quota -= best_.select(lanes[chunk.lane], chunk.first, chunk.last, wanted);
    }
    select_top_k(lanes, quota);
  }

 private:
  struct Chunk {
    std::size_t lane = 0;
    std::size_t first = 0;  // slots
    std::size_t last = 0;
    std::uint32_t key = 0;  // of its mean
    std::uint32_t entropy_key = 0;
  };

  void find_chunks(std::span<const ScoredLane> lanes) const {
    chunks_.clear();
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      detail::for_each_chunk(
          lanes[l], options_.chunk_len, [&](std::size_t first, std::size_t last) {
            scores_.clear();
            for (std::size_t slot = first; slot < last; ++slot) {
              if (detail::has_bit(lanes[l].candidates, slot))
                scores_.push_back(static_cast<double>(lanes[l].scores[slot]));
            }
            if (scores_.empty())
              return;
            double sum = 0.0;
            for (const double score : scores_)
              sum += score;
            const double mean = sum / static_cast<double>(scores_.size());
            chunks_.push_back({l, first, last, kernels::order_key(static_cast<float>(mean)),
                               kernels::order_key(static_cast<float>(entropy_of(scores_)))});
          });
    }
  }
  /// Normalised; changes the scores.
  [[nodiscard]] static double entropy_of(std::vector<double>& scores) noexcept {
    constexpr double kEpsilon = 1e-8;
    if (scores.size() < 2)
      return 0.0;
    double least = 0.0;
    for (double& score : scores) {
      if (!std::isfinite(score))
        score = 0.0;
      least = std::min(least, score);
    }
    double sum = 0.0;
    for (double& score : scores) {
      score -= least;
      sum += score;
    }
    double entropy = 0.0;
    for (const double score : scores) {
      const double p = score / (sum + kEpsilon);
      entropy -= p * std::log(p + kEpsilon);
    }
    return std::clamp(entropy / std::log(static_cast<double>(scores.size())), 0.0, 1.0);
  }
  template <class Key>
  [[nodiscard]] std::uint32_t lower_median(Key&& key) const {
    keys_.clear();
    for (const Chunk& chunk : chunks_)
      keys_.push_back(key(chunk));
    if (keys_.empty())
      return 0;
    const auto middle = keys_.begin() + static_cast<std::ptrdiff_t>((keys_.size() - 1) / 2);
    std::nth_element(keys_.begin(), middle, keys_.end());
    return *middle;
  }

  EntropyGateOptions options_;
  // Memory that is kept between calls.
  mutable std::vector<Chunk> chunks_;
  mutable std::vector<double> scores_;
  mutable std::vector<std::uint32_t> keys_;
  mutable StretchTopK best_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_ENTROPY_GATED_CHUNKS_HPP_
