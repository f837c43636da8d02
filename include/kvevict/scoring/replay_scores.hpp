#ifndef KVEVICT_SCORING_REPLAY_SCORES_HPP_
#define KVEVICT_SCORING_REPLAY_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/row_blocks.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// One layer of a pass that reads a text again, or a part of it, behind a cache that already holds
/// it, and whose own keys the cache does not keep. Row r sees the first sinks, the slots that are
/// scored and the pass' own tokens up to itself. Borrowed for the length of a call.
struct ReplayPass {
  QueryRows queries;                   ///< of all tokens of the pass, as attention used them
  const float* keys = nullptr;         ///< their own keys, [num_kv_heads, num_rows, head_dim]
  std::ptrdiff_t key_head_stride = 0;  ///< in floats
  std::ptrdiff_t key_row_stride = 0;   ///< in floats
  std::size_t first_slot = 0;          ///< slots that are scored
  std::size_t last_slot = 0;           ///< one past the end
  std::size_t num_sink_tokens = 0;     ///< first slots that are seen too, as far as they lie
                                       ///< before first_slot
  std::span<const float> row_norms{};  ///< [num_rows] what each row is divided by; empty: nothing
};

struct ReplayScoresOptions {
  GroupReduce rows = GroupReduce::kMax;    ///< over the tokens of the pass; kMean: of all rows
  GroupReduce heads = GroupReduce::kMax;   ///< over the query heads of a group
  ValueFactor value = ValueFactor::kNone;  ///< that columns are multiplied by, per query head
  std::shared_ptr<const OutputProjection> output_projection = nullptr;  ///< for kProjected
};

/// How much a second pass over the text looks at each cached token, for observe_scores:
///
///   score(i) = reduce over heads h of the group of reduce over rows t of
///              a[h, t, i] value(h, i) / row_norm(t)
///
/// with a the softmax over what the row sees. KVzip is the default; KVzip+ has value = kProjected
/// and row_norms |h_t|_2, of the hidden states that enter the layer's attention; KVCompose
/// averages over heads. Each call is complete: rows of several passes over the same slots are the
/// caller's to bring together.
///
/// O(rows (slots + rows) head_dim) for each query head; memory for 16 rows of one query head and
/// the scored slots of the group.
class ReplayScores {
 public:
  static constexpr std::string_view kName = "ReplayScores";

  /// Throws InvalidArgument for a value factor that lacks its projection or is not one of kNone,
  /// kNorm and kProjected.
  explicit ReplayScores(const CacheShape& shape, ReplayScoresOptions options = {},
                        const kernels::KernelSet& kernel = kernels::best())
      : shape_((detail::check_shape(shape, kName), shape)),
        options_(std::move(options)),
        kernel_(&kernel) {
    if (options_.value == ValueFactor::kL1Norm || options_.value == ValueFactor::kProjectedL1)
      detail::throw_invalid_argument(kName, "value must be none, norm or projected");
    check_value_factor(kName, options_.value, options_.output_projection.get(), shape,
                       GroupReading::kHeadProducts);
  }

  /// Scores of the pass' slots of one KV head, [last_slot - first_slot], valid until the next call.
  /// Slots that hold no token score 0. Throws InvalidArgument where the pass does not fit.
  ///
  /// @param lane  of the KV head, as it was when the pass was made
  [[nodiscard]] std::span<const float> score(const ReplayPass& pass, std::size_t layer,
                                             std::size_t kv_head, const Lane& lane) {
    check(pass, layer, kv_head, lane);
    const std::size_t count = pass.last_slot - pass.first_slot;
    const std::size_t group = shape_.group_size();
    scores_.assign(group * count, 0.0F);
    for (std::size_t h = 0; h < group; ++h)
      reduce_rows(pass, kv_head, h, lane, std::span(scores_).subspan(h * count, count));
    times_values(pass, layer, kv_head, lane);
    for (std::size_t h = 0; h < group; ++h) {
      reduce_group(options_.heads, h, group, std::span(scores_).subspan(h * count, count),
                   std::span(scores_).first(count));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!lane.has_token(pass.first_slot + i))
        scores_[i] = 0.0F;
    }
    return std::span(scores_).first(count);
  }
  /// Logits that were NaN or +infinity so far; NaN has no attention.
  [[nodiscard]] std::size_t non_finite() const noexcept { return non_finite_; }

 private:
  static constexpr std::size_t kBlock = 16;  // rows at a time

  void check(const ReplayPass& pass, std::size_t layer, std::size_t kv_head,
             const Lane& lane) const {
    const QueryRows& queries = pass.queries;
    detail::require(layer < shape_.num_layers, kName, "layer", layer, "must be < num_layers");
    detail::require(kv_head < shape_.num_kv_heads, kName, "kv_head", kv_head,
                    "must be < num_kv_heads");
    detail::require(queries.num_q_heads == shape_.num_q_heads, kName, "queries.num_q_heads",
                    queries.num_q_heads, "must be that of the shape");
    detail::require(queries.num_rows > 0, kName, "queries.num_rows", queries.num_rows,
                    "must be > 0");
    detail::require(queries.data != nullptr, kName, "queries.data", 0, "must not be null");
    detail::require(queries.sink_logits.empty() || queries.sink_logits.size() == shape_.num_q_heads,
                    kName, "queries.sink_logits.size()", queries.sink_logits.size(),
                    "must be 0 or num_q_heads");
    detail::require(pass.keys != nullptr, kName, "keys", 0, "must not be null");
    detail::require(pass.first_slot <= pass.last_slot && pass.last_slot <= lane.seq_len, kName,
                    "last_slot", pass.last_slot, "must be in [first_slot, seq_len]");
    detail::require(pass.row_norms.empty() || pass.row_norms.size() == queries.num_rows, kName,
                    "row_norms.size()", pass.row_norms.size(), "must be 0 or num_rows");
    detail::require(lane.keys.present(), kName, "Lane.keys.present()", 0,
                    "must be 1, keys are read");
    detail::require(options_.value == ValueFactor::kNone || lane.values.present(), kName,
                    "Lane.values.present()", 0, "must be 1, values are read");
    detail::require(lane.valid.empty() || lane.valid.size() >= lane.seq_len, kName,
                    "Lane.valid.size()", lane.valid.size(), "must be 0 or at least seq_len");
    detail::check_element_types(lane, shape_, kName);
  }

  // What all rows of one query head make of the scored slots.
  void reduce_rows(const ReplayPass& pass, std::size_t kv_head, std::size_t h, const Lane& lane,
                   std::span<float> column) {
    const QueryRows& queries = pass.queries;
    const std::size_t q_head = kv_head * shape_.group_size() + h;
    const std::size_t sinks = std::min(pass.num_sink_tokens, pass.first_slot);
    const std::size_t before = sinks + column.size();  // entries of a row before its own tokens
    const float sink_logit = queries.sink_logits.empty() ? -std::numeric_limits<float>::infinity()
                                                         : queries.sink_logits[q_head];
    const float share =
        options_.rows == GroupReduce::kMean ? 1.0F / static_cast<float>(queries.num_rows) : 1.0F;
    for (std::size_t first = 0; first < queries.num_rows; first += kBlock) {
      const std::size_t count = std::min(kBlock, queries.num_rows - first);
      const std::size_t width = before + first + count;
      rows_.resize(std::max(rows_.size(), count * width));
      logits(pass, kv_head, q_head, lane, first, count, sinks, width);
      for (std::size_t r = 0; r < count; ++r) {
        float* row = rows_.data() + r * width;
        const std::size_t visible = before + first + r + 1;
        finish_logits(queries, lane, pass.first_slot, sinks, before, visible, row);
        float largest;
        non_finite_ += kernel_->scale_logits(1.0F, visible, row, largest);
        RunningSoftmax softmax(sink_logit);
        const float shift = softmax.add(row, visible, largest, *kernel_);
        kernel_->scale(softmax.factor(shift), visible, row);
        const float factor = pass.row_norms.empty() ? share : share / pass.row_norms[first + r];
        if (options_.rows == GroupReduce::kMax) {
          kernel_->take_max(factor, row + sinks, column.size(), column.data());
        } else {
          kernel_->add(factor, row + sinks, column.size(), column.data());
        }
      }
    }
  }
  // Dot products of `count` rows, [count, width]: sinks, scored slots, own tokens.
  void logits(const ReplayPass& pass, std::size_t kv_head, std::size_t q_head, const Lane& lane,
              std::size_t first, std::size_t count, std::size_t sinks, std::size_t width) {
    const QueryRows& queries = pass.queries;
    const float* query = queries.row(q_head, first);
    const auto stride = static_cast<std::ptrdiff_t>(width);
    const auto cached = [&](std::size_t begin, std::size_t end, std::size_t to) {
      for_each_row_block(lane.keys, shape_.head_dim, begin, end, *kernel_, gathered_,
                         [&](const kernels::RowBlock& keys, std::size_t slot) {
                           kernel_->row_dots(query, count, queries.row_stride, keys,
                                             rows_.data() + to + (slot - begin), stride);
                         });
    };
    cached(0, sinks, 0);
    cached(pass.first_slot, pass.last_slot, sinks);
    const float* own = pass.keys + static_cast<std::ptrdiff_t>(kv_head) * pass.key_head_stride;
    kernel_->row_dots(query, count, queries.row_stride,
                      {own, pass.key_row_stride * static_cast<std::ptrdiff_t>(sizeof(float)),
                       first + count, shape_.head_dim, ElementType::kF32},
                      rows_.data() + sinks + (pass.last_slot - pass.first_slot), stride);
  }
  void finish_logits(const QueryRows& queries, const Lane& lane, std::size_t first_slot,
                     std::size_t sinks, std::size_t before, std::size_t visible,
                     float* row) const noexcept {
    kernel_->scale(queries.logit_scale(shape_.head_dim), visible, row);
    if (queries.soft_cap > 0.0F)
      kernel_->soft_cap(queries.soft_cap, visible, row);
    for (std::size_t i = 0; !lane.valid.empty() && i < before; ++i) {
      if (lane.valid[i < sinks ? i : first_slot + i - sinks] == 0)
        row[i] = -std::numeric_limits<float>::infinity();
    }
  }
  void times_values(const ReplayPass& pass, std::size_t layer, std::size_t kv_head,
                    const Lane& lane) {
    if (options_.value == ValueFactor::kNone)
      return;
    const std::size_t group = shape_.group_size();
    const std::size_t count = pass.last_slot - pass.first_slot;
    const std::size_t dim = shape_.value_size();
    const bool projected = options_.value == ValueFactor::kProjected;
    factors_.resize(std::max(factors_.size(), (projected ? group : 1) * count));
    const std::span<float> factors = std::span(factors_).first((projected ? group : 1) * count);
    if (projected) {
      projected_norms(
          lane.values, dim, pass.first_slot, pass.last_slot,
          options_.output_projection->factors(layer, kv_head, GroupReading::kHeadProducts),
          *kernel_, gathered_, factors);
    } else {
      row_norms(lane.values, dim, pass.first_slot, pass.last_slot, *kernel_, gathered_, factors);
    }
    for (std::size_t i = 0; i < group * count; ++i)
      scores_[i] *= factors[projected ? i : i % count];
  }

  CacheShape shape_;
  ReplayScoresOptions options_;
  const kernels::KernelSet* kernel_;
  std::size_t non_finite_ = 0;
  // Memory that is kept between calls.
  std::vector<float> rows_;
  std::vector<float> scores_;
  std::vector<float> factors_;
  std::vector<float> gathered_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_REPLAY_SCORES_HPP_
