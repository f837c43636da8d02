#ifndef KVEVICT_SCORING_ATTENTION_SIGNALS_HPP_
#define KVEVICT_SCORING_ATTENTION_SIGNALS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/row_counts.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Which slots the softmax of a window row runs over.
enum class SoftmaxSupport : std::uint8_t {
  kAll,   ///< all that the query saw: rows as they are (the authors of SnapKV)
  kPast,  ///< the slots before the window alone (R-KV, LongFlow, TensorRT-LLM): rows weigh alike
};

[[nodiscard]] constexpr auto enum_names(SoftmaxSupport /*type*/) noexcept {
  return std::array<std::pair<std::string_view, SoftmaxSupport>, 2>{
      {{"all", SoftmaxSupport::kAll}, {"past", SoftmaxSupport::kPast}}};
}

namespace detail {

/// Copies the slots [first, last) of every column of the lane's KV heads.
inline void load_columns(const AttentionColumns& columns, std::size_t first, std::size_t last,
                         LaneScores& scores) {
  scores.start(first, last, columns.arrays_per_kv_head());
  for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
    const std::size_t head = scores.head_of(i);
    const std::span<const float> column =
        columns.of(scores.layer(head), scores.kv_head(head), i % scores.arrays_per_head());
    std::copy_n(column.begin() + static_cast<std::ptrdiff_t>(first), last - first,
                scores.array(i).begin());
  }
}

}  // namespace detail

struct WindowAttentionOptions {
  std::size_t window = 32;  ///< last tokens of the prompt, whose queries vote
  RowReduce rows = RowReduce::kSum;
  HeadReduce heads = HeadReduce::kNone;  ///< before rows are reduced
  SoftmaxSupport support = SoftmaxSupport::kAll;
  bool score_window = false;  ///< the window's own slots have a score too
  RowWeight row_weight = RowWeight::kOne;
};

/// Attention columns of the prompt's last queries, over the prefix (and, with score_window, the
/// window): [arrays, prefix]. A later prompt is a fresh window over all that is cached by then.
class WindowAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kWindow;

  /// Throws InvalidArgument, naming `where`, for a window of 0.
  WindowAttention(std::string_view where, const CacheShape& shape,
                  const WindowAttentionOptions& options)
      : options_(options), columns_(shape, options.rows, options.heads) {
    detail::require(options.window > 0, where, "observation_window", options.window, "must be > 0");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(columns_); }

  void begin(const Sequence& /*sequence*/) noexcept { columns_.clear(); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(options_.window);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    if (options_.support == SoftmaxSupport::kAll)
      return columns_.observe(rows, kernel, std::nullopt, options_.row_weight);
    return columns_.observe(rows, kernel,
                            past_of_window(sequence, rows.layer, rows.kv_head, options_.window),
                            options_.row_weight);
  }
  [[nodiscard]] const AttentionColumns& columns() const noexcept { return columns_; }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const ObservationWindow window = find_observation_window(input.sequence, scores.lane(),
                                                             options_.window, scores.cache().valid);
    detail::load_columns(columns_, window.first,
                         options_.score_window ? window.prompt_end : window.prefix_end, scores);
  }

 private:
  WindowAttentionOptions options_;
  AttentionColumns columns_;
};

/// Attention over every query so far, prompt and decoding, summed: [arrays, seq_len]. Sums go with
/// the tokens that stay; a new token starts with what it gives itself.
class AccumulatedAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kAllRows;

  /// @param scope          of the policy's mask
  /// @param lifetime_mean  divide each sum by the number of queries that could see the token
  /// @param heads          whether each query head keeps sums of its own
  AccumulatedAttention(const CacheShape& shape, MaskScope scope, bool lifetime_mean,
                       HeadReduce heads = HeadReduce::kGroupMean)
      : shape_(shape),
        columns_(shape, RowReduce::kSum, heads),
        counts_(shape, scope, lifetime_mean ? 1 : 0) {}

  [[nodiscard]] auto state() noexcept { return std::tie(columns_, counts_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return std::numeric_limits<std::size_t>::max();  // all there are
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    const std::size_t heads_per_lane =
        shape_.num_lanes(MaskScope::kHead) / shape_.num_lanes(counts_.scope());
    const std::size_t head = shape_.lane_of(MaskScope::kHead, rows.layer, rows.kv_head);
    if (counts_.arrays_per_lane() > 0 && head % heads_per_lane == 0)
      count_rows(rows, counts_.at(head / heads_per_lane));
    return columns_.observe(rows, kernel);
  }
  [[nodiscard]] const AttentionColumns& columns() const noexcept { return columns_; }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    detail::load_columns(columns_, 0, scores.seq_len(), scores);
    if (counts_.arrays_per_lane() == 0)
      return;
    const std::span<const float> counts = counts_.at(scores.lane());
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::span<float> sums = scores.array(i);
      for (std::size_t slot = 0; slot < sums.size(); ++slot)
        sums[slot] /= std::max(counts[slot], 1.0F);
    }
  }

 private:
  CacheShape shape_;
  AttentionColumns columns_;
  SlotArray counts_;  // rows that could see the slot; none where no mean is wanted
};

/// The attention row of the newest token: [arrays, seq_len]. Of several tokens in one step only the
/// last one's counts, so a prompt leaves its last row.
class LastRowAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;
  static constexpr bool kForgetsSteps = true;

  LastRowAttention(const CacheShape& shape, HeadReduce heads)
      : row_(AttentionColumns(shape, RowReduce::kSum, heads)) {}

  [[nodiscard]] auto state() noexcept { return std::tie(row_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return 1;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    return row_.columns.observe(rows, kernel);
  }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    detail::load_columns(row_.columns, 0, scores.seq_len(), scores);
  }

 private:
  // Columns that every append starts over.
  struct Row {
    explicit Row(AttentionColumns c) : columns(std::move(c)) {}
    AttentionColumns columns;

    void append(std::size_t count) {
      columns.append(count);
      columns.clear();
    }
    void apply(const KeepMask& mask) { columns.apply(mask); }
    void truncate(const Sequence& sequence) { columns.truncate(sequence); }
    void reset() noexcept { columns.reset(); }
  };

  Row row_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ATTENTION_SIGNALS_HPP_
