#ifndef KVEVICT_SCORING_CHUNK_ATTENTION_HPP_
#define KVEVICT_SCORING_CHUNK_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/token_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Slots [first, second) of a lane behind its first `num_first` tokens and before the last
/// `num_last` of the prompt.
[[nodiscard]] inline std::pair<std::size_t, std::size_t> slots_between(
    const Sequence& sequence, std::size_t lane, std::span<const std::uint8_t> valid,
    std::size_t num_first, std::size_t num_last) noexcept {
  const std::size_t last = find_observation_window(sequence, lane, num_last, valid).prefix_end;
  return {std::min(last, end_of_tokens(valid, 0, sequence.seq_len(lane), num_first)), last};
}

struct ChunkAttentionOptions {
  std::size_t chunk_len = 256;      ///< tokens that attend to each other
  std::size_t num_sink_tokens = 0;  ///< first tokens of a prompt, in no chunk
  std::size_t num_last_tokens = 0;  ///< last tokens of a prompt, in no chunk
  bool padded_last_chunk = false;   ///< fill a last chunk that is short by keys and queries of 0
                                    ///< (a fault of kvpress)
};

/// Attention without a causal mask and without 1 / sqrt(d) inside chunks of the prompt (Compactor,
/// arXiv 2507.08143): sums over the chunk's queries of softmax(q k) over the chunk's keys, mean
/// over the query heads of a group. [1 per KV head, seq_len]; 0 for what lies in no chunk.
///
/// A chunk is worked off as soon as its last query is there; queries of one that is not complete
/// are kept till then, so that the pieces in which a prompt comes make no difference. Left padding
/// comes before the first chunk. O(chunk_len head_dim) for each query head and token.
class ChunkAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kQueries;

  /// Throws InvalidArgument, naming `where`.
  ChunkAttention(std::string_view where, const CacheShape& shape,
                 const ChunkAttentionOptions& options)
      : options_(options), columns_(shape, MaskScope::kHead), pending_{{}, shape} {
    detail::require(options.chunk_len > 0, where, "chunk_len", options.chunk_len, "must be > 0");
    pending_.layers.resize(shape.num_layers);
  }

  [[nodiscard]] auto state() noexcept { return std::tie(columns_, pending_); }

  void begin(const Sequence& /*sequence*/) noexcept {
    columns_.fill(0.0F);
    pending_.reset();
  }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(std::numeric_limits<std::size_t>::max());
  }
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& view, const kernels::KernelSet& kernel) {
    const CacheShape& shape = pending_.shape;
    const Lane lane = view.lane(layer, 0);
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t behind = rows.num_rows - r;
      const std::size_t slot = lane.seq_len - behind;
      const std::size_t left = sequence.pending_prompt() + behind;  // of the prompt, this one too
      Layer& open = pending_.layers[layer];
      const bool valid = lane.has_token(slot);
      const bool is_sink = open.tokens < options_.num_sink_tokens;
      open.tokens += valid ? 1 : 0;
      if (valid && !is_sink && left > options_.num_last_tokens) {
        for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
          const float* row = rows.row(head, r);
          open.queries.insert(open.queries.end(), row, row + shape.head_dim);
        }
        open.slots.push_back(slot);
      }
      const bool full = open.slots.size() == options_.chunk_len;
      if (full || (left == options_.num_last_tokens + 1 && !open.slots.empty()))
        non_finite += work_off(open, layer, view, kernel);
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const auto [first, last] = slots_between(input.sequence, scores.lane(), scores.cache().valid,
                                             options_.num_sink_tokens, options_.num_last_tokens);
    scores.start(first, last, 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> column = columns_.of(scores.layer(head), scores.kv_head(head));
      std::copy_n(column.begin() + static_cast<std::ptrdiff_t>(first), last - first,
                  scores.array(head).begin());
    }
  }

 private:
  // Queries of a chunk that is not complete, [tokens, num_q_heads, head_dim]; state that every
  // event but append ends.
  struct Layer {
    std::vector<float> queries;
    std::vector<std::size_t> slots;
    std::size_t tokens = 0;  // of the prompt so far

    void clear() noexcept {
      queries.clear();
      slots.clear();
      tokens = 0;
    }
  };
  struct Pending {
    std::vector<Layer> layers;
    CacheShape shape;

    void append(std::size_t /*count*/) const noexcept {}
    // A chunk whose keys went is not looked at: cuts come after the prompt.
    void apply(const KeepMask& /*mask*/) noexcept { reset(); }
    void truncate(const Sequence& /*sequence*/) noexcept { reset(); }
    void reset() noexcept {
      for (Layer& layer : layers)
        layer.clear();
    }
  };

  std::size_t work_off(Layer& open, std::size_t layer, const ViewRef& view,
                       const kernels::KernelSet& kernel) {
    const CacheShape& shape = pending_.shape;
    const std::size_t count = open.slots.size();
    const std::size_t first = open.slots.front();
    const std::size_t width = open.slots.back() + 1 - first;  // padding may lie between
    const std::size_t group = shape.group_size();
    const std::size_t missing = options_.padded_last_chunk ? options_.chunk_len - count : 0;
    const float weight = 1.0F / static_cast<float>(group);
    std::size_t non_finite = 0;
    queries_.resize(kQueries * shape.head_dim);
    logits_.resize(kQueries * width);
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      const Lane lane = view.lane(layer, head / group);
      float* column = columns_.of(layer, head / group).data() + first;
      for (std::size_t t = 0; t < count; t += kQueries) {
        const std::size_t num_queries = std::min(kQueries, count - t);
        for (std::size_t q = 0; q < num_queries; ++q) {
          const float* query =
              open.queries.data() + ((t + q) * shape.num_q_heads + head) * shape.head_dim;
          std::copy_n(query, shape.head_dim, queries_.data() + q * shape.head_dim);
        }
        for_each_row_block(lane.keys, shape.head_dim, first, first + width, kernel, gathered_,
                           [&](const kernels::RowBlock& rows, std::size_t slot) {
                             kernel.row_dots(queries_.data(), num_queries,
                                             static_cast<std::ptrdiff_t>(shape.head_dim), rows,
                                             logits_.data() + (slot - first),
                                             static_cast<std::ptrdiff_t>(width));
                           });
        for (std::size_t q = 0; q < num_queries; ++q) {
          const std::span<float> logits = std::span(logits_).subspan(q * width, width);
          non_finite += add_row(lane, first, missing, kernel, weight, logits, column);
        }
      }
      // Queries of 0 give every column of the filled chunk the same.
      const auto share =
          static_cast<float>(missing) / static_cast<float>(options_.chunk_len * group);
      for (const std::size_t slot : open.slots)
        column[slot - first] += share;
    }
    open.queries.clear();
    open.slots.clear();
    return non_finite;
  }
  // Adds the softmax of `logits`, among `missing` further ones of 0, to the column.
  static std::size_t add_row(const Lane& lane, std::size_t first, std::size_t missing,
                             const kernels::KernelSet& kernel, float weight,
                             std::span<float> logits, float* column) {
    for (std::size_t i = 0; i < logits.size() && !lane.valid.empty(); ++i) {
      if (!lane.has_token(first + i))
        logits[i] = -std::numeric_limits<float>::infinity();
    }
    float largest;
    const std::size_t non_finite = kernel.scale_logits(1.0F, logits.size(), logits.data(), largest);
    if (missing > 0)
      largest = std::max(largest, 0.0F);
    if (largest == -std::numeric_limits<float>::infinity())
      return non_finite;
    double sum = kernel.exp_shifted(largest, logits.size(), logits.data());
    sum += static_cast<double>(missing) * std::exp(-static_cast<double>(largest));
    kernel.add(static_cast<float>(static_cast<double>(weight) / sum), logits.data(), logits.size(),
               column);
    return non_finite;
  }

  // Of one head, multiplied with the chunk's keys at once: as many as leave room in L1.
  static constexpr std::size_t kQueries = 32;

  ChunkAttentionOptions options_;
  SlotArray columns_;
  Pending pending_;
  // Memory that is kept between calls.
  std::vector<float> queries_;  // [kQueries, head_dim]
  std::vector<float> logits_;   // [kQueries, slots of the chunk]
  std::vector<float> gathered_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_CHUNK_ATTENTION_HPP_
