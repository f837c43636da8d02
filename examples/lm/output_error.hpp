#ifndef KVEVICT_EXAMPLES_LM_OUTPUT_ERROR_HPP_
#define KVEVICT_EXAMPLES_LM_OUTPUT_ERROR_HPP_

#include "engine/eviction.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/scoring/output_error.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace lm {

/// How far each sequence's mask at a prompt's end moves what attention gives the prompt's last
/// queries: kvevict::OutputError over all layers, as a share of the output.
class PromptOutputError final : public engine::PromptWatcher {
 public:
  PromptOutputError(const kvevict::CacheShape& shape, std::size_t num_sequences)
      : shape_(shape), error_(shape), queries_(shape.num_layers), relative_(num_sequences) {}

  /// None where nothing was cut at the prompt's end.
  [[nodiscard]] std::optional<double> relative(std::size_t sequence) const {
    return relative_[sequence];
  }
  /// What measuring took.
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

  [[nodiscard]] std::size_t wants_queries() const override { return kNumQueries; }
  void on_queries(std::size_t layer, const engine::HeadRows& rows) override {
    // Policies may want more rows than this. Those of the last pass are left at the end.
    const std::size_t first = rows.num_rows - std::min(rows.num_rows, kNumQueries);
    std::vector<float>& kept = queries_[layer];
    kept.clear();
    for (std::size_t head = 0; head < shape_.num_q_heads; ++head) {
      for (std::size_t r = first; r < rows.num_rows; ++r)
        kept.insert(kept.end(), rows.row(head, r), rows.row(head, r) + shape_.head_dim);
    }
  }
  void on_mask(std::size_t index, const engine::Sequence& sequence,
               const kvevict::KeepMask& keep) override {
    const engine::Stopwatch watch(seconds_);
    error_.reset();
    for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
      const std::size_t head_stride = queries_[layer].size() / shape_.num_q_heads;
      const kvevict::QueryRows rows{.data = queries_[layer].data(),
                                    .num_q_heads = shape_.num_q_heads,
                                    .num_rows = head_stride / shape_.head_dim,
                                    .head_stride = static_cast<std::ptrdiff_t>(head_stride),
                                    .row_stride = static_cast<std::ptrdiff_t>(shape_.head_dim)};
      error_.add(layer, rows, sequence.view(), keep);
    }
    relative_[index] = error_.relative();
  }

 private:
  static constexpr std::size_t kNumQueries = 16;

  kvevict::CacheShape shape_;
  kvevict::OutputError error_;
  std::vector<std::vector<float>> queries_;      // of each layer, [num_q_heads, rows, head_dim]
  std::vector<std::optional<double>> relative_;  // of each sequence
  double seconds_ = 0;
};

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_OUTPUT_ERROR_HPP_
