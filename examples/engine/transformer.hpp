#ifndef KVEVICT_EXAMPLES_ENGINE_TRANSFORMER_HPP_
#define KVEVICT_EXAMPLES_ENGINE_TRANSFORMER_HPP_

#include "engine/cache.hpp"
#include "engine/model.hpp"
#include "engine/observer.hpp"
#include "engine/thread_pool.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The forward pass: tokens go in, the cache grows, logits come out.
//
// A pass takes one or many tokens (a chunk of a prompt) through all layers at once. In here, in
// the order of the pass: rms_norm, linear, Rope, attention over ragged lanes, the SwiGLU block.
namespace engine {

using Token = std::int32_t;
using LogitRows = Eigen::Map<const Matrix>;  ///< [rows, vocabulary_size]

/// Turns channel pairs of queries and keys by position * frequency.
class Rope {
 public:
  explicit Rope(const ModelConfig& config);

  /// cos and sin for each pair, [rope_dim / 2][2]. Angles are in double: near 65536 radians a
  /// float is off by up to 0.004.
  [[nodiscard]] std::vector<float> turn(std::int32_t positions) const;
  /// @param row  [head_dim]
  void apply(const std::vector<float>& turn, float* row) const noexcept;

 private:
  std::vector<double> frequencies_;
  std::size_t stride_;   // from one pair's first channel to the next pair's
  std::size_t partner_;  // from a pair's first channel to its second
};

class Transformer {
 public:
  explicit Transformer(Model model, std::size_t num_threads = 2);

  [[nodiscard]] const Model& model() const noexcept { return model_; }
  [[nodiscard]] KvCache make_cache() const;

  /// Throws std::invalid_argument unless there are tokens and all are in the vocabulary. What makes
  /// changes ahead of a pass calls it before, so that a bad token leaves everything as it was.
  void check(std::span<const Token> tokens) const;

  /// Appends the tokens to the cache, at the cache's next positions. A token attends to all rows
  /// that a lane holds and to those of the pass up to itself.
  /// @param num_logits  newest tokens whose logits are wanted
  /// @return [num_logits, vocabulary_size], valid until the next pass
  LogitRows forward(std::span<const Token> tokens, KvCache& cache, std::size_t num_logits = 1,
                    StepObserver* observer = nullptr);

  /// Closes the gaps that evicted tokens left between positions (StreamingLLM's way to go on for
  /// ever): keys are turned to where they now stand, the oldest of the longest lane at 0 and the
  /// newest of all lanes side by side.
  void close_position_gaps(KvCache& cache) const;

 private:
  using ConstRows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
  using Rows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;
  static constexpr std::size_t kQueryBlock = 64;  // queries whose scores are computed together

  static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }

  // Aligned for Eigen's sums: where a row starts decides in which order they are added up, and that
  // should not hang on what the heap returns.
  using Scratch = std::vector<float, Eigen::aligned_allocator<float>>;

  // Memory of one thread for one loop, at least `size` floats.
  Scratch& scratch(std::size_t worker, std::size_t size);

  void embed(std::span<const Token> tokens);

  // x / sqrt(mean(x^2) + epsilon) * weight
  void rms_norm(const Eigen::Ref<const Matrix>& x, const Vector& weight, Matrix& out) const;

  // out = x W^T. The rows of W are shared among the threads and turned to float in tiles: small
  // ones that stay in the nearest cache for one token, large ones to amortise the packing of x.
  void linear(const Matrix& x, const WeightMatrix& weight, Matrix& out);

  // Turns queries and keys of the pass and stores keys and values.
  void append_to_cache(std::size_t layer, KvCache& cache);

  void attend(std::size_t layer, const KvCache& cache, StepObserver& observer);

  // Queries first .. first + count of the pass, one query head.
  // Leaves the softmax rows in `scores`, [count, slots that the block's last query sees], and the
  // logs of their denominators.
  void attend_block(const KvLane& lane, std::size_t q_head, std::size_t first, std::size_t count,
                    float* scores, float* log_sums);

  // silu(gate) * up, silu(x) = x / (1 + exp(-x))
  void swiglu();

  Model model_;
  Rope rope_;
  ThreadPool pool_;
  // Of the current pass: its positions' turns, then one row for each token.
  std::vector<std::vector<float>> turns_;
  Matrix hidden_, normed_, qkv_, attended_, block_out_, gate_up_, activated_, logits_;
  std::vector<Scratch> scratch_;  // one for each thread
  std::vector<float> attention_;  // rows for an observer
  std::vector<float> log_sums_;   // their denominators' logs
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_TRANSFORMER_HPP_
