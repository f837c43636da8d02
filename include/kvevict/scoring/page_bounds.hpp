#ifndef KVEVICT_SCORING_PAGE_BOUNDS_HPP_
#define KVEVICT_SCORING_PAGE_BOUNDS_HPP_

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
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// The largest dot product that a query can have with a key whose channels lie in [low, high]
/// (Quest, arXiv 2406.10774, algorithm 1): sum_c max(q_c low_c, q_c high_c).
[[nodiscard]] inline double page_bound(std::span<const float> query, std::span<const float> low,
                                       std::span<const float> high) noexcept {
  double bound = 0.0;
  for (std::size_t c = 0; c < query.size(); ++c) {
    const auto q = static_cast<double>(query[c]);
    bound += std::max(q * static_cast<double>(low[c]), q * static_cast<double>(high[c]));
  }
  return bound;
}

/// What the newest token's query can give at most to any key of a token's page: page_bound over the
/// range of each channel among the page's keys, which are not scaled. One array per query head,
/// [group_size per KV head, seq_len].
///
/// Pages are `page_size` positions, so that what was evicted leaves its page smaller; padding is in
/// none and scores 0. NaN in a key is passed over; a page without any number in a channel scores
/// NaN. A step of which no query came, and a query that is not finite, count as a query of 0.
///
/// Quest reads the pages of the largest bounds at each step and frees nothing. As a signal of a
/// recipe the bound says which pages may go: with GroupReduction and WholeChunks, for instance.
/// O(seq_len * head_dim) for each selection.
class PageBounds {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kQueries;

  /// Throws InvalidArgument, naming `where`, for pages of 0.
  PageBounds(std::string_view where, const CacheShape& shape, std::size_t page_size)
      : page_size_((detail::require(page_size > 0, where, "page_size", page_size, "must be > 0"),
                    page_size)),
        queries_{std::vector<float>(shape.num_layers * shape.num_q_heads * shape.head_dim)} {}

  [[nodiscard]] auto state() noexcept { return std::tie(queries_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return 1;
  }
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& /*view*/, const kernels::KernelSet& /*kernel*/) {
    const CacheShape& shape = sequence.shape();
    std::size_t non_finite = 0;
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      const float* const from = rows.row(head, rows.num_rows - 1);
      const std::span<float> query =
          std::span(queries_.data)
              .subspan((layer * shape.num_q_heads + head) * shape.head_dim, shape.head_dim);
      const auto wrong = static_cast<std::size_t>(
          std::count_if(from, from + query.size(), [](float x) { return !std::isfinite(x); }));
      non_finite += wrong;
      if (wrong == 0)
        std::copy_n(from, query.size(), query.begin());
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    constexpr std::size_t kBuffer = LaneScores::kFirstFree;
    const CacheShape& shape = input.sequence.shape();
    const std::size_t dim = shape.head_dim;
    const std::size_t len = scores.seq_len();
    scores.start(0, len, shape.group_size());
    const std::span<float> low = input.scratch.floats(kBuffer, dim);
    const std::span<float> high = input.scratch.floats(kBuffer + 1, dim);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      std::size_t first = 0;
      for_each_row(
          lane.keys, dim, 0, len, input.kernel, input.scratch.vector(kBuffer + 2),
          input.scratch.vector(kBuffer + 3), [&](const float* key, std::size_t slot) {
            if (slot == first) {
              std::fill(low.begin(), low.end(), kInfinity);
              std::fill(high.begin(), high.end(), -kInfinity);
            }
            if (lane.has_token(slot)) {
              for (std::size_t c = 0; c < dim; ++c) {
                low[c] = std::min(low[c], key[c]);
                high[c] = std::max(high[c], key[c]);
              }
            }
            if (slot + 1 < len && page(input, scores, slot + 1) == page(input, scores, slot))
              return;
            fill_page(shape, scores, head, first, slot + 1, low, high);
            first = slot + 1;
          });
      scores.clear_invalid(head);
    }
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  /// Of the newest token, [num_layers, num_q_heads, head_dim].
  struct Queries {
    std::vector<float> data;

    void append(std::size_t /*count*/) noexcept { reset(); }
    void apply(const KeepMask& /*mask*/) noexcept {}
    void truncate(const Sequence& /*sequence*/) noexcept { reset(); }
    void reset() noexcept { std::fill(data.begin(), data.end(), 0.0F); }
  };

  [[nodiscard]] std::size_t page(const ScoreInput& input, const LaneScores& scores,
                                 std::size_t slot) const noexcept {
    return static_cast<std::size_t>(input.sequence.position(scores.lane(), slot)) / page_size_;
  }
  void fill_page(const CacheShape& shape, const LaneScores& scores, std::size_t head,
                 std::size_t first, std::size_t last, std::span<const float> low,
                 std::span<const float> high) const noexcept {
    const std::size_t group = shape.group_size();
    bool has_range = true;
    for (std::size_t c = 0; c < low.size(); ++c)
      has_range = has_range && low[c] <= high[c];
    for (std::size_t h = 0; h < group; ++h) {
      const std::size_t q_head =
          scores.layer(head) * shape.num_q_heads + scores.kv_head(head) * group + h;
      const auto query =
          std::span<const float>(queries_.data).subspan(q_head * low.size(), low.size());
      const float bound = has_range ? static_cast<float>(page_bound(query, low, high))
                                    : std::numeric_limits<float>::quiet_NaN();
      const std::span<float> array = scores.array(head * group + h);
      std::fill(array.begin() + static_cast<std::ptrdiff_t>(first),
                array.begin() + static_cast<std::ptrdiff_t>(last), bound);
    }
  }

  std::size_t page_size_;
  Queries queries_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PAGE_BOUNDS_HPP_
