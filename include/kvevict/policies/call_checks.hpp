#ifndef KVEVICT_POLICIES_CALL_CHECKS_HPP_
#define KVEVICT_POLICIES_CALL_CHECKS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

/// What an engine may get wrong in a call of a policy, in O(lanes) at most. Each function throws
/// InvalidArgument, naming the policy, the field and its value.
class CallChecks {
 public:
  CallChecks(std::string_view policy, const CacheShape& shape, const Sequence& sequence) noexcept
      : policy_(policy), shape_(shape), sequence_(sequence) {}

  void check_layer(std::size_t layer) const {
    require(layer < shape_.num_layers, policy_, "layer", layer, "must be < num_layers");
  }
  /// At least `wanted` rows of `row_len` floats, of any order of heads and rows, that do not
  /// overlap.
  void check_rows(const AttentionRows& rows, std::size_t wanted, std::size_t row_len) const {
    check_matrix("AttentionRows.", rows, wanted, row_len);
  }
  void check_rows(const QueryRows& rows, std::size_t wanted) const {
    check_matrix("QueryRows.", rows, wanted, shape_.head_dim);
    require(rows.sink_logits.empty() || rows.sink_logits.size() == shape_.num_q_heads, policy_,
            "QueryRows.sink_logits.size()", rows.sink_logits.size(), "must be 0 or num_q_heads");
  }
  void check_hidden(const HiddenRows& rows) const {
    require(rows.data != nullptr, policy_, "HiddenRows.data", 0, "must not be null");
    require(rows.hidden_size > 0, policy_, "HiddenRows.hidden_size", rows.hidden_size,
            "must be > 0");
    require(block_len(rows.type) == 1, policy_, "HiddenRows.type", static_cast<int>(rows.type),
            "must be kF32, kF16 or kBF16");
    require(rows.row_stride_bytes == 0 || rows.num_rows == 1 ||
                std::cmp_greater_equal(rows.row_stride_bytes, rows.row_bytes()),
            policy_, "HiddenRows.row_stride_bytes", rows.row_stride_bytes,
            "must be 0 or cover a row");
  }
  /// Scores of slots that the KV head has.
  void check_scores(std::size_t layer, std::size_t kv_head, std::size_t first_slot,
                    std::size_t count) const {
    const std::size_t len = sequence_.seq_len(layer, kv_head);
    require(first_slot <= len && count <= len - first_slot, policy_, "first_slot + scores.size()",
            saturating_add(first_slot, count), "must not exceed the slots of the KV head");
  }
  void check_head(std::size_t kv_head) const {
    require(kv_head < shape_.num_kv_heads, policy_, "kv_head", kv_head, "must be < num_kv_heads");
  }
  /// Lanes as long as the policy knows them, with what is `needed` of them.
  /// @param coming  tokens that the lanes hold and nobody appended yet
  void check_view(const ViewRef& view, Inputs needed, std::size_t coming = 0) const {
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer)
      check_layer_of(view, layer, needed, coming);
  }
  void check_layer_of(const ViewRef& view, std::size_t layer, Inputs needed,
                      std::size_t coming = 0) const {
    check_same_shape(view.shape(), shape_, policy_);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head)
      check_lane(view.lane(layer, head), layer, head, needed, coming);
  }
  /// A mask over the cache as it is, of the policy's scope or one that speaks for several lanes.
  void check_mask(const KeepMask& mask) const {
    require(mask.num_layers() == shape_.num_layers && mask.num_kv_heads() == shape_.num_kv_heads &&
                mask.num_lanes() == shape_.num_lanes(mask.scope()) &&
                mask.num_lanes() <= sequence_.num_lanes(),
            policy_, "KeepMask.num_lanes", mask.num_lanes(), "must fit the policy's scope");
    for (std::size_t lane = 0; lane < sequence_.num_lanes(); ++lane) {
      const std::size_t len = mask.lane_len(sequence_.mask_lane(mask, lane));
      if (len != sequence_.seq_len(lane)) {
        throw_invalid_field(policy_, "KeepMask.seq_len", len,
                            std::string("must be ")
                                .append(std::to_string(sequence_.seq_len(lane)))
                                .append(", the slots that the policy knows of lane ")
                                .append(std::to_string(lane)));
      }
    }
  }

 private:
  template <class Given>
  void check_matrix(std::string_view name, const Given& given, std::size_t wanted,
                    std::size_t row_len) const {
    const auto check = [&](bool fits, std::string_view field, auto value,
                           std::string_view requirement) {
      if (!fits)
        throw_invalid_field(policy_, std::string(name).append(field), value, requirement);
    };
    check(given.data != nullptr, "data", 0, "must not be null");
    check(given.num_q_heads == shape_.num_q_heads, "num_q_heads", given.num_q_heads,
          "must be that of the shape");
    check(given.num_rows >= wanted, "num_rows", given.num_rows,
          "must be at least wanted_attention_rows()");
    const bool one_head = given.num_q_heads == 1;
    const bool one_row = given.num_rows == 1;
    const auto len = static_cast<std::ptrdiff_t>(row_len);
    check(one_head || given.head_stride >= len, "head_stride", given.head_stride,
          "must cover a row");
    check(one_row || given.row_stride >= len, "row_stride", given.row_stride, "must cover a row");
    check(
        one_head || one_row ||
            given.head_stride / static_cast<std::ptrdiff_t>(given.num_rows) >= given.row_stride ||
            given.row_stride / static_cast<std::ptrdiff_t>(given.num_q_heads) >= given.head_stride,
        "head_stride", given.head_stride, "and row_stride make rows overlap");
  }
  void check_lane(const Lane& lane, std::size_t layer, std::size_t head, Inputs needed,
                  std::size_t coming) const {
    if (const std::size_t expected = sequence_.seq_len(layer, head) + coming;
        lane.seq_len != expected) {
      throw_invalid_field(policy_, "view seq_len", lane.seq_len,
                          std::string("must be ")
                              .append(std::to_string(expected))
                              .append(", the slots that the policy knows of layer ")
                              .append(std::to_string(layer))
                              .append(", KV head ")
                              .append(std::to_string(head))
                              .append(" (append, apply, truncate or reset missing?)"));
    }
    require(lane.valid.empty() || lane.valid.size() >= lane.seq_len, policy_, "Lane.valid.size()",
            lane.valid.size(), "must be 0 or at least seq_len");
    if (lane.seq_len == 0)
      return;
    check_element_types(lane, shape_, policy_);
    require(lane.keys.present() || !covers(needed, Inputs::kKeys), policy_, "Lane.keys.present()",
            0, "must be 1, keys are read");
    require(lane.values.present() || !covers(needed, Inputs::kValues), policy_,
            "Lane.values.present()", 0, "must be 1, values are read");
  }

  std::string_view policy_;
  const CacheShape& shape_;
  const Sequence& sequence_;
};

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CALL_CHECKS_HPP_
