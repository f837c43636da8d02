#ifndef KVEVICT_SCORING_STEP_ROWS_HPP_
#define KVEVICT_SCORING_STEP_ROWS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/spoiling_sum.hpp"

#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Attention rows of one step, summed over query heads, kept until all layers have come: what a
/// score needs that takes tokens one after another and, for each token, layers one after another,
/// while an engine hands over layer by layer the rows of all tokens of the step.
///
/// [num_tokens, num_layers, num_sums, seq_len] floats, num_tokens being the newest ones of the
/// step. Forgotten by the next append, and by whatever renumbers slots.
class StepRows {
 public:
  [[nodiscard]] bool empty() const noexcept { return num_tokens_ == 0; }
  [[nodiscard]] std::size_t num_tokens() const noexcept { return num_tokens_; }

  /// All sums are 0. Allocates only when the cache or the step is larger than ever before.
  void start(std::size_t num_tokens, std::size_t num_layers, std::size_t num_sums,
             std::size_t seq_len) {
    num_tokens_ = num_tokens;
    num_layers_ = num_layers;
    num_sums_ = num_sums;
    seq_len_ = seq_len;
    num_complete_ = 0;
    sums_.assign(num_tokens * num_layers * num_sums * seq_len, 0.0F);
  }
  /// Adds share * a over the query heads of the group. An entry that is not finite spoils its sum.
  void add(const GroupRows& rows, std::size_t row, std::size_t token, std::size_t layer,
           std::size_t sum, float share, const kernels::KernelSet& kernel) noexcept {
    const std::span<float> sums = at(token, layer, sum).first(rows.visible(row));
    if (add_heads(rows, row, share, kernel, sums) == 0)
      return;
    for (std::size_t head = 0; head < rows.group_size; ++head)
      spoil(share, {rows.row(head, row), sums.size()}, sums);
  }
  void complete_layer() noexcept { ++num_complete_; }
  /// Whether every layer has come.
  [[nodiscard]] bool complete() const noexcept {
    return num_tokens_ > 0 && num_complete_ == num_layers_;
  }

  /// Slots that a token sees, itself included.
  [[nodiscard]] std::size_t visible(std::size_t token) const noexcept {
    return seq_len_ - (num_tokens_ - 1 - token);
  }
  /// [visible(token)] one sum, by slot.
  [[nodiscard]] std::span<float> at(std::size_t token, std::size_t layer,
                                    std::size_t sum) noexcept {
    const std::size_t row = (token * num_layers_ + layer) * num_sums_ + sum;
    return {sums_.data() + row * seq_len_, visible(token)};
  }

  void clear() noexcept { num_tokens_ = 0; }
  void append(std::size_t /*count*/) noexcept { clear(); }
  void apply(const KeepMask& /*mask*/) noexcept { clear(); }
  void truncate(const Sequence& /*sequence*/) noexcept { clear(); }
  void reset() noexcept { clear(); }

 private:
  std::size_t num_tokens_ = 0;
  std::size_t num_layers_ = 0;
  std::size_t num_sums_ = 0;
  std::size_t seq_len_ = 0;
  std::size_t num_complete_ = 0;
  std::vector<float> sums_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_STEP_ROWS_HPP_
