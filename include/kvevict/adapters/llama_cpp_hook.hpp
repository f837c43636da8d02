#ifndef KVEVICT_ADAPTERS_LLAMA_CPP_HOOK_HPP_
#define KVEVICT_ADAPTERS_LLAMA_CPP_HOOK_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

// What llama.cpp's graph shows of itself: the reading half of adapters/llama_cpp.hpp.
KVEVICT_NAMESPACE_BEGIN
namespace llama_cpp {

/// How one element of the cache is stored.
enum class Storage : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,  ///< blocks of 32: binary16 scale, then 32 signed bytes
  kOther,
};

/// Where the K or the V of one layer lies. Cell c of KV head h begins at
/// data + c * cell_stride + h * head_stride; cells of all streams are numbered through.
struct LayerRows {
  const std::byte* data = nullptr;
  std::size_t cell_stride = 0;  ///< in bytes, as is the next
  std::size_t head_stride = 0;
  Storage storage = Storage::kOther;
};

/// What an attention node tells about its layer.
struct AttentionNode {
  std::size_t layer = 0;
  CacheShape shape;  ///< num_layers is not set
  LayerRows keys;
  LayerRows values;
  float max_bias = 0.0F;  ///< ALiBi; 0: none
  bool latent = false;    ///< V is a part of K's cache
  bool host_memory = true;
  QueryRows queries;  ///< of the ubatch; to be read only after the node ran
};

/// What a graph says of the rotary embedding of a layer's queries.
struct RotaryReading {
  RotaryEmbedding rotary;
  std::string_view problem = {};  ///< why it is not known; empty where it is
};

/// Who hears of a decode. Cells come first, then the layers in order.
class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener() = default;

  /// The tokens of this ubatch are written to `cells`, in batch order.
  virtual void on_cells(std::span<const std::int64_t> cells) = 0;
  /// Asked before a node runs; true: on_attention follows when it has.
  virtual bool wants_attention(const AttentionNode& node) = 0;
  virtual void on_attention(const AttentionNode& node) = 0;
  /// Asked of layers whose states lie in host memory as f32.
  virtual bool wants_hidden(std::size_t layer) = 0;
  virtual void on_hidden(std::size_t layer, const HiddenRows& rows) = 0;
  /// Asked once per decode; true: nothing but cells, wants_attention, wants_hidden and on_rotary is
  /// heard of it, each node runs by itself, and on_rotary comes before wants_attention of the same
  /// layer.
  virtual bool wants_rotary() { return false; }
  virtual void on_rotary(std::size_t /*layer*/, const RotaryReading& /*reading*/) {}
};

/// The names of ggml that the hook reads, so that a test can stand in for it: `Tensor` has the
/// members of ggml_tensor.
template <class G>
concept TensorLibrary = requires(const typename G::Tensor& tensor) {
  { tensor.op == G::kFlashAttention } -> std::same_as<bool>;
  { tensor.op == G::kSetRows } -> std::same_as<bool>;
  { tensor.op == G::kRope } -> std::same_as<bool>;
  { G::storage(tensor) } -> std::same_as<Storage>;
  { G::is_host(tensor) } -> std::same_as<bool>;
};

// Reading nodes.
namespace nodes {

// N of "<prefix>N". Asked of every node of a graph, so the first wrong letter is the last one read.
[[nodiscard]] inline std::optional<std::size_t> number_behind(const char* name,
                                                              std::string_view prefix) noexcept {
  for (const char letter : prefix) {
    if (*name++ != letter)
      return std::nullopt;
  }
  if (*name == '\0')
    return std::nullopt;
  std::size_t number = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9')
      return std::nullopt;
    number = number * 10 + static_cast<std::size_t>(*name - '0');
  }
  return number;
}

// The cache tensor that `tensor` is a view of, or a converted copy of a view (an f32 cache is
// converted for the kernel); null if its name does not say so.
template <class Tensor>
[[nodiscard]] const Tensor* cache_behind(const Tensor* tensor, std::string_view prefix) noexcept {
  for (int depth = 0; tensor != nullptr && depth < 8; ++depth) {
    if (tensor->view_src != nullptr)
      tensor = tensor->view_src;
    if (number_behind(tensor->name, prefix))
      return tensor;
    tensor = tensor->src[0];
  }
  return nullptr;
}

template <class Tensor>
[[nodiscard]] float float_param(const Tensor& tensor, std::size_t index) noexcept {
  float value = 0;
  std::memcpy(&value, &tensor.op_params[index], sizeof(value));
  return value;
}

template <TensorLibrary G>
[[nodiscard]] LayerRows layer_rows(const typename G::Tensor& cache, std::size_t heads) noexcept {
  return {reinterpret_cast<const std::byte*>(cache.data), cache.nb[1], cache.nb[1] / heads,
          G::storage(cache)};
}

// Nothing where K or V is not a cache of the kind that is known here. V of latent attention is told
// apart from that, since such models are refused by name.
template <TensorLibrary G>
[[nodiscard]] std::optional<AttentionNode> read_attention(const typename G::Tensor& node) noexcept {
  const auto* q = node.src[0];
  const auto* k = node.src[1];
  const auto* v = node.src[2];
  const auto* key_cache = cache_behind(k, "cache_k_l");
  const bool latent = key_cache != nullptr && cache_behind(v, "cache_k_l") == key_cache;
  const auto* value_cache = latent ? key_cache : cache_behind(v, "cache_v_l");
  if (q == nullptr || key_cache == nullptr || value_cache == nullptr)
    return std::nullopt;
  AttentionNode out;
  out.latent = latent;
  out.layer = *number_behind(key_cache->name, "cache_k_l");
  out.shape.num_q_heads = static_cast<std::size_t>(q->ne[2]);
  out.shape.num_kv_heads = static_cast<std::size_t>(k->ne[2]);
  out.shape.head_dim = static_cast<std::size_t>(k->ne[0]);
  out.shape.value_dim = static_cast<std::size_t>(v->ne[0]);
  out.keys = layer_rows<G>(*key_cache, out.shape.num_kv_heads);
  out.values = layer_rows<G>(*value_cache, out.shape.num_kv_heads);
  out.max_bias = float_param(node, 1);
  out.host_memory = G::is_host(*key_cache) && G::is_host(*value_cache) && G::is_host(*q);
  out.queries = {.data = static_cast<const float*>(q->data),
                 .num_q_heads = out.shape.num_q_heads,
                 .num_rows = static_cast<std::size_t>(q->ne[1]),
                 .head_stride = static_cast<std::ptrdiff_t>(q->nb[2] / sizeof(float)),
                 .row_stride = static_cast<std::ptrdiff_t>(q->nb[1] / sizeof(float)),
                 .scale = float_param(node, 0),
                 .soft_cap = float_param(node, 2)};
  if (const auto* sinks = node.src[4])
    out.queries.sink_logits = {static_cast<const float*>(sinks->data), out.shape.num_q_heads};
  return out;
}

// The node that turned the queries which attention reads; null where more than views stands between
// (keys of a quantised cache are multiplied by an orthogonal matrix, and queries with them).
template <TensorLibrary G>
[[nodiscard]] const typename G::Tensor* rope_behind(const typename G::Tensor* queries) noexcept {
  for (int depth = 0; queries != nullptr && depth < 8; ++depth) {
    if (queries->op == G::kRope)
      return queries;
    queries = queries->view_src != nullptr ? queries->src[0] : nullptr;
  }
  return nullptr;
}

// Whether pair `pair` of `num_pairs` turns as in the model's training (1) or as slowly as the
// longer context asks for (0): YaRN's ramp.
[[nodiscard]] inline double yarn_ramp(std::size_t pair, std::size_t num_pairs, double freq_base,
                                      double trained_context, double beta_fast,
                                      double beta_slow) noexcept {
  constexpr double kTwoPi = 6.283185307179586;
  const auto num_dims = static_cast<double>(2 * num_pairs);
  // The channel that makes `turns` turns over the trained context.
  const auto channel = [&](double turns) {
    return num_dims * std::log(trained_context / (turns * kTwoPi)) / (2.0 * std::log(freq_base));
  };
  const double low = std::max(0.0, std::floor(channel(beta_fast)));
  const double high = std::min(num_dims - 1.0, std::ceil(channel(beta_slow)));
  const double along = (static_cast<double>(pair) - low) / std::max(0.001, high - low);
  return 1.0 - std::clamp(along, 0.0, 1.0);
}

// What the parameters of a node say, which are those of ggml_rope_ext.
template <TensorLibrary G>
[[nodiscard]] RotaryReading read_rope(const typename G::Tensor& rope) {
  constexpr std::int32_t kAdjacentPairs = 0;
  constexpr std::int32_t kHalves = 2;
  RotaryReading reading;
  const std::int32_t mode = rope.op_params[2];
  if (mode != kAdjacentPairs && mode != kHalves) {
    reading.problem = "tokens have more than one position each (M-RoPE)";
    return reading;
  }
  const auto num_pairs = static_cast<std::size_t>(rope.op_params[1]) / 2;
  const double freq_base = float_param(rope, 5);
  const double freq_scale = float_param(rope, 6);
  const double ext_factor = float_param(rope, 7);
  const auto* factors = rope.src[2];
  if (factors != nullptr && !(G::is_host(*factors) && G::storage(*factors) == Storage::kF32)) {
    reading.problem = "factors of the frequencies do not lie in host memory as f32";
    return reading;
  }
  reading.rotary.pairing = mode == kHalves ? RotaryPairing::kHalf : RotaryPairing::kInterleaved;
  reading.rotary.attention_scaling = float_param(rope, 8);
  if (ext_factor != 0.0)
    reading.rotary.attention_scaling *= 1.0 + 0.1 * std::log(1.0 / freq_scale);
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    double trained =
        std::pow(freq_base, -static_cast<double>(pair) / static_cast<double>(num_pairs));
    if (factors != nullptr)
      trained /= static_cast<double>(static_cast<const float*>(factors->data)[pair]);
    const double share = ext_factor == 0.0
                             ? 0.0
                             : ext_factor * yarn_ramp(pair, num_pairs, freq_base,
                                                      static_cast<double>(rope.op_params[4]),
                                                      float_param(rope, 9), float_param(rope, 10));
    reading.rotary.inv_freq.push_back(trained * (freq_scale * (1.0 - share) + share));
  }
  return reading;
}

// The heads [heads, head_dim] of the first token.
template <class Tensor>
[[nodiscard]] std::vector<float> first_token(const Tensor& tensor) {
  const auto dim = static_cast<std::size_t>(tensor.ne[0]);
  const auto heads = static_cast<std::size_t>(tensor.ne[1]);
  std::vector<float> rows(heads * dim);
  for (std::size_t head = 0; head < heads; ++head) {
    std::memcpy(rows.data() + head * dim,
                static_cast<const std::byte*>(tensor.data) + head * tensor.nb[1],
                dim * sizeof(float));
  }
  return rows;
}

// Whether turning `before` [heads, head_dim] gives `after`.
[[nodiscard]] inline bool turns_into(const RotaryEmbedding& rotary, std::size_t head_dim,
                                     double position, std::vector<float> before,
                                     std::span<const float> after) {
  float largest = 0.0F;
  float error = 0.0F;
  for (std::size_t row = 0; row < before.size(); row += head_dim) {
    rotary.turn(position, before.data() + row);
    for (std::size_t c = 0; c < head_dim; ++c) {
      const double scale = c < 2 * rotary.num_pairs() ? rotary.attention_scaling : 1.0;
      const float turned = static_cast<float>(scale * static_cast<double>(before[row + c]));
      largest = std::max(largest, std::abs(after[row + c]));
      error = std::max(error, std::abs(turned - after[row + c]));
    }
  }
  return error <= 1e-4F * largest;
}

}  // namespace nodes

/// The user data of cb_eval. Its address goes into the context, so it never moves.
class Hook {
 public:
  Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() = default;

  /// Runs `decode`, a call of llama_decode, with `listener` attached, and returns its result. What
  /// the listener threw comes out here, since it must not go through the engine's frames.
  template <class Decode>
  int listen(Listener& listener, Decode&& decode) {
    listener_ = &listener;
    cells_seen_ = false;
    reads_rotary_ = listener.wants_rotary();
    error_ = nullptr;
    const int result = decode();
    listener_ = nullptr;
    if (error_)
      std::rethrow_exception(std::exchange(error_, nullptr));
    return result;
  }

  /// What cb_eval calls. Graphs outside of listen (warm-up) say nothing.
  template <TensorLibrary G>
  bool on_node(const typename G::Tensor& node, bool ask) noexcept {
    if (listener_ == nullptr || error_)
      return !ask;  // false behind a node would end the graph
    try {
      return ask ? wants<G>(node) : (got<G>(node), true);
    } catch (...) {
      error_ = std::current_exception();
      return !ask;
    }
  }

 private:
  template <TensorLibrary G>
  bool wants(const typename G::Tensor& node) {
    if (node.op == G::kFlashAttention) {
      const auto attention = nodes::read_attention<G>(node);
      if (attention && reads_rotary_)
        listener_->on_rotary(attention->layer, read_rotary<G>(node.src[0]));
      return attention && (listener_->wants_attention(*attention) || reads_rotary_);
    }
    if (reads_rotary_ && node.op == G::kRope && is_plain<G>(*node.src[0])) {
      // The node before this one was wanted, so what comes in is there, and not yet overwritten.
      unturned_.emplace_back(&node, nodes::first_token(*node.src[0]));
    }
    if (node.op == G::kSetRows) {
      // Inputs are there before anything runs, so the cells are read without stopping the graph.
      // Every layer writes to the same ones: the first says it.
      if (!cells_seen_ && node.view_src != nullptr &&
          nodes::number_behind(node.view_src->name, "cache_k_l")) {
        cells_seen_ = true;
        listener_->on_cells({static_cast<const std::int64_t*>(node.src[1]->data),
                             static_cast<std::size_t>(node.src[1]->ne[0])});
      }
      return reads_rotary_;
    }
    const auto layer = nodes::number_behind(node.name, "l_out-");
    const bool wants_hidden = layer && is_plain<G>(node) && listener_->wants_hidden(*layer);
    return wants_hidden || reads_rotary_;
  }
  template <TensorLibrary G>
  [[nodiscard]] static bool is_plain(const typename G::Tensor& tensor) noexcept {
    return G::is_host(tensor) && G::storage(tensor) == Storage::kF32;
  }
  // The rotary embedding behind the queries of an attention node, which is about to run; tried on
  // what went into it and came out.
  template <TensorLibrary G>
  [[nodiscard]] RotaryReading read_rotary(const typename G::Tensor* queries) {
    const auto unturned = std::exchange(unturned_, {});
    const auto* rope = nodes::rope_behind<G>(queries);
    if (rope == nullptr) {
      return {{},
              "queries do not reach attention as a rotary embedding left them (is K quantised?)"};
    }
    RotaryReading reading = nodes::read_rope<G>(*rope);
    const auto before = std::find_if(unturned.begin(), unturned.end(),
                                     [&](const auto& entry) { return entry.first == rope; });
    if (!reading.problem.empty())
      return reading;
    if (before == unturned.end() || !is_plain<G>(*rope) || !G::is_host(*rope->src[1])) {
      reading.problem = "queries do not lie in host memory as f32";
    } else if (!nodes::turns_into(
                   reading.rotary, static_cast<std::size_t>(rope->ne[0]),
                   static_cast<double>(*static_cast<const std::int32_t*>(rope->src[1]->data)),
                   before->second, nodes::first_token(*rope))) {
      reading.problem = "the engine's rotary embedding is not what its parameters say";
    }
    return reading;
  }
  template <TensorLibrary G>
  void got(const typename G::Tensor& node) {
    if (reads_rotary_)
      return;
    if (node.op == G::kFlashAttention) {
      if (const auto attention = nodes::read_attention<G>(node))
        listener_->on_attention(*attention);
    } else if (const auto layer = nodes::number_behind(node.name, "l_out-")) {
      // Of the last layer only rows that lead to logits are there, maybe none.
      if (node.ne[1] > 0) {
        listener_->on_hidden(*layer, {.data = node.data,
                                      .num_rows = static_cast<std::size_t>(node.ne[1]),
                                      .hidden_size = static_cast<std::size_t>(node.ne[0]),
                                      .row_stride_bytes = static_cast<std::ptrdiff_t>(node.nb[1])});
      }
    }
  }

  Listener* listener_ = nullptr;
  bool cells_seen_ = false;
  bool reads_rotary_ = false;
  // What went into rotary embeddings since the last attention node, by the node.
  std::vector<std::pair<const void*, std::vector<float>>> unturned_;
  std::exception_ptr error_;
};

}  // namespace llama_cpp
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ADAPTERS_LLAMA_CPP_HOOK_HPP_
