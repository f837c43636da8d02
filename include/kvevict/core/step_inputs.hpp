#ifndef KVEVICT_CORE_STEP_INPUTS_HPP_
#define KVEVICT_CORE_STEP_INPUTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"

#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

// What an engine hands over during a step. All of it is borrowed for the length of the call.

/// Softmax rows of the newest `num_rows` tokens of one layer: [num_q_heads, num_rows, seq_len],
/// where seq_len is that of the query head's KV head, the newest tokens included. Row r is read
/// only as far as its own token sees: seq_len - (num_rows - 1 - r) entries. Rows are used as
/// given; they need not sum to 1 (rule R16).
struct AttentionRows {
  const float* data = nullptr;
  std::size_t num_q_heads = 0;
  std::size_t num_rows = 0;
  std::ptrdiff_t head_stride = 0;  ///< in floats
  std::ptrdiff_t row_stride = 0;   ///< in floats; at least the longest seq_len
  /// Log of each row's softmax denominator, over scaled logits, [num_q_heads, num_rows] side by
  /// side: what fused attention calls LSE. Needed by policies that bring the logits of a group's
  /// query heads together (R-KV); without it their denominators count as equal.
  const float* log_sums = nullptr;

  [[nodiscard]] const float* row(std::size_t q_head, std::size_t r) const noexcept {
    return data + static_cast<std::ptrdiff_t>(q_head) * head_stride +
           static_cast<std::ptrdiff_t>(r) * row_stride;
  }
};

/// Queries of the newest `num_rows` tokens of one layer, as attention used them (after RoPE):
/// [num_q_heads, num_rows, head_dim]. The library computes the rows from them and the view:
/// softmax(cap(scale * q.k)) with a causal corner, over valid slots only.
struct QueryRows {
  const float* data = nullptr;
  std::size_t num_q_heads = 0;
  std::size_t num_rows = 0;
  std::ptrdiff_t head_stride = 0;           ///< in floats
  std::ptrdiff_t row_stride = 0;            ///< in floats
  float scale = 0.0F;                       ///< 0 means 1 / sqrt(head_dim)
  float soft_cap = 0.0F;                    ///< logit cap * tanh(logit / cap); 0 means none
  std::span<const float> sink_logits = {};  ///< [num_q_heads], added to the denominator only

  [[nodiscard]] const float* row(std::size_t q_head, std::size_t r) const noexcept {
    return data + static_cast<std::ptrdiff_t>(q_head) * head_stride +
           static_cast<std::ptrdiff_t>(r) * row_stride;
  }
  /// What dot products are multiplied by.
  [[nodiscard]] float logit_scale(std::size_t head_dim) const noexcept {
    return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
};

/// Residual stream of the newest `num_rows` tokens after one block: [num_rows, hidden_size].
struct HiddenRows {
  const void* data = nullptr;
  std::size_t num_rows = 0;
  std::size_t hidden_size = 0;
  std::ptrdiff_t row_stride_bytes = 0;  ///< 0: rows lie side by side
  ElementType type = ElementType::kF32;

  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return kvevict::row_bytes(type, hidden_size);
  }
  [[nodiscard]] const std::byte* row(std::size_t r) const noexcept {
    const std::ptrdiff_t stride =
        row_stride_bytes != 0 ? row_stride_bytes : static_cast<std::ptrdiff_t>(row_bytes());
    return static_cast<const std::byte*>(data) + static_cast<std::ptrdiff_t>(r) * stride;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_STEP_INPUTS_HPP_
