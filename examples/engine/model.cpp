#include "engine/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace engine {

WeightMatrix::WeightMatrix(std::shared_ptr<const GgufFile> file, const std::vector<Part>& parts,
                           std::size_t cols)
    : file_(std::move(file)), cols_(cols) {
  for (const Part& part : parts) {
    tensors_.push_back(&file_->tensor(part.name, part.rows, cols));
    rows_ += part.rows;
  }
}

void WeightMatrix::dequantise(std::size_t first, std::size_t count, float* out) const noexcept {
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

Matrix WeightMatrix::dequantise() const {
  Matrix result(static_cast<Eigen::Index>(rows_), static_cast<Eigen::Index>(cols_));
  dequantise(0, rows_, result.data());
  return result;
}

Model::Model(GgufFile gguf) {
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

Vector Model::read_vector(const GgufFile& file, const std::vector<WeightMatrix::Part>& parts) {
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

ModelConfig Model::read_config(const GgufFile& file) {
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
  c.rms_epsilon = static_cast<float>(file.get<double>(prefix + "attention.layer_norm_rms_epsilon"));
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

void Model::read_rope(const GgufFile& file, const std::string& prefix, ModelConfig& c) {
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

}  // namespace engine
