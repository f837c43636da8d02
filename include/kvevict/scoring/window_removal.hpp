#ifndef KVEVICT_SCORING_WINDOW_REMOVAL_HPP_
#define KVEVICT_SCORING_WINDOW_REMOVAL_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/output_change.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How far the outputs of the prompt's last queries move when a token alone goes and the rest is
/// renormalised, squared and summed over them (DropKV): with p a query's attention and o its
/// output,
///
///   s_j = sum over rows of (p_j / (1 - p_j))^2 |v_j - o|^2,
///
/// mean over the query heads of a group: [1 per KV head, prefix]. The squares of what OutputChange
/// gives for one row. Exact where some mass went to a sink outside the cache, too.
///
/// Outputs need the values while the rows are there, so the policy takes queries, and the view that
/// comes with them has to hold the values of their layer.
/// @note  O(window * seq_len * value_dim) per query head, once a prompt.
class WindowRemoval {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kKeys | Inputs::kValues;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kQueries;

  /// Throws InvalidArgument, naming `where`, for a window of 0.
  WindowRemoval(std::string_view where, const CacheShape& shape, std::size_t window)
      : where_(where), window_(window), columns_(shape, RowReduce::kSum, HeadReduce::kGroupMean) {
    detail::require(window > 0, where, "observation_window", window, "must be > 0");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(columns_); }

  void begin(const Sequence& /*sequence*/) noexcept { columns_.clear(); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(window_);
  }
  /// Throws InvalidArgument where the view has no values.
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& view, const kernels::KernelSet& kernel) {
    const CacheShape& shape = sequence.shape();
    std::size_t non_finite = 0;
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      const Lane lane = view.lane(layer, head);
      detail::require(lane.values.present(), where_, "Lane.values.present()", 0,
                      "must be 1 when queries are observed");
      non_finite += from_queries_.visit(rows, shape, layer, head, lane, sequence.length(),
                                        rows.num_rows, kernel, [&](const GroupRows& group) {
                                          non_finite += observe_group(group, lane,
                                                                      shape.value_size(), kernel);
                                        });
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const ObservationWindow window =
        find_observation_window(input.sequence, scores.lane(), window_, scores.cache().valid);
    detail::load_columns(columns_, window.first, window.prefix_end, scores);
  }

 private:
  std::size_t observe_group(const GroupRows& group, const Lane& lane, std::size_t dim,
                            const kernels::KernelSet& kernel) {
    const std::size_t num = group.group_size * group.num_rows;
    const std::size_t len = group.visible(group.num_rows - 1);
    changes_.resize(std::max(changes_.size(), num * len));
    outputs_.resize(std::max(outputs_.size(), num * dim));
    for (std::size_t i = 0; i < num; ++i) {
      const std::size_t r = i % group.num_rows;
      const std::span<float> row(changes_.data() + i * len, len);
      const float* given = group.row(i / group.num_rows, r);
      std::copy_n(given, group.visible(r), row.begin());
      weighted_row_sum(lane.values, dim, 0, row.first(group.visible(r)), kernel, gathered_,
                       widened_, {outputs_.data() + i * dim, dim});
    }
    for_each_output_distance(lane.values, dim, 0, len, {outputs_.data(), num * dim}, kernel,
                             gathered_, widened_,
                             [&](std::size_t i, std::size_t slot, double squared_distance) {
                               float& p = changes_[i * len + slot];
                               const bool usable = lane.has_token(slot);
                               if (!usable || slot >= group.visible(i % group.num_rows)) {
                                 p = 0.0F;
                                 return;
                               }
                               if (p > kDominant)
                                 return;  // looked at below
                               const double factor = removal_factor(p);
                               p = static_cast<float>(factor * factor * squared_distance);
                             });
    for (std::size_t i = 0; i < num; ++i)
      dominant_change(group, i, lane, dim, kernel);
    GroupRows changed = group;
    changed.data = changes_.data();
    changed.row_stride = static_cast<std::ptrdiff_t>(len);
    changed.head_stride = static_cast<std::ptrdiff_t>(group.num_rows * len);
    return columns_.observe(changed, kernel);
  }

  // Where one token has nearly all of a row's mass, neither 1 - p nor v - o has digits left.
  // Without it the output is that of the others, x = sum p_k v_k / (1 - p), so that the change is p
  // (v - x).
  void dominant_change(const GroupRows& group, std::size_t i, const Lane& lane, std::size_t dim,
                       const kernels::KernelSet& kernel) {
    const std::size_t r = i % group.num_rows;
    const std::size_t visible = group.visible(r);
    const float* given = group.row(i / group.num_rows, r);
    const auto token = static_cast<std::size_t>(std::max_element(given, given + visible) - given);
    const float p = given[token];
    if (!(p > kDominant))
      return;
    const std::size_t len = group.visible(group.num_rows - 1);
    rest_.assign(given, given + visible);
    rest_[token] = 0.0F;
    const double mass = std::max(1.0 - static_cast<double>(p), kernel.sum(rest_.data(), visible));
    const std::span<float> others(outputs_.data() + i * dim, dim);
    weighted_row_sum(lane.values, dim, 0, rest_, kernel, gathered_, widened_, others);
    kernel.scale(mass > 0.0 ? static_cast<float>(1.0 / mass) : 0.0F, dim, others.data());
    for_each_output_distance(lane.values, dim, token, token + 1, others, kernel, gathered_,
                             widened_, [&](std::size_t, std::size_t slot, double squared_distance) {
                               changes_[i * len + slot] =
                                   p * p * static_cast<float>(squared_distance);
                             });
  }

  static constexpr float kDominant = 0.999F;

  std::string_view where_;
  std::size_t window_;
  AttentionColumns columns_;
  RowsFromQueries from_queries_;
  // Memory that is kept between calls.
  std::vector<float> changes_;  // [query heads, rows of a block, slots]
  std::vector<float> outputs_;  // [query heads, rows of a block, value_dim]
  std::vector<float> rest_;     // a row without its largest entry
  std::vector<float> gathered_;
  std::vector<float> widened_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_WINDOW_REMOVAL_HPP_
