#ifndef KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_
#define KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_

#include "engine/gguf.hpp"

#include <Eigen/Core>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

// What a model is made of: its numbers (ModelConfig) and its weights (LayerWeights), from a GGUF
// file of the Llama or Qwen2 architecture. Matrices stay as they are in the file and are turned to
// float a few rows at a time, where they are used: all arithmetic is in float, and a decode step,
// which reads every weight once, reads a sixth of the bytes.
namespace engine {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::RowVectorXf;

/// Which two channels of a head RoPE turns together.
enum class RopePairing {
  kInterleaved,  ///< (2i, 2i + 1): Llama in GGUF files
  kHalf          ///< (i, i + rope_dim / 2): Qwen2
};

struct ModelConfig {
  std::string architecture;
  std::size_t num_layers = 0;
  std::size_t hidden_size = 0;
  std::size_t num_q_heads = 0;
  std::size_t num_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t feed_forward_size = 0;
  std::size_t vocabulary_size = 0;
  std::size_t context_length = 0;  ///< in training; nothing stops an engine from going on
  float rms_epsilon = 0.0F;
  RopePairing rope_pairing = RopePairing::kInterleaved;
  std::size_t rope_dim = 0;              ///< leading channels of a head that are turned
  std::vector<double> rope_frequencies;  ///< [rope_dim / 2], radians per position

  /// Query head h reads KV head h / group_size().
  [[nodiscard]] std::size_t group_size() const noexcept { return num_q_heads / num_kv_heads; }
  [[nodiscard]] std::size_t q_size() const noexcept { return num_q_heads * head_dim; }
  [[nodiscard]] std::size_t kv_size() const noexcept { return num_kv_heads * head_dim; }
};

/// A matrix [rows, cols] of the file, or several below each other. Copies share the file.
class WeightMatrix {
 public:
  struct Part {
    std::string name;
    std::size_t rows;
  };

  WeightMatrix() = default;
  /// Throws unless every part is there and is [rows, cols].
  WeightMatrix(std::shared_ptr<const GgufFile> file, const std::vector<Part>& parts,
               std::size_t cols);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t cols() const noexcept { return cols_; }

  /// Writes rows first .. first + count as float, [count, cols].
  void dequantise(std::size_t first, std::size_t count, float* out) const noexcept;
  [[nodiscard]] Matrix dequantise() const;

 private:
  std::shared_ptr<const GgufFile> file_;
  std::vector<const GgufTensor*> tensors_;
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
};

/// Matrices are [out, in]. What reads the same input is one matrix.
struct LayerWeights {
  Vector attention_norm;     ///< [hidden_size]
  WeightMatrix qkv;          ///< [q_size + 2 * kv_size, hidden_size]: Q, K, V
  Vector qkv_bias;           ///< [q_size + 2 * kv_size], or empty
  WeightMatrix output;       ///< [hidden_size, q_size]; W_O transposed
  Vector feed_forward_norm;  ///< [hidden_size]
  WeightMatrix gate_up;      ///< [2 * feed_forward_size, hidden_size]: gate, up
  WeightMatrix down;         ///< [hidden_size, feed_forward_size]
};

class Model {
 public:
  /// Throws std::runtime_error, "file: what", if anything is missing or does not fit.
  explicit Model(GgufFile gguf);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const WeightMatrix& token_embedding() const noexcept { return token_embedding_; }
  [[nodiscard]] const LayerWeights& layer(std::size_t layer) const noexcept {
    return layers_[layer];
  }
  [[nodiscard]] const Vector& output_norm() const noexcept { return output_norm_; }
  /// [vocabulary_size, hidden_size]; the embedding where the two are tied.
  [[nodiscard]] const WeightMatrix& output() const noexcept { return output_; }

 private:
  // Vectors behind each other, each as long as its part's `rows`.
  static Vector read_vector(const GgufFile& file, const std::vector<WeightMatrix::Part>& parts);

  static ModelConfig read_config(const GgufFile& file);

  static void read_rope(const GgufFile& file, const std::string& prefix, ModelConfig& c);

  ModelConfig config_;
  WeightMatrix token_embedding_;
  Vector output_norm_;
  WeightMatrix output_;
  std::vector<LayerWeights> layers_;
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_
