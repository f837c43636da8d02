#ifndef KVEVICT_SCORING_RECENT_QUERIES_HPP_
#define KVEVICT_SCORING_RECENT_QUERIES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/logit_row.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// The newest `window` queries of every query head, as attention used them, asked again when a mask
/// is wanted: softmax over the tokens before the newest `num_recent` that are cached by then, mean
/// over the queries. [query heads, past]. A query sees no token behind its own.
///
/// Memory: window * head_dim floats per query head, whatever the length of the text. Queries that
/// drafts pushed out do not come back.
class RecentQueries {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kQueries;

  /// Throws InvalidArgument, naming `where`, for a window of 0.
  RecentQueries(std::string_view where, const CacheShape& shape, std::size_t window,
                std::size_t num_recent)
      : num_recent_(num_recent),
        ring_((detail::require(window > 0, where, "observation_window", window, "must be > 0"),
               Ring(shape, window))) {}

  [[nodiscard]] auto state() noexcept { return std::tie(ring_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return recent_rows_wanted(sequence, ring_.window);
  }
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& /*view*/, const kernels::KernelSet& /*kernel*/) {
    scale_ = rows.logit_scale(sequence.shape().head_dim);
    soft_cap_ = rows.soft_cap;
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t position = sequence.length() - rows.num_rows + r;
      for (std::size_t head = 0; head < sequence.shape().num_q_heads; ++head) {
        non_finite += ring_.put(layer, head, position, rows.row(head, r)) ? 0 : 1;
      }
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const ObservationWindow past = find_window(scores.seq_len(), num_recent_, scores.cache().valid);
    const std::size_t group = input.sequence.shape().group_size();
    scores.start(past.first, past.prefix_end, group);
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::size_t head = scores.head_of(i);
      ask(input, scores, head, scores.kv_head(head) * group + i % group, scores.array(i));
    }
  }

 private:
  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kLogits = kGathered + 1;
  static constexpr std::size_t kBlock = 16;  // queries at a time

  // The query of the token at `position` lies at position % window.
  struct Ring {
    static constexpr bool kForgetsOldest = true;

    Ring(const CacheShape& s, std::size_t w)
        : shape(s),
          window(w),
          queries(s.num_layers * s.num_q_heads * w * s.head_dim),
          ends(s.num_layers * s.num_q_heads * w) {}

    CacheShape shape;
    std::size_t window;
    std::vector<float> queries;     // [layers, query heads, window, head_dim]
    std::vector<std::size_t> ends;  // one past the position of each; 0: none

    [[nodiscard]] std::size_t at(std::size_t layer, std::size_t head) const noexcept {
      return (layer * shape.num_q_heads + head) * window;
    }
    // A query that is not finite is none.
    bool put(std::size_t layer, std::size_t head, std::size_t position,
             const float* query) noexcept {
      const std::size_t i = at(layer, head) + position % window;
      const bool finite =
          std::all_of(query, query + shape.head_dim, [](float x) { return std::isfinite(x); });
      float* row = queries.data() + i * shape.head_dim;
      if (finite) {
        std::copy_n(query, shape.head_dim, row);
      } else {
        std::fill_n(row, shape.head_dim, 0.0F);
      }
      ends[i] = finite ? position + 1 : 0;
      return finite;
    }
    void append(std::size_t /*count*/) const noexcept {}
    void apply(const KeepMask& /*mask*/) const noexcept {}
    void truncate(const Sequence& sequence) noexcept {
      for (std::size_t& end : ends)
        end = end > sequence.length() ? 0 : end;
    }
    void reset() noexcept { std::fill(ends.begin(), ends.end(), 0); }
  };

  void ask(const ScoreInput& input, const LaneScores& scores, std::size_t head, std::size_t q_head,
           std::span<float> mean) const {
    const std::size_t dim = ring_.shape.head_dim;
    const Lane lane = scores.cache(head);
    const std::size_t start = ring_.at(scores.layer(head), q_head);
    const std::size_t newest = input.sequence.length();
    std::size_t num_rows = 0;
    std::fill(mean.begin(), mean.end(), 0.0F);
    for (std::size_t first = 0; first < ring_.window; first += kBlock) {
      const std::size_t count = std::min(kBlock, ring_.window - first);
      const std::span<float> logits = input.scratch.floats(kLogits, count * mean.size());
      for_each_row_block(lane.keys, dim, scores.first(), scores.first() + mean.size(), input.kernel,
                         input.scratch.vector(kGathered),
                         [&](const kernels::RowBlock& rows, std::size_t slot) {
                           input.kernel.row_dots(ring_.queries.data() + (start + first) * dim,
                                                 count, static_cast<std::ptrdiff_t>(dim), rows,
                                                 logits.data() + (slot - scores.first()),
                                                 static_cast<std::ptrdiff_t>(mean.size()));
                         });
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t end = ring_.ends[start + first + i];
        if (end == 0 || end + ring_.window <= newest)
          continue;  // never came, or an older one whose place nobody took
        const std::size_t seen = input.sequence.slots_before(scores.lane(), end);
        const std::span<float> row = logits.subspan(i * mean.size(), mean.size());
        num_rows += add_softmax(input, lane, scores.first(), seen, row, mean) ? 1 : 0;
      }
    }
    if (num_rows > 0)
      input.kernel.scale(1.0F / static_cast<float>(num_rows), mean.size(), mean.data());
  }
  [[nodiscard]] bool add_softmax(const ScoreInput& input, const Lane& lane, std::size_t first,
                                 std::size_t seen, std::span<float> row,
                                 std::span<float> sum) const {
    input.kernel.scale(scale_, row.size(), row.data());
    if (soft_cap_ > 0.0F)
      input.kernel.soft_cap(soft_cap_, row.size(), row.data());
    const double mass = take_exponentials(lane, first, seen, input.kernel, row);
    if (!(mass > 0.0))
      return false;
    input.kernel.add(static_cast<float>(1.0 / mass), row.data(), row.size(), sum.data());
    return true;
  }

  std::size_t num_recent_;
  float scale_ = 0.0F;  // as the newest queries came with
  float soft_cap_ = 0.0F;
  Ring ring_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RECENT_QUERIES_HPP_
