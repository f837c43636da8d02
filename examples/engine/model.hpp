#ifndef KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_
#define KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_

#include "engine/gguf.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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
               std::size_t cols)
      : file_(std::move(file)), cols_(cols) {
    for (const Part& part : parts) {
      tensors_.push_back(&file_->tensor(part.name, part.rows, cols));
      rows_ += part.rows;
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t cols() const noexcept { return cols_; }

  /// Writes rows first .. first + count as float, [count, cols].
  void dequantise(std::size_t first, std::size_t count, float* out) const noexcept {
    std::size_t above = 0;  // rows of the parts before this one
    for (const GgufTensor* tensor : tensors_) {
      const std::size_t begin = std::max(first, above);
      const std::size_t end = std::min(first + count, above + tensor->rows);
      if (begin < end) {
        file_->dequantise(*tensor, begin - above, end - begin, out + (begin - first) * cols_);
      }
      above += tensor->rows;
    }
  }
  [[nodiscard]] Matrix dequantise() const {
    Matrix result(static_cast<Eigen::Index>(rows_), static_cast<Eigen::Index>(cols_));
    dequantise(0, rows_, result.data());
    return result;
  }

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
  explicit Model(GgufFile gguf) {
    const auto file = std::make_shared<const GgufFile>(std::move(gguf));
    config_ = read_config(*file);
    const ModelConfig& c = config_;
    const auto matrix = [&](const std::vector<WeightMatrix::Part>& parts, std::size_t cols) {
      return WeightMatrix(file, parts, cols);
    };
    const auto vector = [&](const std::vector<WeightMatrix::Part>& parts) {
      return read_vector(*file, parts);
    };
    token_embedding_ = matrix({{"token_embd.weight", c.vocabulary_size}}, c.hidden_size);
    output_norm_ = vector({{"output_norm.weight", c.hidden_size}});
    output_ = file->has_tensor("output.weight")
                  ? matrix({{"output.weight", c.vocabulary_size}}, c.hidden_size)
                  : token_embedding_;
    for (std::size_t layer = 0; layer < c.num_layers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      LayerWeights w;
      w.attention_norm = vector({{block + "attn_norm.weight", c.hidden_size}});
      w.qkv = matrix({{block + "attn_q.weight", c.q_size()},
                      {block + "attn_k.weight", c.kv_size()},
                      {block + "attn_v.weight", c.kv_size()}},
                     c.hidden_size);
      if (c.architecture == "qwen2" || file->has_tensor(block + "attn_q.bias")) {
        w.qkv_bias = vector({{block + "attn_q.bias", c.q_size()},
                             {block + "attn_k.bias", c.kv_size()},
                             {block + "attn_v.bias", c.kv_size()}});
      }
      w.output = matrix({{block + "attn_output.weight", c.hidden_size}}, c.q_size());
      w.feed_forward_norm = vector({{block + "ffn_norm.weight", c.hidden_size}});
      w.gate_up = matrix({{block + "ffn_gate.weight", c.feed_forward_size},
                          {block + "ffn_up.weight", c.feed_forward_size}},
                         c.hidden_size);
      w.down = matrix({{block + "ffn_down.weight", c.hidden_size}}, c.feed_forward_size);
      layers_.push_back(std::move(w));
    }
  }

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
  static Vector read_vector(const GgufFile& file, const std::vector<WeightMatrix::Part>& parts) {
    std::size_t size = 0;
    for (const auto& part : parts)
      size += file.tensor(part.name, 1, part.rows).cols;
    Vector result(static_cast<Eigen::Index>(size));
    float* out = result.data();
    for (const auto& part : parts) {
      file.dequantise(file.tensor(part.name), 0, 1, out);
      out += part.rows;
    }
    return result;
  }

  static ModelConfig read_config(const GgufFile& file) {
    ModelConfig c;
    c.architecture = file.get<std::string>("general.architecture");
    if (c.architecture != "llama" && c.architecture != "qwen2") {
      file.fail("architecture " + c.architecture + " is not supported (llama and qwen2 are)");
    }
    const std::string prefix = c.architecture + ".";
    const auto count_or = [&](const std::string& key, std::size_t otherwise) {
      return file.find<std::int64_t>(prefix + key) == nullptr ? otherwise
                                                              : file.get_count(prefix + key);
    };
    c.num_layers = file.get_count(prefix + "block_count");
    c.hidden_size = file.get_count(prefix + "embedding_length");
    c.feed_forward_size = file.get_count(prefix + "feed_forward_length");
    c.context_length = file.get_count(prefix + "context_length");
    c.num_q_heads = file.get_count(prefix + "attention.head_count");
    c.num_kv_heads = count_or("attention.head_count_kv", c.num_q_heads);
    c.head_dim = count_or("attention.key_length", c.hidden_size / c.num_q_heads);
    c.vocabulary_size = file.tensor("token_embd.weight").rows;
    c.rms_epsilon =
        static_cast<float>(file.get<double>(prefix + "attention.layer_norm_rms_epsilon"));
    const auto* tokens = file.find<std::vector<std::string>>("tokenizer.ggml.tokens");
    if (tokens != nullptr && tokens->size() > c.vocabulary_size) {
      file.fail("there are " + std::to_string(tokens->size()) + " tokens but only " +
                std::to_string(c.vocabulary_size) + " embeddings");
    }
    if (c.num_q_heads % c.num_kv_heads != 0) {
      file.fail("the number of query heads is not a multiple of the number of KV heads");
    }
    if (count_or("attention.value_length", c.head_dim) != c.head_dim) {
      file.fail("keys and values of different sizes are not supported");
    }
    c.rope_dim = count_or("rope.dimension_count", c.head_dim);
    read_rope(file, prefix, c);
    return c;
  }

  static void read_rope(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
    c.rope_pairing = c.architecture == "qwen2" ? RopePairing::kHalf : RopePairing::kInterleaved;
    if (c.rope_dim % 2 != 0 || c.rope_dim > c.head_dim) {
      file.fail("RoPE of " + std::to_string(c.rope_dim) + " channels does not fit heads of " +
                std::to_string(c.head_dim));
    }
    double scaling = 1.0;
    const auto kind = file.get_or<std::string>(prefix + "rope.scaling.type", "none");
    if (kind == "linear") {
      scaling = file.get<double>(prefix + "rope.scaling.factor");
    } else if (kind != "none") {
      file.fail("RoPE scaling " + kind + " is not supported (linear and factors are)");
    }
    const std::size_t half = c.rope_dim / 2;
    Vector factors = Vector::Ones(static_cast<Eigen::Index>(half));
    if (file.has_tensor("rope_freqs.weight"))
      factors = read_vector(file, {{"rope_freqs.weight", half}});
    const double base = file.get_or<double>(prefix + "rope.freq_base", 10000.0);
    if (!(base > 0.0) || !(scaling > 0.0))
      file.fail("RoPE's base or scaling is not positive");
    for (std::size_t i = 0; i < half; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(c.rope_dim);
      const double factor = double{factors[static_cast<Eigen::Index>(i)]};
      c.rope_frequencies.push_back(std::pow(base, -exponent) / factor / scaling);
    }
  }

  ModelConfig config_;
  WeightMatrix token_embedding_;
  Vector output_norm_;
  WeightMatrix output_;
  std::vector<LayerWeights> layers_;
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_MODEL_HPP_
