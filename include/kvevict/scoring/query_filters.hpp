#ifndef KVEVICT_SCORING_QUERY_FILTERS_HPP_
#define KVEVICT_SCORING_QUERY_FILTERS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/remembered_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// A direction of every KV head, found offline: [num_layers, num_kv_heads, head_dim].
using QueryFilters = std::vector<float>;

/// -<f, k> with the KV head's filter f: [1 per KV head, seq_len]. Each key is read once
/// (RememberedScores).
class FilteredKeys {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  /// Throws InvalidArgument, naming `where`, for filters that are missing or of another size.
  FilteredKeys(std::string_view where, const CacheShape& shape,
               std::shared_ptr<const QueryFilters> filters)
      : filters_(std::move(filters)), known_(shape) {
    detail::require(filters_ != nullptr, where, "query_filters", 0, "must be given");
    detail::require(filters_->size() == shape.num_layers * shape.num_kv_heads * shape.head_dim,
                    where, "query_filters.size()", filters_->size(),
                    "must be num_layers * num_kv_heads * head_dim");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(known_); }

  void score(const ScoreInput& input, LaneScores& scores) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t dim = shape.head_dim;
    const std::size_t len = scores.seq_len();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::size_t lane =
          shape.lane_of(MaskScope::kHead, scores.layer(head), scores.kv_head(head));
      const std::span<float> missing = known_.missing(scores, head);
      const std::size_t first = len - missing.size();
      for_each_row_block(scores.cache(head).keys, dim, first, len, input.kernel,
                         input.scratch.vector(LaneScores::kFirstFree),
                         [&](const kernels::RowBlock& rows, std::size_t slot) {
                           input.kernel.row_dots(filters_->data() + lane * dim, 1, 0, rows,
                                                 missing.data() + (slot - first), 0);
                         });
      input.kernel.scale(-1.0F, missing.size(), missing.data());
    }
    known_.recall(scores);
  }

 private:
  std::shared_ptr<const QueryFilters> filters_;
  RememberedScores known_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_QUERY_FILTERS_HPP_
