#ifndef KVEVICT_EXAMPLES_ENGINE_OBSERVER_HPP_
#define KVEVICT_EXAMPLES_ENGINE_OBSERVER_HPP_

#include <cstddef>

// What a forward pass can hand out besides logits. An observer says for each layer how many of
// the newest tokens of the pass it wants to see (0 = none, more than there are = all); nothing is
// copied or kept that nobody wants.
namespace engine {

/// Rows of several query heads, [num_q_heads, num_rows, row_size]; row num_rows - 1 is the newest.
struct HeadRows {
  const float* data = nullptr;
  std::size_t num_q_heads = 0;
  std::size_t num_rows = 0;
  std::size_t head_stride = 0;  ///< in floats
  std::size_t row_stride = 0;   ///< in floats
  /// [num_q_heads, num_rows], of attention rows alone: the log of each row's softmax denominator.
  const float* log_sums = nullptr;

  [[nodiscard]] const float* row(std::size_t q_head, std::size_t r) const noexcept {
    return data + q_head * head_stride + r * row_stride;
  }
};

/// [num_rows, hidden_size], contiguous; row num_rows - 1 is the newest.
struct HiddenRows {
  const float* data = nullptr;
  std::size_t num_rows = 0;
  std::size_t hidden_size = 0;
};

/// Everything handed over lasts as long as the call.
class StepObserver {
 public:
  StepObserver() = default;
  StepObserver(const StepObserver&) = default;
  StepObserver& operator=(const StepObserver&) = default;
  virtual ~StepObserver() = default;

  [[nodiscard]] virtual std::size_t wants_attention_rows(std::size_t /*layer*/) const { return 0; }
  [[nodiscard]] virtual std::size_t wants_queries(std::size_t /*layer*/) const { return 0; }
  [[nodiscard]] virtual std::size_t wants_hidden(std::size_t /*layer*/) const { return 0; }

  /// Called after the layer attended, when its lanes hold the tokens of the pass. A row is over
  /// the slots of its own KV head's lane and zero behind the last one that the token sees.
  virtual void on_attention(std::size_t /*layer*/, const HeadRows& /*rows*/) {}
  /// Called after on_attention. Rows are [head_dim], after RoPE and before the scale.
  virtual void on_queries(std::size_t /*layer*/, const HeadRows& /*rows*/) {}
  /// Called after the block. Rows are of the residual stream, no norm applied.
  virtual void on_hidden(std::size_t /*layer*/, const HiddenRows& /*rows*/) {}
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_OBSERVER_HPP_
