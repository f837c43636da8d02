#ifndef KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_HPP_
#define KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_HPP_

#include "adapters/fake_tensor.hpp"
#include "kvevict/adapters/llama_cpp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Stands in for llama.cpp: the memory and the graph's nodes as they were measured there, and a
// model of a few layers whose keys depend on the token alone.
namespace kvevict_test {

struct FakeGgml {
  using Tensor = FakeTensor;
  static constexpr int kFlashAttention = 1;
  static constexpr int kSetRows = 2;
  static constexpr int kOther = 3;
  static constexpr int kRope = 4;
  static kvevict::llama_cpp::Storage storage(const Tensor& tensor) noexcept { return tensor.type; }
  static bool is_host(const Tensor& tensor) noexcept { return tensor.buffer->on_host; }
};

class FakeLlama {
 public:
  using Token = kvevict::llama_cpp::Token;
  static constexpr std::size_t kLayers = 4, kQHeads = 4, kKvHeads = 2, kDim = 4, kHidden = 3;
  // What queries look at: the lower half of the layers at commas, the upper half at the needle.
  static constexpr Token kComma = 100, kNeedle = 101;

  struct Options {
    std::size_t num_cells = 64;
    std::size_t num_streams = 1;  // 1: unified
    std::size_t max_batch = 64;
    std::size_t max_ubatch = 64;
    std::size_t splits_by = 512;  // ubatches are no longer than that, whatever max_ubatch says
    std::size_t max_sequences = 4;
    std::size_t state_skips = 0;  // free cells that a state which is read in leaves before it
    bool converts_keys = false;   // K reaches attention through a copy, as an f32 cache's does
    bool latent = false;          // V is a part of K, which has the only cache
    bool has_hook = true;
    bool on_host = true;
    bool names_hidden = true;
    bool hidden_on_host = true;
    float max_bias = 0.0F;
    kvevict::llama_cpp::Storage storage = kvevict::llama_cpp::Storage::kF32;
    std::string refusal = {};
    std::size_t trained_context = 8192;
    bool refuses_removal = false;
    bool can_shift = true;
    bool has_rope = false;  // queries are rope_query() and turned by the rotary embedding below
    bool multiplies_queries = false;  // between there and attention, as with a quantised cache
    std::vector<std::int32_t> rope_params = rope_parameters();
    std::vector<float> rope_factors = {};  // of the frequencies
    double turns_by = 1.0;                 // what it turns by, of what it should
    double attention_scaling = 1.0;
    int result = 0;       // of the next decode, which then does nothing, where it is not 0
    int late_result = 0;  // the same, but the tokens were written: aborted
  };
  struct Cell {
    kvevict::Position position = -1;
    std::set<kvevict::llama_cpp::SequenceId> sequences;
    Token token = -1;
    kvevict::Position pending = 0;  // moved by so much; its keys are turned in the next decode
  };
  struct Call {
    kvevict::Position position;
    std::size_t count;
    bool logits;
    friend bool operator==(const Call&, const Call&) = default;
  };

  // op_params of ggml_rope_ext: 4 channels, base 100, nothing scaled.
  [[nodiscard]] static std::vector<std::int32_t> rope_parameters(std::int32_t mode = 0,
                                                                 float freq_scale = 1.0F,
                                                                 float ext_factor = 0.0F,
                                                                 float attn_factor = 1.0F,
                                                                 std::int32_t n_ctx_orig = 8192) {
    std::vector<std::int32_t> params(16);
    params[1] = kDim;
    params[2] = mode;
    params[4] = n_ctx_orig;
    const float floats[] = {100.0F, freq_scale, ext_factor, attn_factor, 32.0F, 1.0F};
    std::memcpy(&params[5], floats, sizeof(floats));
    return params;
  }
  // Of every token and layer, before it is turned.
  [[nodiscard]] static std::array<float, kDim> rope_query(std::size_t head) {
    return {2.0F, static_cast<float>(head), 1.0F, 0.0F};
  }
  // By default what base 100 means for two pairs.
  std::vector<double> inv_freq = {1.0, 0.1};

  using Callback = std::function<bool(FakeTensor& node, bool ask)>;

  FakeLlama(const Options& with, kvevict::llama_cpp::Hook& hook)
      : FakeLlama(with, [&hook](FakeTensor& node, bool ask) {
          return hook.on_node<FakeGgml>(node, ask);
        }) {}
  FakeLlama(const Options& with, Callback callback)
      : options(with), cells(with.num_cells), callback_(std::move(callback)) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      keys_[layer].resize(with.num_cells * kKvHeads * kDim);
      values_[layer].resize(keys_[layer].size());
      make_cache(key_cache_[layer], "cache_k_l", layer, keys_[layer]);
      make_cache(value_cache_[layer], "cache_v_l", layer, values_[layer]);
    }
  }
  FakeLlama(const FakeLlama&) = delete;
  FakeLlama& operator=(const FakeLlama&) = delete;

  [[nodiscard]] static float key(Token token, std::size_t layer, std::size_t head, std::size_t c) {
    if (c == 0)
      return token == (layer < kLayers / 2 ? kComma : kNeedle) ? (layer < 2 ? 6.0F : 3.0F) : 0.0F;
    const std::size_t hash = (static_cast<std::size_t>(token) * 31 + layer * 7 + head * 3 + c) % 17;
    return static_cast<float>(hash) / 17.0F;
  }

  int decode(std::span<const Token> tokens, kvevict::Position position,
             kvevict::llama_cpp::SequenceId sequence, bool logits) {
    if (tokens.size() > options.max_batch || tokens.empty()) {
      ADD_FAILURE() << tokens.size() << " tokens: the real one aborts the process";
      return -1;
    }
    if (position != newest(sequence) + 1 && newest(sequence) >= 0)
      return -1;  // an empty sequence may begin anywhere
    turn_keys();
    if (options.result != 0)
      return std::exchange(options.result, 0);
    const std::vector<std::int64_t> targets = free_cells(sequence, tokens.size());
    if (targets.size() < tokens.size())
      return 1;
    calls.push_back({position, tokens.size(), logits});
    const std::size_t longest = std::min(options.max_ubatch, options.splits_by);
    for (std::size_t done = 0; done < tokens.size(); done += longest) {
      const std::size_t count = std::min(longest, tokens.size() - done);
      ubatch(tokens.subspan(done, count), position + static_cast<kvevict::Position>(done), sequence,
             std::span(targets).subspan(done, count), logits);
    }
    return std::exchange(options.late_result, 0);
  }
  [[nodiscard]] kvevict::Position newest(kvevict::llama_cpp::SequenceId sequence) const {
    kvevict::Position position = -1;
    for (const Cell& cell : cells) {
      if (cell.sequences.count(sequence) > 0)
        position = std::max(position, cell.position);
    }
    return position;
  }
  bool remove(kvevict::llama_cpp::SequenceId sequence, kvevict::Position first,
              kvevict::Position last) {
    if (options.refuses_removal)
      return false;
    removals.emplace_back(first, last);
    for (Cell& cell : cells) {
      if (cell.position >= first && (last < 0 || cell.position < last))
        leave(cell, sequence);
    }
    return true;
  }
  void shift(kvevict::llama_cpp::SequenceId sequence, kvevict::Position first,
             kvevict::Position last, kvevict::Position delta) {
    for (Cell& cell : cells) {
      if (cell.sequences.count(sequence) > 0 && cell.position >= first && cell.position < last) {
        cell.position += delta;
        cell.pending += delta;
      }
    }
  }
  void copy(kvevict::llama_cpp::SequenceId from, kvevict::llama_cpp::SequenceId to) {
    for (Cell& cell : cells) {
      if (cell.sequences.count(from) > 0)
        cell.sequences.insert(to);
    }
  }
  void clear() { std::fill(cells.begin(), cells.end(), Cell{}); }

  // The state is the tokens and positions in the order of the cells.
  std::size_t state_size(kvevict::llama_cpp::SequenceId sequence) const {
    return 8 * static_cast<std::size_t>(std::count_if(
                   cells.begin(), cells.end(),
                   [&](const Cell& cell) { return cell.sequences.count(sequence) > 0; }));
  }
  std::size_t get_state(kvevict::llama_cpp::SequenceId sequence, std::uint8_t* buffer,
                        std::size_t /*size*/) const {
    std::size_t written = 0;
    for (const Cell& cell : cells) {
      if (cell.sequences.count(sequence) == 0)
        continue;
      EXPECT_EQ(cell.pending, 0) << "the keys of position " << cell.position
                                 << " are written out unturned";
      const std::int32_t pair[] = {cell.position, cell.token};
      std::memcpy(buffer + written, pair, sizeof(pair));
      written += sizeof(pair);
    }
    return written;
  }
  std::size_t set_state(kvevict::llama_cpp::SequenceId sequence, const std::uint8_t* buffer,
                        std::size_t size) {
    remove(sequence, -1, -1);
    const std::vector<std::int64_t> free = free_cells(sequence, options.state_skips + size / 8);
    for (const std::int64_t target : std::span(free).subspan(options.state_skips)) {
      std::int32_t pair[2];
      std::memcpy(pair, buffer, sizeof(pair));
      buffer += sizeof(pair);
      write(static_cast<std::size_t>(target), pair[1], pair[0], sequence);
    }
    return size;
  }

  // As warm-up does it: nodes of which nobody asked to hear.
  void warm_up() { emit_layers(std::vector<Token>{1}, {}, 0, true); }

  Options options;
  std::vector<Cell> cells;
  std::vector<Call> calls;
  std::vector<std::pair<kvevict::Position, kvevict::Position>> removals;
  std::vector<std::size_t> attended;  // layers whose attention node was wanted
  std::size_t num_wanted = 0;  // nodes; the real graph stops behind each, and its threads with it

  [[nodiscard]] std::size_t num_used() const {
    return static_cast<std::size_t>(std::count_if(
        cells.begin(), cells.end(), [](const Cell& cell) { return !cell.sequences.empty(); }));
  }

 private:
  void make_cache(FakeTensor& cache, const char* name, std::size_t layer,
                  std::vector<float>& data) const {
    const auto row = static_cast<std::int64_t>(kKvHeads * kDim);
    cache.type = options.storage;
    cache.ne = {row, static_cast<std::int64_t>(options.num_cells), 1, 1};
    cache.nb = {4, 4 * kKvHeads * kDim, data.size() * 4, data.size() * 4};
    cache.data = data.data();
    cache.buffer = options.on_host ? &kHostBuffer : &kDeviceBuffer;
    cache.set_name(name, layer);
  }
  // The lowest ones of the sequence's stream.
  [[nodiscard]] std::vector<std::int64_t> free_cells(kvevict::llama_cpp::SequenceId sequence,
                                                     std::size_t count) const {
    const std::size_t size = options.num_cells / options.num_streams;
    const std::size_t first =
        options.num_streams == 1 ? 0 : static_cast<std::size_t>(sequence) * size;
    std::vector<std::int64_t> free;
    for (std::size_t cell = first; cell < first + size && free.size() < count; ++cell) {
      if (cells[cell].sequences.empty())
        free.push_back(static_cast<std::int64_t>(cell));
    }
    return free;
  }
  static void leave(Cell& cell, kvevict::llama_cpp::SequenceId sequence) {
    cell.sequences.erase(sequence);
    if (cell.sequences.empty())
      cell = {};
  }
  void write(std::size_t target, Token token, kvevict::Position position,
             kvevict::llama_cpp::SequenceId sequence) {
    cells[target] = {position, {sequence}, token, 0};
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t head = 0; head < kKvHeads; ++head) {
        for (std::size_t c = 0; c < kDim; ++c)
          keys_[layer][(target * kKvHeads + head) * kDim + c] = key(token, layer, head, c);
      }
    }
  }
  void ubatch(std::span<const Token> tokens, kvevict::Position position,
              kvevict::llama_cpp::SequenceId sequence, std::span<const std::int64_t> targets,
              bool logits) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      write(static_cast<std::size_t>(targets[i]), tokens[i],
            position + static_cast<kvevict::Position>(i), sequence);
    }
    emit_layers(tokens, targets, options.num_cells, logits, position);
  }

  void turn(std::vector<float>& queries, kvevict::Position first) const {
    const kvevict::RotaryEmbedding rotary{.inv_freq = inv_freq,
                                          .pairing = options.rope_params[2] == 2
                                                         ? kvevict::RotaryPairing::kHalf
                                                         : kvevict::RotaryPairing::kInterleaved};
    for (std::size_t i = 0; i < queries.size(); i += kDim) {
      const auto position = static_cast<double>(first) + static_cast<double>(i / kDim / kQHeads);
      rotary.turn(options.turns_by * position, queries.data() + i);
      for (std::size_t c = 0; c < 2 * inv_freq.size(); ++c)
        queries[i + c] *= static_cast<float>(options.attention_scaling);
    }
  }
  // A graph of its own in front of the next one: what was moved by shift() is turned.
  void turn_keys() {
    if (std::none_of(cells.begin(), cells.end(),
                     [](const Cell& cell) { return cell.pending != 0; }))
      return;
    for (Cell& cell : cells)
      cell.pending = 0;
    for (FakeTensor& cache : key_cache_) {
      FakeTensor rope;
      rope.op = FakeGgml::kRope;
      rope.view_src = rope.src[0] = &cache;
      rope.data = cache.data;
      rope.set_name("K_shift-", 0);
      run(rope);
    }
  }
  bool tell(FakeTensor& node, bool ask) {
    const bool result = options.has_hook ? callback_(node, ask) : !ask;
    num_wanted += ask && result ? 1 : 0;
    return result;
  }
  void run(FakeTensor& node) {
    if (tell(node, true)) {
      EXPECT_TRUE(tell(node, false)) << "false ends the real graph";
    }
  }
  void emit_layers(std::span<const Token> tokens, std::span<const std::int64_t> targets,
                   std::size_t num_cells, bool logits, kvevict::Position position = 0) {
    const std::size_t count = tokens.size();
    std::vector<std::int64_t> written(targets.begin(), targets.end());
    std::vector<float> queries(count * kQHeads * kDim);
    for (std::size_t i = 0; i < queries.size(); i += kDim)
      queries[i] = 2.0F;
    std::vector<float> hidden(count * kHidden, 1.0F);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      FakeTensor indices;
      indices.data = written.data();
      indices.ne[0] = static_cast<std::int64_t>(written.size());
      if (!written.empty()) {
        for (FakeTensor* cache : {&key_cache_[layer], &value_cache_[layer]}) {
          FakeTensor set_rows;
          set_rows.op = FakeGgml::kSetRows;
          set_rows.view_src = cache;
          set_rows.src[1] = &indices;
          run(set_rows);
        }
      }
      FakeTensor unturned;
      unturned.ne = {kDim, kQHeads, static_cast<std::int64_t>(count), 1};
      unturned.nb = {4, 4 * kDim, 4 * kQHeads * kDim, 0};
      unturned.data = queries.data();
      std::vector<std::int32_t> positions(count);
      std::iota(positions.begin(), positions.end(), position);
      FakeTensor where;
      where.data = positions.data();
      FakeTensor factors;
      factors.data = options.rope_factors.data();
      FakeTensor rope = unturned;
      rope.op = FakeGgml::kRope;
      std::copy(options.rope_params.begin(), options.rope_params.end(), rope.op_params.begin());
      rope.src = {&unturned, &where, options.rope_factors.empty() ? nullptr : &factors};
      FakeTensor q;
      q.ne = {kDim, static_cast<std::int64_t>(count), kQHeads, 1};
      q.nb = {4, 4 * kQHeads * kDim, 4 * kDim, 0};
      q.data = queries.data();
      if (options.has_rope) {
        for (std::size_t i = 0; i < count * kQHeads; ++i) {
          const auto query = rope_query(i % kQHeads);
          std::copy(query.begin(), query.end(),
                    queries.begin() + static_cast<std::ptrdiff_t>(i * kDim));
        }
        q.src[0] = &rope;
        q.view_src = options.multiplies_queries ? nullptr : &rope;
        const bool wanted = tell(rope, true);
        turn(queries, position);  // in place, as ggml may
        if (wanted) {
          EXPECT_TRUE(tell(rope, false));
        }
      }
      FakeTensor k;
      k.ne = {kDim, static_cast<std::int64_t>(num_cells), kKvHeads, 1};
      k.view_src = &key_cache_[layer];
      k.data = keys_[layer].data();
      FakeTensor v = k;
      v.view_src = options.latent ? &key_cache_[layer] : &value_cache_[layer];
      v.data = values_[layer].data();
      FakeTensor copy = k;
      copy.view_src = nullptr;
      copy.src[0] = &k;
      copy.set_name("cache_k_l0 (view) (permuted) (copy)", 0);
      FakeTensor attention;
      attention.op = FakeGgml::kFlashAttention;
      attention.set_name("node_", 21 + layer);  // the real one has no name either
      attention.src = {&q, options.converts_keys ? &copy : &k, &v};
      attention.set_param(0, 1.0F);
      attention.set_param(1, options.max_bias);
      if (tell(attention, true)) {
        attended.push_back(layer);
        EXPECT_TRUE(tell(attention, false));
      }
      FakeTensor out;
      out.op = FakeGgml::kOther;
      out.set_name(options.names_hidden ? "l_out-" : "node_", layer);
      out.buffer = options.hidden_on_host ? &kHostBuffer : &kDeviceBuffer;
      const std::size_t rows = layer + 1 < kLayers ? count : (logits ? 1 : 0);
      out.ne = {kHidden, static_cast<std::int64_t>(rows), 1, 1};
      out.nb = {4, 4 * kHidden, 0, 0};
      out.data = hidden.data();
      run(out);
    }
  }

  Callback callback_;
  std::array<std::vector<float>, kLayers> keys_;
  std::array<std::vector<float>, kLayers> values_;
  std::array<FakeTensor, kLayers> key_cache_;
  std::array<FakeTensor, kLayers> value_cache_;
};

/// What an Engine holds; borrows the fake.
struct FakeHost {
  FakeLlama* llama;

  int decode(std::span<const FakeLlama::Token> tokens, kvevict::Position position,
             kvevict::llama_cpp::SequenceId sequence, bool logits) {
    return llama->decode(tokens, position, sequence, logits);
  }
  kvevict::Position newest(kvevict::llama_cpp::SequenceId sequence) {
    return llama->newest(sequence);
  }
  bool remove(kvevict::llama_cpp::SequenceId sequence, kvevict::Position first,
              kvevict::Position last) {
    return llama->remove(sequence, first, last);
  }
  void shift(kvevict::llama_cpp::SequenceId sequence, kvevict::Position first,
             kvevict::Position last, kvevict::Position delta) {
    llama->shift(sequence, first, last, delta);
  }
  void copy(kvevict::llama_cpp::SequenceId from, kvevict::llama_cpp::SequenceId to) {
    llama->copy(from, to);
  }
  void clear() { llama->clear(); }
  std::size_t state_size(kvevict::llama_cpp::SequenceId sequence) {
    return llama->state_size(sequence);
  }
  std::size_t get_state(kvevict::llama_cpp::SequenceId sequence, std::uint8_t* buffer,
                        std::size_t size) {
    return llama->get_state(sequence, buffer, size);
  }
  std::size_t set_state(kvevict::llama_cpp::SequenceId sequence, const std::uint8_t* buffer,
                        std::size_t size) {
    return llama->set_state(sequence, buffer, size);
  }
  [[nodiscard]] bool can_shift() const { return llama->options.can_shift; }
  [[nodiscard]] std::size_t num_cells() const { return llama->options.num_cells; }
  [[nodiscard]] std::size_t num_cells_per_sequence() const {
    return llama->options.num_cells / llama->options.num_streams;
  }
  [[nodiscard]] std::size_t max_batch() const { return llama->options.max_batch; }
  [[nodiscard]] std::size_t max_ubatch() const { return llama->options.max_ubatch; }
  [[nodiscard]] std::size_t max_sequences() const { return llama->options.max_sequences; }
  [[nodiscard]] std::size_t num_layers() const { return FakeLlama::kLayers; }
  [[nodiscard]] std::size_t trained_context() const { return llama->options.trained_context; }
  [[nodiscard]] std::string_view refusal() const { return llama->options.refusal; }
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_ADAPTERS_FAKE_LLAMA_HPP_
