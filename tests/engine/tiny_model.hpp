#ifndef KVEVICT_TESTS_ENGINE_TINY_MODEL_HPP_
#define KVEVICT_TESTS_ENGINE_TINY_MODEL_HPP_

#include "engine/gguf_builder.hpp"
#include "engine/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

// Small models with random weights, and a forward pass over them that is as plain as it can be:
// in double, one token after another, nothing cached.
namespace engine_test {

using Row = std::vector<double>;

struct TinyModel {
  std::string architecture = "llama";
  std::uint32_t num_layers = 2;
  std::uint32_t num_q_heads = 4;
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 6;
  std::uint32_t hidden_size = 20;  // not num_q_heads * head_dim
  std::uint32_t feed_forward_size = 18;
  std::uint32_t vocabulary_size = 13;
  std::uint32_t rope_dim = 4;  // two channels are not turned
  float rope_base = 100.0F;
  bool has_biases = false;
  bool is_tied = false;
  std::map<std::string, std::vector<float>> weights = {};
  std::map<std::string, std::vector<std::uint64_t>> dims = {};  // innermost first

  // Adds every weight that is not there yet.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    const auto add = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows,
                         float mean, float spread) {
      std::vector<float>& values = weights[name];
      dims[name] = {cols};
      if (rows > 0)
        dims[name].push_back(rows);
      while (values.size() < cols * std::max<std::uint64_t>(rows, 1)) {
        const float uniform = static_cast<float>(random() >> 8U) * 0x1p-23F - 1.0F;
        values.push_back(mean + spread * uniform);
      }
    };
    const std::uint64_t q_size = num_q_heads * head_dim;
    const std::uint64_t kv_size = num_kv_heads * head_dim;
    add("token_embd.weight", hidden_size, vocabulary_size, 0.0F, 1.0F);
    add("output_norm.weight", hidden_size, 0, 1.0F, 0.5F);
    if (!is_tied)
      add("output.weight", hidden_size, vocabulary_size, 0.0F, 0.5F);
    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      add(block + "attn_norm.weight", hidden_size, 0, 1.0F, 0.5F);
      add(block + "attn_q.weight", hidden_size, q_size, 0.0F, 0.5F);
      add(block + "attn_k.weight", hidden_size, kv_size, 0.0F, 0.5F);
      add(block + "attn_v.weight", hidden_size, kv_size, 0.0F, 0.5F);
      if (has_biases) {
        add(block + "attn_q.bias", q_size, 0, 0.0F, 1.0F);
        add(block + "attn_k.bias", kv_size, 0, 0.0F, 1.0F);
        add(block + "attn_v.bias", kv_size, 0, 0.0F, 1.0F);
      }
      add(block + "attn_output.weight", q_size, hidden_size, 0.0F, 0.5F);
      add(block + "ffn_norm.weight", hidden_size, 0, 1.0F, 0.5F);
      add(block + "ffn_gate.weight", hidden_size, feed_forward_size, 0.0F, 0.5F);
      add(block + "ffn_up.weight", hidden_size, feed_forward_size, 0.0F, 0.5F);
      add(block + "ffn_down.weight", feed_forward_size, hidden_size, 0.0F, 0.5F);
    }
  }

  [[nodiscard]] GgufBuilder metadata() const {
    const std::string a = architecture + ".";
    GgufBuilder builder;
    builder.text("general.architecture", architecture)
        .number(a + "block_count", num_layers)
        .number(a + "embedding_length", hidden_size)
        .number(a + "feed_forward_length", feed_forward_size)
        .number(a + "context_length", 64)
        .number(a + "attention.head_count", num_q_heads)
        .number(a + "attention.head_count_kv", num_kv_heads)
        .number(a + "attention.key_length", head_dim)
        .number(a + "rope.dimension_count", rope_dim)
        .real(a + "rope.freq_base", rope_base)
        .real(a + "attention.layer_norm_rms_epsilon", 1e-5F);
    return builder;
  }
  [[nodiscard]] GgufBuilder builder() const {
    GgufBuilder builder = metadata();
    for (const auto& [name, values] : weights) {
      builder.tensor(name, dims.at(name), GgufBuilder::kF32, floats(values));
    }
    return builder;
  }
  [[nodiscard]] engine::Transformer transformer(std::size_t num_threads = 2) const {
    return engine::Transformer(engine::Model(builder().file()), num_threads);
  }

  [[nodiscard]] Row product(const std::string& name, const Row& x) const {
    const std::vector<float>& w = weights.at(name);
    Row result(w.size() / x.size(), 0.0);
    for (std::size_t r = 0; r < result.size(); ++r) {
      for (std::size_t c = 0; c < x.size(); ++c) {
        result[r] += static_cast<double>(w[r * x.size() + c]) * x[c];
      }
    }
    return result;
  }
  [[nodiscard]] Row projection(const std::string& name, const Row& x) const {
    Row result = product(name + ".weight", x);
    if (has_biases) {
      for (std::size_t r = 0; r < result.size(); ++r) {
        result[r] += static_cast<double>(weights.at(name + ".bias")[r]);
      }
    }
    return result;
  }
  [[nodiscard]] Row norm(const std::string& name, const Row& x) const {
    double sum = 0.0;
    for (const double value : x)
      sum += value * value;
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5);
    Row result = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      result[i] *= scale * static_cast<double>(weights.at(name)[i]);
    }
    return result;
  }
  void rotate(Row& heads, std::size_t position) const {
    const std::size_t half = rope_dim / 2;
    for (std::size_t head = 0; head < heads.size(); head += head_dim) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(static_cast<double>(rope_base),
                                      -static_cast<double>(i) / static_cast<double>(half));
        const bool is_half = architecture == "qwen2";
        double& a = heads[head + (is_half ? i : 2 * i)];
        double& b = heads[head + (is_half ? i + half : 2 * i + 1)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  // sees(layer, kv_head, query token, key token) is asked for key tokens up to the query token.
  using Mask = std::function<bool(std::size_t, std::size_t, std::size_t, std::size_t)>;

  // Logits of every token, [tokens, vocabulary_size].
  [[nodiscard]] std::vector<Row> reference(const std::vector<engine::Token>& tokens,
                                           const Mask& sees) const {
    std::vector<Row> hidden;
    const std::vector<float>& embedding = weights.at("token_embd.weight");
    for (const engine::Token token : tokens) {
      const auto first = embedding.begin() + token * static_cast<std::ptrdiff_t>(hidden_size);
      hidden.emplace_back(first, first + static_cast<std::ptrdiff_t>(hidden_size));
    }
    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      std::vector<Row> keys;
      std::vector<Row> values;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const Row x = norm(block + "attn_norm.weight", hidden[t]);
        Row query = projection(block + "attn_q", x);
        keys.push_back(projection(block + "attn_k", x));
        values.push_back(projection(block + "attn_v", x));
        rotate(query, t);
        rotate(keys.back(), t);
        Row attended(query.size(), 0.0);
        for (std::size_t head = 0; head < num_q_heads; ++head) {
          attend(query, keys, values, head, attended, [&](std::size_t kv_head, std::size_t key) {
            return sees(layer, kv_head, t, key);
          });
        }
        add(product(block + "attn_output.weight", attended), hidden[t]);
        const Row y = norm(block + "ffn_norm.weight", hidden[t]);
        Row gate = product(block + "ffn_gate.weight", y);
        const Row up = product(block + "ffn_up.weight", y);
        for (std::size_t i = 0; i < gate.size(); ++i)
          gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
        add(product(block + "ffn_down.weight", gate), hidden[t]);
      }
    }
    std::vector<Row> logits;
    for (const Row& x : hidden) {
      logits.push_back(
          product(is_tied ? "token_embd.weight" : "output.weight", norm("output_norm.weight", x)));
    }
    return logits;
  }

 private:
  static void add(const Row& x, Row& to) {
    for (std::size_t i = 0; i < x.size(); ++i)
      to[i] += x[i];
  }
  template <class Sees>
  void attend(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values,
              std::size_t head, Row& attended, Sees&& sees) const {
    const std::size_t kv_head = head / (num_q_heads / num_kv_heads);
    double sum = 0.0;
    for (std::size_t key = 0; key < keys.size(); ++key) {
      if (!sees(kv_head, key))
        continue;
      double dot = 0.0;
      for (std::size_t c = 0; c < head_dim; ++c) {
        dot += query[head * head_dim + c] * keys[key][kv_head * head_dim + c];
      }
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(head_dim)));
      sum += weight;
      for (std::size_t c = 0; c < head_dim; ++c) {
        attended[head * head_dim + c] += weight * values[key][kv_head * head_dim + c];
      }
    }
    for (std::size_t c = 0; c < head_dim; ++c)
      attended[head * head_dim + c] /= sum;
  }
};

}  // namespace engine_test

#endif  // KVEVICT_TESTS_ENGINE_TINY_MODEL_HPP_
