#ifndef KVEVICT_SCORING_FUTURE_QUERY_SIGNAL_HPP_
#define KVEVICT_SCORING_FUTURE_QUERY_SIGNAL_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/future_queries.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/token_blocks.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// What signals that look at queries to come have in common: [query heads, slots behind the sinks].
/// @tparam kGiven  statistics are given, so that nothing is observed
template <bool kGiven>
class FutureQuerySignal {
 public:
  static constexpr AttentionUse kAttentionUse =
      kGiven ? AttentionUse::kNone : AttentionUse::kQueries;

  FutureQuerySignal(std::string_view where, const CacheShape& shape, FutureQueriesOptions options)
      : num_sink_tokens_(options.num_sink_tokens), queries_(where, shape, std::move(options)) {
    detail::require(queries_.are_given() == kGiven, where, "query_statistics",
                    queries_.are_given() ? 1 : 0,
                    kGiven ? "must be given" : "must not be given: they are gathered here");
  }

  [[nodiscard]] auto state() noexcept { return queries_.state(); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return std::numeric_limits<std::size_t>::max();  // all there are
  }
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& view, const kernels::KernelSet& kernel) {
    return queries_.observe(layer, rows, sequence, view.lane(layer, 0), kernel);
  }

  [[nodiscard]] const FutureQueries& queries() const noexcept { return queries_; }

 protected:
  /// Makes an array per query head for the slots behind the sinks.
  void start(const ScoreInput& input, LaneScores& scores) const {
    const std::size_t len = scores.seq_len();
    scores.start(end_of_tokens(scores.cache().valid, 0, len, num_sink_tokens_), len,
                 input.sequence.shape().group_size());
  }
  /// Fills the arrays of a KV head with m k, m the mean of its query heads to come. Returns the
  /// means [group_size, head_dim].
  std::span<const float> dots_with_mean(const ScoreInput& input, LaneScores& scores,
                                        std::size_t head) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t dim = shape.head_dim;
    const std::size_t group = shape.group_size();
    const std::span<float> means = input.scratch.floats(kMeans, group * dim);
    for (std::size_t g = 0; g < group; ++g) {
      queries_.mean(input.sequence, scores.layer(head), scores.kv_head(head) * group + g,
                    input.scratch, means.subspan(g * dim, dim));
    }
    dots_with(input, scores, head, means, scores.array(head * group).data());
    return means;
  }
  /// Writes the dot products of `queries` [group_size, head_dim] with the keys of a KV head to
  /// `out` [group_size, count()].
  static void dots_with(const ScoreInput& input, const LaneScores& scores, std::size_t head,
                        std::span<const float> queries, float* out) {
    const std::size_t dim = input.sequence.shape().head_dim;
    const auto stride = static_cast<std::ptrdiff_t>(scores.count());
    for_each_row_block(
        scores.cache(head).keys, dim, scores.first(), scores.first() + scores.count(), input.kernel,
        input.scratch.vector(kGathered), [&](const kernels::RowBlock& rows, std::size_t slot) {
          input.kernel.row_dots(queries.data(), queries.size() / dim,
                                static_cast<std::ptrdiff_t>(dim), rows,
                                out + (slot - scores.first()), stride);
        });
  }

  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kMeans = kGathered + 1;
  static constexpr std::size_t kFactor = kGathered + 2;
  static constexpr std::size_t kWidened = kGathered + 3;

 private:
  std::size_t num_sink_tokens_;
  FutureQueries queries_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_FUTURE_QUERY_SIGNAL_HPP_
