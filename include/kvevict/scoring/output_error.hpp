#ifndef KVEVICT_SCORING_OUTPUT_ERROR_HPP_
#define KVEVICT_SCORING_OUTPUT_ERROR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How far a mask moves what attention computes: | A V - A' V' | over the query heads and rows that
/// are handed over, A' being A without the evicted slots and renormalised. A figure of quality that
/// needs no second run of the model; compare it with that of a random control at the same budget.
///
/// Where a part of a row's mass lies outside the cache (a sink logit), that part stays where it is:
/// a'_i = a_i / (1 - evicted mass). A row that loses all its mass has an output of 0.
class OutputError {
 public:
  /// Throws InvalidArgument for a shape that cannot exist.
  explicit OutputError(const CacheShape& shape, const kernels::KernelSet& kernel = kernels::best())
      : shape_((detail::check_shape(shape, kName), shape)), kernel_(&kernel) {}

  /// Adds one layer, from softmax rows of the newest tokens. The mask is not applied yet.
  /// Throws InvalidArgument where rows, view and mask do not fit together.
  template <KvCacheView View>
  void add(std::size_t layer, const AttentionRows& rows, const View& view, const KeepMask& mask) {
    check(layer, rows.data, rows.num_q_heads, mask);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      const Lane lane = checked_lane(view.lane(layer, head), layer, head, rows.num_rows, mask);
      visit_given_rows(rows, shape_, layer, head, lane.seq_len, lane.seq_len, rows.num_rows,
                       [&](const GroupRows& group) { add_group(group, lane, mask); });
    }
  }
  /// The same from their queries.
  template <KvCacheView View>
  void add(std::size_t layer, const QueryRows& queries, const View& view, const KeepMask& mask) {
    check(layer, queries.data, queries.num_q_heads, mask);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      const Lane lane = checked_lane(view.lane(layer, head), layer, head, queries.num_rows, mask);
      rows_.visit(queries, shape_, layer, head, lane, lane.seq_len, queries.num_rows, *kernel_,
                  [&](const GroupRows& group) { add_group(group, lane, mask); });
    }
  }

  /// L2 norm of all that moved, over what was added since reset.
  [[nodiscard]] double absolute() const noexcept { return std::sqrt(moved_); }
  /// The same as a share of the output's own norm; 0 where there is none.
  [[nodiscard]] double relative() const noexcept {
    return whole_ > 0.0 ? std::sqrt(moved_ / whole_) : 0.0;
  }
  void reset() noexcept { moved_ = whole_ = 0.0; }

 private:
  static constexpr std::string_view kName = "OutputError";

  void check(std::size_t layer, const float* data, std::size_t num_q_heads,
             const KeepMask& mask) const {
    detail::require(layer < shape_.num_layers, kName, "layer", layer, "must be < num_layers");
    detail::require(data != nullptr, kName, "data", 0, "must not be null");
    detail::require(num_q_heads == shape_.num_q_heads, kName, "num_q_heads", num_q_heads,
                    "must be that of the shape");
    detail::require(
        mask.num_layers() == shape_.num_layers && mask.num_kv_heads() == shape_.num_kv_heads, kName,
        "KeepMask.num_layers", mask.num_layers(), "must be that of the shape, and num_kv_heads");
  }
  [[nodiscard]] Lane checked_lane(const Lane& lane, std::size_t layer, std::size_t head,
                                  std::size_t num_rows, const KeepMask& mask) const {
    detail::require(lane.seq_len == mask.seq_len(layer, head), kName, "view seq_len", lane.seq_len,
                    "must be the mask's");
    detail::require(num_rows <= lane.seq_len, kName, "num_rows", num_rows,
                    "must not exceed the view's seq_len");
    detail::require(lane.keys.present() && lane.values.present(), kName, "Lane.values.present()", 0,
                    "must be 1, as must keys");
    detail::check_element_types(lane, shape_, kName);
    return lane;
  }

  void add_group(const GroupRows& rows, const Lane& lane, const KeepMask& mask) {
    const std::size_t dim = shape_.value_size();
    outputs_.resize(2 * dim);
    const std::span<float> whole = std::span(outputs_).first(dim);
    const std::span<float> left = std::span(outputs_).last(dim);
    for (std::size_t h = 0; h < rows.group_size; ++h) {
      for (std::size_t r = 0; r < rows.num_rows; ++r) {
        const std::span<const float> weights(rows.row(h, r), rows.visible(r));
        kept_.assign(weights.begin(), weights.end());
        double evicted = 0.0;
        double kept = 0.0;
        mask.for_each_evicted_run(
            rows.layer, rows.kv_head, [&](std::size_t first, std::size_t last) {
              for (std::size_t s = first; s < std::min(last, weights.size()); ++s) {
                evicted += static_cast<double>(weights[s]);
                kept_[s] = 0.0F;
              }
            });
        weighted_row_sum(lane.values, dim, 0, weights, *kernel_, gathered_, scratch_, whole);
        weighted_row_sum(lane.values, dim, 0, kept_, *kernel_, gathered_, scratch_, left);
        for (const float weight : kept_)
          kept += static_cast<double>(weight);
        // Where almost all goes, the difference from 1 is rounding.
        const double rest = std::max(1.0 - evicted, kept);
        for (std::size_t c = 0; c < dim; ++c) {
          const double before = whole[c];
          const double after = kept > 0.0 ? static_cast<double>(left[c]) / rest : 0.0;
          moved_ += (before - after) * (before - after);
          whole_ += before * before;
        }
      }
    }
  }

  CacheShape shape_;
  const kernels::KernelSet* kernel_;
  RowsFromQueries rows_;
  double moved_ = 0.0;
  double whole_ = 0.0;
  std::vector<float> outputs_;
  std::vector<float> kept_;
  std::vector<float> gathered_;
  std::vector<float> scratch_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_OUTPUT_ERROR_HPP_
