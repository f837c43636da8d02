#ifndef KVEVICT_ADAPTERS_LLAMA_CPP_HPP_
#define KVEVICT_ADAPTERS_LLAMA_CPP_HPP_

#include "kvevict/adapters/llama_cpp_hook.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/selection/projection.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// kvevict in llama.cpp, with flash attention on and without a patch: signals come out of the
// callback that llama_context_params::cb_eval installs, and masks are executed by
// llama_memory_seq_rm. Not part of kvevict.hpp; include it after llama.h, ggml.h and ggml-backend.h
// to get the binding at the end of this file. Needs exceptions, which no other header does.
//
//   kvevict::llama_cpp::Hook hook;                         // outlives the context, never moves
//   params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
//   params.cb_eval = kvevict::llama_cpp::eval_callback;
//   params.cb_eval_user_data = &hook;
//   llama_context* context = llama_init_from_model(model, params);
//   kvevict::llama_cpp::Engine engine(kvevict::llama_cpp::Context(context), hook);
//   kvevict::llama_cpp::Session session(engine, kvevict::SnapKV({.budget = 256}, engine.shape()));
//   session.prompt(tokens);
//   for (..) session.decode(token);                        // logits: llama_get_logits_ith(-1)
//
// Written against llama.cpp 0.5.0-dev as in llama-cpp-python 0.3.36. It relies on names that are no
// documented interface ("cache_k_l<layer>", "cache_v_l<layer>", "l_out-<layer>"): Engine looks for
// them with its first decode and refuses a cache that it does not recognise; Session refuses
// policies that read hidden states (EpiKV) where the last ones are missing.
//
// Limits. One set of tokens for all heads and layers is all that llama.cpp can execute. Evicted
// cells are free for new tokens; memory goes back to the system with its context alone, so hand
// over to a smaller one (Session::hand_over). Tensors have to lie in host memory. A prompt that is
// longer than the cache is cut while it is read, and a policy that scores at a prompt's end
// (SnapKV) has nothing to go by then. Refused with a sentence: recurrent and hybrid models, sliding
// windows, latent attention, ALiBi, K and V types other than f32, f16, bf16 and q8_0. K and queries
// of a q8_0 cache are multiplied by the same matrix: attention is right, but nothing can be turned
// back, so Engine::rotary() refuses it.
//
// Threads: llama.cpp stops its threads behind every node that is read. Attach a pool
// (llama_attach_threadpool), and where other programs run let it have fewer threads than cores:
// they wait for each other in loops.
KVEVICT_NAMESPACE_BEGIN
namespace llama_cpp {

using Token = std::int32_t;
using SequenceId = std::int32_t;

/// The engine did something that a call cannot go on with. What the call read is taken back; the
/// calls before it stay (Session::prompt), unless the text says that the session is to be reset.
class EngineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the adapter asks of llama.cpp: a thin table of functions, so that a test can stand in.
template <class H>
concept Host = requires(H& host, const H& constant, std::span<const Token> tokens,
                        Position position, SequenceId sequence, std::uint8_t* buffer,
                        std::size_t size) {
  // One llama_decode of one sequence; `true`: logits of the last token. Its return code.
  { host.decode(tokens, position, sequence, true) } -> std::same_as<int>;
  { host.newest(sequence) } -> std::same_as<Position>;  // -1: the sequence is empty
  { host.remove(sequence, position, position) } -> std::same_as<bool>;
  host.shift(sequence, position, position, position);
  host.copy(sequence, sequence);
  host.clear();
  { host.state_size(sequence) } -> std::same_as<std::size_t>;
  { host.get_state(sequence, buffer, size) } -> std::same_as<std::size_t>;
  { host.set_state(sequence, buffer, size) } -> std::same_as<std::size_t>;
  { constant.can_shift() } -> std::same_as<bool>;
  { constant.num_cells() } -> std::same_as<std::size_t>;  // of all streams
  { constant.num_cells_per_sequence() } -> std::same_as<std::size_t>;
  { constant.max_batch() } -> std::same_as<std::size_t>;
  { constant.max_ubatch() } -> std::same_as<std::size_t>;
  { constant.max_sequences() } -> std::same_as<std::size_t>;
  { constant.num_layers() } -> std::same_as<std::size_t>;
  { constant.trained_context() } -> std::same_as<std::size_t>;
  // Why the model cannot be served; empty if it can.
  { constant.refusal() } -> std::convertible_to<std::string_view>;
};

/// One context and what was learnt of its cache. Clears the memory when it is made; the context
/// then belongs to the sessions. Not to be moved while there are any. It outlives them; the context
/// has to be there whenever a session is used, and may go before both.
template <Host H>
class Engine {
 public:
  /// Clears the memory, decodes one token to see the cache, and clears it again. Throws
  /// InvalidArgument with a sentence for a model or a context that cannot be served.
  Engine(H host, Hook& hook) : host_(std::move(host)), hook_(&hook) {
    if (const std::string_view reason = host_.refusal(); !reason.empty())
      detail::throw_invalid_argument(kName, reason);
    sequences_.assign(host_.max_sequences(), Use::kFree);
    host_.clear();  // what a warm-up left would be in the way of the probe
    Probe probe(layers_, rotary_, num_hidden_);
    const Token token = 0;
    // Far enough from 0 for the rotary embedding to show itself.
    const auto position =
        static_cast<Position>(std::min<std::size_t>(1000, host_.trained_context() / 2));
    const int result = hook.listen(probe, [&] {
      return host_.decode({&token, 1}, position, SequenceId{0}, true);
    });
    detail::require(result == 0, kName, "llama_decode", result, "must be 0 for the first token");
    host_.clear();
    detail::require(
        layers_.size() == host_.num_layers(), kName, "attention nodes", layers_.size(),
        "must be one for each layer, " + std::to_string(host_.num_layers()) +
            ": is cb_eval set to this hook, flash attention on, and is this the llama.cpp that the "
            "adapter was written for?");
    check_layers();
    // Behind a truncation into what was evicted such a cache goes on at positions that are not the
    // text's, and queries would be turned back by too much.
    if (rotary_.problem.empty() && !can_shift())
      rotary_.problem = "K cannot be moved to other positions (type_k has to be f16 or f32)";
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() = default;

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const AttentionNode& layer(std::size_t layer) const noexcept {
    return layers_[layer];
  }
  /// The model's rotary embedding, read out of the graph and tried on it, for policies that undo it
  /// (TriAttention, ExpectedAttention). Throws InvalidArgument with the reason where it is not
  /// known: K of a quantised cache is multiplied by a further matrix, and so are the queries; and
  /// where K cannot be moved, so that positions may come to differ from those of the text (bf16).
  [[nodiscard]] const RotaryEmbedding& rotary() const {
    if (!rotary_.problem.empty())
      detail::throw_invalid_argument(kName,
                                     std::string("rotary embedding: ").append(rotary_.problem));
    return rotary_.rotary;
  }
  [[nodiscard]] bool has_rotary() const noexcept { return rotary_.problem.empty(); }
  /// Whether hidden states can be read: not where a model does not name them, or they do not lie in
  /// host memory as f32.
  [[nodiscard]] bool has_hidden() const noexcept { return num_hidden_ == layers_.size(); }

  /// Removes what sessions that are gone have left.
  [[nodiscard]] H& host() {
    for (std::size_t s = 0; num_left_ > 0 && s < sequences_.size(); ++s) {
      if (sequences_[s] == Use::kLeft) {
        host_.remove(static_cast<SequenceId>(s), -1, -1);
        sequences_[s] = Use::kFree;
        --num_left_;
      }
    }
    return host_;
  }
  [[nodiscard]] const H& host() const noexcept { return host_; }
  [[nodiscard]] Hook& hook() noexcept { return *hook_; }

  /// K and V of one token in all layers, and of all cells of the context, used or not: what it took
  /// from the system when it was made and gives back when it is freed.
  [[nodiscard]] std::size_t bytes_per_cell() const noexcept {
    std::size_t bytes = 0;
    for (const AttentionNode& node : layers_)
      bytes += node.keys.cell_stride + node.values.cell_stride;
    return bytes;
  }
  [[nodiscard]] std::size_t cache_bytes() const noexcept {
    return bytes_per_cell() * host_.num_cells();
  }

  /// Whether all sequences share the cells (kv_unified, or only one sequence).
  [[nodiscard]] bool is_unified() const noexcept {
    return host_.num_cells() == host_.num_cells_per_sequence();
  }
  /// The number of a sequence's first cell.
  [[nodiscard]] std::int64_t first_cell(SequenceId sequence) const noexcept {
    return is_unified() ? 0 : static_cast<std::int64_t>(host_.num_cells_per_sequence()) * sequence;
  }
  /// Most tokens of a call: one ubatch, so that each call is one pass over the layers, and never
  /// more than n_batch, which would abort the process.
  [[nodiscard]] std::size_t max_tokens() const noexcept {
    return std::min({host_.max_batch(), host_.max_ubatch(), host_.num_cells_per_sequence()});
  }
  [[nodiscard]] bool can_shift() const noexcept {
    const Storage keys = layers_[0].keys.storage;
    return host_.can_shift() && (keys == Storage::kF16 || keys == Storage::kF32);
  }

  /// Sequences belong to sessions, one each.
  [[nodiscard]] std::size_t num_sessions() const noexcept { return num_sessions_; }
  [[nodiscard]] bool has_session(SequenceId sequence) const noexcept {
    return sequences_[static_cast<std::size_t>(sequence)] == Use::kUsed;
  }
  void add_session(SequenceId sequence) {
    static_cast<void>(host());  // what an earlier one left here goes
    sequences_[static_cast<std::size_t>(sequence)] = Use::kUsed;
    ++num_sessions_;
  }
  /// Its tokens go when the host is next asked for something: the context may be gone by now.
  void remove_session(SequenceId sequence) noexcept {
    sequences_[static_cast<std::size_t>(sequence)] = Use::kLeft;
    --num_sessions_;
    ++num_left_;
  }

 private:
  static constexpr std::string_view kName = "llama_cpp::Engine";
  enum class Use : std::uint8_t { kFree, kUsed, kLeft };

  class Probe final : public Listener {
   public:
    Probe(std::vector<AttentionNode>& layers, RotaryReading& rotary, std::size_t& num_hidden)
        : layers_(&layers), rotary_(&rotary), num_hidden_(&num_hidden) {}
    bool wants_rotary() override { return true; }
    void on_rotary(std::size_t layer, const RotaryReading& reading) override {
      if (layer == 0) {
        *rotary_ = reading;
      } else if (rotary_->problem.empty()) {
        if (!reading.problem.empty()) {
          rotary_->problem = reading.problem;
        } else if (!is_same(reading.rotary, rotary_->rotary)) {
          rotary_->problem = "layers differ in it";
        }
      }
    }
    void on_cells(std::span<const std::int64_t> /*cells*/) override {}
    bool wants_attention(const AttentionNode& node) override {
      if (node.layer == layers_->size()) {
        layers_->push_back(node);
        layers_->back().queries = {};  // of this call only
      }
      return false;
    }
    void on_attention(const AttentionNode& /*node*/) override {}
    bool wants_hidden(std::size_t layer) override {
      *num_hidden_ += layer == *num_hidden_ ? 1 : 0;
      return false;
    }
    void on_hidden(std::size_t /*layer*/, const HiddenRows& /*rows*/) override {}

   private:
    [[nodiscard]] static bool is_same(const RotaryEmbedding& a, const RotaryEmbedding& b) {
      return a.inv_freq == b.inv_freq && a.pairing == b.pairing &&
             a.attention_scaling == b.attention_scaling;
    }
    std::vector<AttentionNode>* layers_;
    RotaryReading* rotary_;
    std::size_t* num_hidden_;
  };

  void check_layers() {
    shape_ = layers_[0].shape;
    shape_.num_layers = layers_.size();
    for (AttentionNode& node : layers_) {
      node.shape.num_layers = layers_.size();
      detail::check_same_shape(node.shape, shape_, kName);
      detail::require(!node.latent, kName, "layer", node.layer,
                      "must have a cache of V: models with latent attention are not supported");
      detail::require(node.max_bias == 0.0F, kName, "ALiBi max_bias", node.max_bias, "must be 0");
      detail::require(
          node.keys.storage != Storage::kOther && node.values.storage != Storage::kOther, kName,
          "layer", node.layer, "must store K and V as f32, f16, bf16 or q8_0");
      detail::require(node.host_memory, kName, "layer", node.layer,
                      "must have its cache in host memory");
    }
    detail::check_shape(shape_, kName);
  }

  H host_;
  Hook* hook_;
  CacheShape shape_;
  std::vector<AttentionNode> layers_;  // [num_layers]
  RotaryReading rotary_;
  std::size_t num_hidden_ = 0;    // layers whose hidden states can be read, from the first on
  std::vector<Use> sequences_;    // [max_sequences]
  std::size_t num_sessions_ = 0;  // sequences that are kUsed
  std::size_t num_left_ = 0;
};

/// The cells of one sequence as a policy sees them: in the order of their positions, whatever the
/// order of the cells is. Borrows the engine and the cells.
template <class E>
class CacheView {
 public:
  CacheView(const E& engine, std::span<const std::int32_t> cells) noexcept
      : engine_(&engine), cells_(cells) {}

  [[nodiscard]] const CacheShape& shape() const noexcept { return engine_->shape(); }
  [[nodiscard]] Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    const AttentionNode& node = engine_->layer(layer);
    return {cells_.size(), rows(node.keys, kv_head), rows(node.values, kv_head), {}};
  }

 private:
  [[nodiscard]] Rows rows(const LayerRows& stored, std::size_t kv_head) const noexcept {
    Rows rows;
    rows.type = stored.storage == Storage::kF32    ? ElementType::kF32
                : stored.storage == Storage::kF16  ? ElementType::kF16
                : stored.storage == Storage::kBF16 ? ElementType::kBF16
                                                   : ElementType::kQ8_0;
    rows.data = stored.data + kv_head * stored.head_stride;
    rows.slot_stride_bytes = static_cast<std::ptrdiff_t>(stored.cell_stride);
    rows.dim_stride_bytes = static_cast<std::ptrdiff_t>(row_bytes(rows.type, 1));
    rows.page_table = cells_.data();
    rows.page_size = 1;
    rows.page_stride_bytes = static_cast<std::ptrdiff_t>(stored.cell_stride);
    return rows;
  }

  const E* engine_;
  std::span<const std::int32_t> cells_;
};

struct SessionOptions {
  /// How what the policy decides per head and layer becomes one set; its scope is always the model.
  /// The layers that have a say decide everything. No layers: the upper half. That and the sum are
  /// the default for every policy, as measured on SmolLM2-135M: answers right with 100 of 500
  /// tokens kept, of 4 about a number and of 4 about a word (run.sh recall --trials 4 --cases
  /// 100/500
  /// --reductions --policies ..); of all 96 the columns have 32, 37, 29, 52, 51 and 47.
  ///
  ///                            all layers              upper half
  ///                       sum     max     votes     sum     max     votes
  ///   SnapKV (window 17)  0, 2    0, 4    0, 2      4, 4    4, 4    2, 4
  ///   PyramidKV           0, 1    0, 3    0, 1      0, 4    1, 4    0, 4
  ///   AdaKV               0, 0    0, 0    0, 0      0, 4    0, 4    0, 4
  ///   CAKE                0, 4    0, 4    0, 4      0, 4    0, 4    0, 4
  ///   TOVA                0, 4    0, 4    0, 4      1, 4    1, 4    1, 4
  ///   H2O                 0, 0    0, 1    0, 1      0, 3    0, 3    0, 2
  ///   VATP                0, 3    0, 4    0, 1      0, 3    0, 4    0, 2
  ///   InertiaKV           3, 4    3, 4    3, 4      3, 4    3, 4    3, 4
  ///   ExpectedAttention   0, 4    0, 4    0, 2      0, 4    0, 4    0, 3
  ///   TriAttention        0, 3    0, 3    0, 3      0, 4    0, 3    0, 4
  ///   TriAttentionStats   0, 2    0, 1    0, 2      0, 4    0, 2    0, 4
  ///   LagKV               0, 2    2, 0    0, 2      0, 2    2, 0    0, 2
  ///
  /// Choose layers for another model with run.sh layers; one may do (17 and 21 here), and with
  /// skip_layers_without_say costs a thirtieth of reading them all.
  Granularity granularity = {.lane_reduce = ScoreReduce::kSum};
  /// Do not even look at the attention of the other layers. For policies whose budgets do not
  /// depend on them; counted in the policy's missing_signals.
  bool skip_layers_without_say = false;
  std::size_t last_call = 64;    ///< tokens at the end of a prompt that share a call at least, for
                                 ///< policies that read attention: the longest window they see
  std::size_t cut_interval = 1;  ///< behind a prompt, ask the policy every so many tokens
  bool compact = true;           ///< when the highest cell passes twice the live ones
  std::size_t max_distance = 0;  ///< from the oldest kept position to the newest; 0: half of the
                                 ///< context that the model was trained with; not kept to where
                                 ///< tokens cannot be moved (Session)
};

struct SessionCounters {
  std::uint64_t calls = 0;     ///< of llama_decode that succeeded
  std::uint64_t evicted = 0;   ///< tokens
  std::uint64_t removals = 0;  ///< runs of them, a call of llama_memory_seq_rm each
  std::uint64_t full = 0;      ///< calls that found no cells, before an eviction made room
  /// Cuts for want of cells, whatever the policy wanted. In the middle of a prompt, policies that
  /// score at its end (SnapKV) have nothing to go by: give the context more cells.
  std::uint64_t forced = 0;
  std::uint64_t compactions = 0;
  std::uint64_t shifts = 0;  ///< times that old tokens were given other positions
};

/// The cache of one sequence, written out: to go on from in other sessions and other contexts.
struct SavedCache {
  std::vector<std::uint8_t> state;  ///< what llama_state_seq_get_data wrote
  std::vector<std::int32_t> ranks;  ///< by slot: how many of the live cells lie before the token's
  std::vector<Position> positions;  ///< by slot, the engine's
  std::size_t length = 0;           ///< of the text, with the tokens that were evicted
};

/// One sequence of a context and the policy that keeps it small. All of its tokens go through here
/// (what llama_decode or llama_memory_* change behind its back it does not know of, though it
/// throws EngineError where the newest token is another one), and go when it goes. It borrows the
/// engine, which borrows the context and the hook. Positions of the policy are those of the text.
/// The engine's are the same for new tokens, and for old ones until their block is moved up;
/// policies that undo the rotary embedding of queries but take keys as they lie in the cache
/// (TriAttention) need no more than that. Sessions that share cells cannot be moved, nor those over
/// a cache of another type than f16 and f32, nor models with several positions for each token
/// (M-RoPE): max_distance is not kept to, and truncated into a gap (also before a fork, with
/// nothing decoded between them) they go on at positions that are not the text's. TriAttention and
/// ExpectedAttention turn queries back by too much then: do not truncate their forks into a gap.
template <class P, Host H>
class Session final : private Listener {
 public:
  /// Throws InvalidArgument: a policy that needs what llama.cpp does not hand out, a layer or a
  /// sequence (n_seq_max) that does not exist, a sequence of another session. The policy is copied;
  /// policy() is the one that runs.
  Session(Engine<H>& engine, P policy, const SessionOptions& options = {}, SequenceId sequence = 0)
      : engine_(&engine),
        policy_(std::move(policy)),
        options_(options),
        sequence_(sequence),
        projection_(one_set(options.granularity, engine.shape()), engine.shape()),
        has_say_(engine.shape().num_layers, 0) {
    constexpr Inputs kSupplied =
        Inputs::kAttention | Inputs::kHiddenStates | Inputs::kKeys | Inputs::kValues;
    detail::require(covers(kSupplied, policy_.required_inputs()), kName, "required_inputs",
                    static_cast<std::uint32_t>(policy_.required_inputs()),
                    "must not name the output projection or scores");
    detail::require(
        engine.has_hidden() || !covers(policy_.required_inputs(), Inputs::kHiddenStates), kName,
        "required_inputs", static_cast<std::uint32_t>(policy_.required_inputs()),
        "must not name hidden states: no \"l_out-<layer>\" in host memory as f32 was seen in each "
        "layer of this model");
    detail::require(options.cut_interval > 0, kName, "cut_interval", options.cut_interval,
                    "must be > 0");
    check_sequence(engine, sequence);
    for (const std::size_t layer : projection_.granularity().layers)
      has_say_[layer] = 1;
    if (options_.max_distance == 0)
      options_.max_distance = std::max<std::size_t>(2, engine.host().trained_context() / 2);
    engine_->add_session(sequence_);
  }
  ~Session() override { engine_->remove_session(sequence_); }

  [[nodiscard]] const Engine<H>& engine() const noexcept { return *engine_; }

  [[nodiscard]] P& policy() noexcept { return policy_; }
  [[nodiscard]] const P& policy() const noexcept { return policy_; }
  [[nodiscard]] const SessionCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] SequenceId sequence_id() const noexcept { return sequence_; }
  /// Tokens in the cache, and their cells and positions in the engine, oldest first.
  [[nodiscard]] std::size_t num_live() const noexcept { return cells_.size(); }
  [[nodiscard]] std::span<const std::int32_t> cells() const noexcept { return cells_; }
  [[nodiscard]] std::span<const Position> positions() const noexcept { return positions_; }
  [[nodiscard]] CacheView<Engine<H>> view() const noexcept { return {*engine_, cells_}; }

  /// Reads a prompt, the first or a further one, in as many calls as it takes, and cuts the cache
  /// between them and at the end where the policy wants to. `pinned` are positions of the text,
  /// counted from the first prompt's start. The newest token never goes, so
  /// llama_get_logits_ith(-1) and the next decode are about it. Throws EngineError when no cell
  /// comes free or llama_decode fails. The prompt stays begun then, policy().length() says how much
  /// of the text was read: feed the rest and end_prompt, or give the prompt up by truncate to where
  /// it began. Pins go with what is taken back but for those of the prompt; those behind it are to
  /// be given with the prompt in which they lie.
  void prompt(std::span<const Token> tokens, std::span<const PositionSpan> pinned = {}) {
    begin_prompt(tokens.size(), pinned);
    feed(tokens);
    end_prompt();
  }
  /// The same in parts: all of the tokens that begin_prompt announced have to be fed before
  /// end_prompt.
  void begin_prompt(std::size_t prompt_len, std::span<const PositionSpan> pinned = {}) {
    policy_.begin(prompt_len, pinned);
  }
  /// The prompt that was begun starts with all that `other` holds, whose cells are shared:
  /// sequences with different policies then read a prompt once. This policy sees nothing of how it
  /// was read, which is right for those that look at the end of a prompt or at keys. Throws
  /// InvalidArgument where sequences have cells of their own, `other` is of another engine, or this
  /// one is not empty.
  template <class Q>
  void share_prompt(const Session<Q, H>& other) {
    if (&other.engine() != engine_)
      detail::throw_invalid_argument(kName, "share_prompt: the other session has another engine");
    detail::require(engine_->is_unified(), kName, "kv_unified", 0, "must be on to share cells");
    check_start(other.policy().length(), other.num_live());
    policy_.append(other.num_live());
    engine_->host().copy(other.sequence_id(), sequence_);
    cells_.assign(other.cells().begin(), other.cells().end());
    positions_.assign(other.positions().begin(), other.positions().end());
  }
  /// The prompt that was begun starts with what `saved` holds, in cells of this sequence's own.
  /// Otherwise as share_prompt; needs a context whose cells no other session uses. A policy that
  /// has followed the prompt elsewhere, so that its length() is that of `saved`, needs no
  /// begin_prompt and goes on from there.
  void load_prompt(const SavedCache& saved) {
    check_start(saved.length, saved.positions.size());
    check_alone(*engine_, 1);
    detail::require(policy_.length() == 0 || policy_.length() == saved.positions.size(), kName,
                    "policy().length()", policy_.length(), "must be 0, or the length of `saved`");
    load(saved);
    if (policy_.length() == 0)
      policy_.append(saved.positions.size());
  }
  /// Writes the cache of the sequence to `out`, whose memory is used again.
  void save(SavedCache& out) {
    out.state.resize(std::max(out.state.size(), engine_->host().state_size(sequence_)));
    const std::size_t written =
        engine_->host().get_state(sequence_, out.state.data(), out.state.size());
    if (written == 0)
      throw EngineError("the state of the sequence could not be written out");
    out.state.resize(written);
    sorted_ = cells_;
    std::sort(sorted_.begin(), sorted_.end());
    out.ranks.clear();
    for (const std::int32_t cell : cells_) {
      out.ranks.push_back(static_cast<std::int32_t>(
          std::lower_bound(sorted_.begin(), sorted_.end(), cell) - sorted_.begin()));
    }
    out.positions = positions_;
    out.length = policy_.length();
  }
  /// Goes on in another context of the same model, usually one with fewer cells: freeing the old
  /// context then gives its memory back, which nothing else does. This session is empty afterwards.
  /// Throws InvalidArgument for a cache of another kind, for one whose cells another session may
  /// use, for a sequence of another session, and for a cache that is too small: evict before.
  /// Nothing has changed then.
  ///
  ///   Session small = session.hand_over(engine_of_the_small_context);
  [[nodiscard]] Session hand_over(Engine<H>& to, SequenceId sequence = 0) {
    detail::check_same_shape(to.shape(), engine_->shape(), kName);
    for (std::size_t layer = 0; layer < to.shape().num_layers; ++layer) {
      detail::require(to.layer(layer).keys.storage == engine_->layer(layer).keys.storage &&
                          to.layer(layer).values.storage == engine_->layer(layer).values.storage,
                      kName, "layer", layer, "must store K and V as here (type_k, type_v)");
    }
    detail::require(num_live() < to.host().num_cells_per_sequence(), kName, "num_live()",
                    num_live(), "must be less than the cells of the other context: evict before");
    check_alone(to, 0);
    check_sequence(to, sequence);
    save(saved_);
    return Session(*this, to, sequence, saved_);
  }
  void end_prompt() {
    policy_.end_prefill(view());
    tokens_since_cut_ = 0;
    evict_if_due();
  }
  /// One generated token.
  void decode(Token token) { feed({&token, 1}); }

  /// Tokens at the end of the sequence; only the last has logits.
  void feed(std::span<const Token> tokens) {
    while (!tokens.empty()) {
      std::size_t limit = engine_->max_tokens();
      const std::size_t capacity = engine_->host().num_cells_per_sequence();
      if (cells_.size() + call_size(tokens.size(), limit) > capacity) {
        make_room();
        limit = std::min(limit, capacity - cells_.size());
      }
      std::size_t count = call_size(tokens.size(), limit);
      while (!call(tokens.first(count), count == tokens.size())) {
        // No cells, and nothing changed: make room and try the same again, then less.
        ++counters_.full;
        if (!make_room())
          count /= 2;
      }
      tokens = tokens.subspan(count);
      if (in_prompt() && !tokens.empty() && policy_.should_evict())
        evict();
    }
    if (!in_prompt())
      evict_if_due();
  }

  /// Cuts the cache now, whether or not the policy would; returns whether a token went.
  bool evict() {
    if (cells_.empty())
      return false;
    tokens_since_cut_ = 0;
    const KeepMask* keep = &policy_.select(view(), projection_);
    if (!keep->keeps(0, 0, cells_.size() - 1)) {
      // The engine goes on at the highest position plus one and takes no gap. One more than the
      // budget stays then.
      with_newest_ = *keep;
      detail::set_bit(with_newest_.words(0), cells_.size() - 1);
      keep = &with_newest_;
    }
    std::size_t gone = 0;
    keep->for_each_evicted_run(0, 0, [&](std::size_t first, std::size_t last) {
      // Between two neighbours nothing of this sequence lives, so a run of slots is one range of
      // positions, those that went before included.
      if (!engine_->host().remove(sequence_, positions_[first], positions_[last - 1] + 1))
        throw EngineError("llama_memory_seq_rm refused to remove a range of positions");
      gone += last - first;
      ++counters_.removals;
    });
    policy_.apply(*keep);
    compact_slots(*keep, 0, cells_);
    compact_slots(*keep, 0, positions_);
    counters_.evicted += gone;
    dense_ = dense_ && gone == 0;
    if (options_.compact && gone > 0 && highest_cell() + 1 > 2 * cells_.size())
      compact();
    return gone > 0;
  }

  /// Moves the live cells to the front by writing the sequence's state out and in again; attention
  /// then reads no holes. Does nothing (false) where other sequences share the cells, because the
  /// new cells could not be known.
  bool compact() {
    if (cells_.empty() || shares_cells())
      return false;
    save(saved_);
    load(saved_);
    ++counters_.compactions;
    return true;
  }

  /// Forgets every token of the text from `length` on (speculative decoding, an edit). A prompt of
  /// which nothing is left, or was read yet, is given up.
  void truncate(std::size_t length) {
    if (in_prompt() && length == policy_.length() && length == prompt_begin())
      policy_.append(1);  // the policy gives up only what it has read something of
    policy_.truncate(length);
    const std::size_t live = policy_.sequence().seq_len(0, 0);
    if (live == cells_.size())
      return;
    if (!engine_->host().remove(sequence_, positions_[live], -1))
      throw EngineError("llama_memory_seq_rm refused to remove the newest positions");
    cells_.resize(live);
    positions_.resize(live);
    dense_ = false;
  }
  /// The next request: nothing of this sequence stays, others do.
  void reset() {
    engine_->host().remove(sequence_, -1, -1);
    policy_.reset();
    cells_.clear();
    positions_.clear();
    tokens_since_cut_ = 0;
    dense_ = false;
  }
  /// A second sequence that begins with all of this one and shares its cells: one that it evicts is
  /// free when the other has evicted it too. Throws InvalidArgument where sequences have cells of
  /// their own (kv_unified is off), and for a sequence of another session.
  [[nodiscard]] Session fork(SequenceId sequence) {
    detail::require(engine_->is_unified(), kName, "kv_unified", 0, "must be on to fork");
    check_sequence(*engine_, sequence);
    engine_->host().remove(sequence, -1, -1);
    engine_->host().copy(sequence_, sequence);
    return Session(*this, *engine_, sequence);
  }

 private:
  static constexpr std::string_view kName = "llama_cpp::Session";

  Session(const Session& other, Engine<H>& engine, SequenceId sequence)
      : engine_(&engine),
        policy_(other.policy_),
        options_(other.options_),
        sequence_(sequence),
        projection_(other.projection_),
        has_say_(other.has_say_),
        cells_(other.cells_),
        positions_(other.positions_),
        tokens_since_cut_(other.tokens_since_cut_) {
    engine_->add_session(sequence_);
  }
  // Takes over from `other`, which is empty then.
  Session(Session& other, Engine<H>& engine, SequenceId sequence, const SavedCache& saved)
      : Session(other, engine, sequence) {
    load(saved);
    counters_ = std::exchange(other.counters_, {});
    other.reset();
  }

  // A session may start from what another one read if nothing of it was evicted.
  void check_start(std::size_t length, std::size_t live) const {
    detail::require(cells_.empty(), kName, "num_live()", cells_.size(), "must be 0");
    detail::require(length == live, kName, "length of the prompt", length,
                    "must be that of its tokens in the cache, " + std::to_string(live) +
                        ": none may be evicted");
  }
  // The engine aborts the process where a sequence does not exist, and one that is used would lose
  // its cells.
  static void check_sequence(const Engine<H>& engine, SequenceId sequence) {
    detail::require(
        sequence >= 0 && static_cast<std::size_t>(sequence) < engine.host().max_sequences(), kName,
        "sequence", sequence,
        "must be less than n_seq_max, " + std::to_string(engine.host().max_sequences()));
    detail::require(!engine.has_session(sequence), kName, "sequence", sequence,
                    "must not be that of another session");
  }
  // `own` of the engine's sessions are this one.
  static void check_alone(const Engine<H>& engine, std::size_t own) {
    detail::require(!engine.is_unified() || engine.num_sessions() == own, kName, "num_sessions()",
                    engine.num_sessions(),
                    "must not be more: the cells of a state that is read in would not be known");
  }

  [[nodiscard]] static Granularity one_set(Granularity granularity, const CacheShape& shape) {
    granularity.scope = MaskScope::kModel;
    if (granularity.layers.empty())
      granularity.layers = upper_half(shape.num_layers);
    return granularity;
  }

  // How many of `rest` tokens go into the next call. The last call of a prompt is long enough for
  // an observation window.
  [[nodiscard]] std::size_t call_size(std::size_t rest, std::size_t limit) const {
    if (rest <= limit)
      return rest;
    const std::size_t last = in_prompt() && covers(policy_.required_inputs(), Inputs::kAttention)
                                 ? std::min(options_.last_call, limit)
                                 : 0;
    return std::min(limit, rest - last);
  }

  // One llama_decode; false: no cells. The policy hears of the tokens when they are written, so
  // nothing has to be undone then.
  bool call(std::span<const Token> tokens, bool is_last) {
    if (tokens.empty())
      throw EngineError(
          "no cell of the cache comes free: the context is smaller than what the "
          "policy keeps");
    if (engine_->host().newest(sequence_) != (positions_.empty() ? -1 : positions_.back()))
      throw EngineError("the sequence was changed outside of its session: reset the session");
    move_up(tokens.size());
    const std::size_t live = cells_.size();
    const Position next = next_position();
    try {
      const int result = engine_->hook().listen(
          *this, [&] { return engine_->host().decode(tokens, next, sequence_, is_last); });
      if (result == 1 && cells_.size() == live)
        return false;
      if (result != 0)
        throw EngineError("llama_decode returned " + std::to_string(result));
      if (cells_.size() != live + tokens.size())
        throw EngineError("llama_decode was expected to write " + std::to_string(tokens.size()) +
                          " cells and wrote " + std::to_string(cells_.size() - live));
    } catch (...) {
      if (cells_.size() > live)
        take_back(cells_.size() - live);
      throw;
    }
    if (policy_.wants_cache())
      policy_.observe_cache(view());
    tokens_since_cut_ += tokens.size();
    ++counters_.calls;
    return true;
  }
  // Of the newest tokens nothing stays, here and there. The prompt goes on, with its pins, though
  // nothing of it may be left.
  void take_back(std::size_t count) {
    const Sequence& text = policy_.sequence();
    const PositionSpan prompt = text.prompt();
    const bool was_open = text.prompt_open();
    std::vector<PositionSpan> pinned;
    for (const PositionSpan& span : text.pinned()) {
      if (span.last > prompt.first)
        pinned.push_back(span);
    }
    truncate(text.length() - count);
    if (was_open && !text.prompt_open())
      policy_.begin(static_cast<std::size_t>(prompt.last - prompt.first), pinned);
  }
  [[nodiscard]] bool in_prompt() const { return policy_.sequence().prompt_open(); }
  [[nodiscard]] std::size_t prompt_begin() const {
    return static_cast<std::size_t>(policy_.sequence().prompt().first);
  }
  bool make_room() {
    const bool made = evict();
    counters_.forced += made ? 1 : 0;
    return made;
  }
  void evict_if_due() {
    if ((tokens_since_cut_ == 0 || tokens_since_cut_ >= options_.cut_interval) &&
        policy_.should_evict())
      evict();
  }

  // The engine turns moved keys at the start of its next call, and a state that is written out
  // before has them unturned. So all that moves does so right before a call, of `count` tokens
  // here.
  void move_up(std::size_t count) {
    // A cell has one position for all sequences that hold it.
    if (cells_.empty() || !engine_->can_shift() || shares_cells())
      return;
    // Behind a truncation into what was evicted the engine would go on right behind what it holds:
    // all of that is moved, so that it goes on at the text's position.
    move_positions(cells_.size(), static_cast<Position>(policy_.length()) - 1 - positions_.back());
    // Kept tokens that fall far behind ruin the model: the block before the widest gap is moved up
    // to close it.
    while (static_cast<std::size_t>(positions_.back() - positions_.front()) + count >
           options_.max_distance) {
      std::size_t behind = 0;
      Position widest = 0;
      for (std::size_t slot = 1; slot < positions_.size(); ++slot) {
        const Position gap = positions_[slot] - positions_[slot - 1] - 1;
        if (gap > widest) {
          widest = gap;
          behind = slot;
        }
      }
      if (behind == 0)
        return;
      move_positions(behind, widest);
    }
  }
  // Adds `delta` to the positions of the first `count` slots.
  void move_positions(std::size_t count, Position delta) {
    if (delta == 0)
      return;
    engine_->host().shift(sequence_, positions_.front(), positions_[count - 1] + 1, delta);
    for (std::size_t slot = 0; slot < count; ++slot)
      positions_[slot] += delta;
    ++counters_.shifts;
  }
  // Of the next token: the text's, but for sessions that cannot be moved (truncate).
  [[nodiscard]] Position next_position() const {
    return positions_.empty() ? static_cast<Position>(policy_.length()) : positions_.back() + 1;
  }

  // Whether other sequences may hold the same cells, or take those behind this one's.
  [[nodiscard]] bool shares_cells() const noexcept {
    return engine_->is_unified() && engine_->num_sessions() > 1;
  }
  [[nodiscard]] std::size_t highest_cell() const noexcept {
    return static_cast<std::size_t>(*std::max_element(cells_.begin(), cells_.end()) -
                                    engine_->first_cell(sequence_));
  }
  // The engine drops what the sequence held, then fills cells from the front in the order in which
  // they lay.
  void load(const SavedCache& saved) {
    if (engine_->host().set_state(sequence_, saved.state.data(), saved.state.size()) == 0)
      throw EngineError("the state of a sequence could not be read in: reset the session");
    const auto first = static_cast<std::int32_t>(engine_->first_cell(sequence_));
    cells_ = saved.ranks;
    for (std::int32_t& cell : cells_)
      cell += first;
    positions_ = saved.positions;
    dense_ = true;
  }

  void on_cells(std::span<const std::int64_t> cells) override {
    // The one thing about compaction that the engine does not promise.
    if (dense_ && !shares_cells() &&
        cells[0] != engine_->first_cell(sequence_) + static_cast<std::int64_t>(cells_.size()))
      throw EngineError(
          "the cells of a state that was read in are not where they were expected: reset the "
          "session");
    dense_ = false;
    Position next = next_position();
    policy_.append(cells.size());
    for (const std::int64_t cell : cells) {
      cells_.push_back(static_cast<std::int32_t>(cell));
      positions_.push_back(next++);
    }
  }
  bool wants_attention(const AttentionNode& node) override {
    return (has_say_[node.layer] != 0 || !options_.skip_layers_without_say) &&
           policy_.wanted_attention_rows(node.layer) > 0;
  }
  void on_attention(const AttentionNode& node) override {
    if constexpr (requires { policy_.observe_queries(node.layer, node.queries, view()); })
      policy_.observe_queries(node.layer, node.queries, view());
  }
  bool wants_hidden(std::size_t layer) override { return policy_.wants_hidden(layer); }
  void on_hidden(std::size_t layer, const HiddenRows& rows) override {
    if constexpr (requires { policy_.observe_hidden(layer, rows); })
      policy_.observe_hidden(layer, rows);
  }

  Engine<H>* engine_;
  P policy_;
  SessionOptions options_;
  SequenceId sequence_;
  Projection projection_;
  std::vector<std::uint8_t> has_say_;  // [num_layers]
  std::vector<std::int32_t> cells_;    // by slot
  std::vector<Position> positions_;    // by slot, the engine's
  std::size_t tokens_since_cut_ = 0;
  bool dense_ = false;  // cells were renumbered and not seen since
  SessionCounters counters_;
  KeepMask with_newest_;
  SavedCache saved_;
  std::vector<std::int32_t> sorted_;
};

// The binding, for programs that included llama.h before.
#if defined(LLAMA_H)

struct Ggml {
  using Tensor = ggml_tensor;
  static constexpr ggml_op kFlashAttention = GGML_OP_FLASH_ATTN_EXT;
  static constexpr ggml_op kSetRows = GGML_OP_SET_ROWS;
  static constexpr ggml_op kRope = GGML_OP_ROPE;

  [[nodiscard]] static Storage storage(const ggml_tensor& tensor) noexcept {
    switch (tensor.type) {
      case GGML_TYPE_F32:
        return Storage::kF32;
      case GGML_TYPE_F16:
        return Storage::kF16;
      case GGML_TYPE_BF16:
        return Storage::kBF16;
      case GGML_TYPE_Q8_0:
        return Storage::kQ8_0;
      default:
        return Storage::kOther;
    }
  }
  [[nodiscard]] static bool is_host(const ggml_tensor& tensor) noexcept {
    const ggml_tensor& owner = tensor.view_src != nullptr ? *tensor.view_src : tensor;
    return owner.buffer != nullptr && ggml_backend_buffer_is_host(owner.buffer);
  }
};

/// For llama_context_params::cb_eval, with a Hook as user data.
inline bool eval_callback(ggml_tensor* node, bool ask, void* hook) {
  return static_cast<Hook*>(hook)->on_node<Ggml>(*node, ask);
}

/// A context as the adapter uses it; borrows it.
class Context {
 public:
  explicit Context(llama_context* context) noexcept
      : context_(context), model_(llama_get_model(context)), memory_(llama_get_memory(context)) {}

  int decode(std::span<const Token> tokens, Position position, SequenceId sequence, bool logits) {
    tokens_.assign(tokens.begin(), tokens.end());
    positions_.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      positions_[i] = position + static_cast<Position>(i);
    sequence_ = sequence;
    num_sequences_.assign(tokens.size(), 1);
    sequences_.assign(tokens.size(), &sequence_);
    logits_.assign(tokens.size(), 0);
    logits_.back() = logits ? 1 : 0;
    llama_batch batch{};
    batch.n_tokens = static_cast<std::int32_t>(tokens.size());
    batch.token = tokens_.data();
    batch.pos = positions_.data();
    batch.n_seq_id = num_sequences_.data();
    batch.seq_id = sequences_.data();
    batch.logits = logits_.data();
    return llama_decode(context_, batch);
  }
  Position newest(SequenceId sequence) { return llama_memory_seq_pos_max(memory_, sequence); }
  bool remove(SequenceId sequence, Position first, Position last) {
    return llama_memory_seq_rm(memory_, sequence, first, last);
  }
  void shift(SequenceId sequence, Position first, Position last, Position delta) {
    llama_memory_seq_add(memory_, sequence, first, last, delta);
  }
  void copy(SequenceId from, SequenceId to) { llama_memory_seq_cp(memory_, from, to, -1, -1); }
  void clear() { llama_memory_clear(memory_, true); }
  std::size_t state_size(SequenceId sequence) {
    return llama_state_seq_get_size(context_, sequence);
  }
  std::size_t get_state(SequenceId sequence, std::uint8_t* buffer, std::size_t size) {
    return llama_state_seq_get_data(context_, buffer, size, sequence);
  }
  std::size_t set_state(SequenceId sequence, const std::uint8_t* buffer, std::size_t size) {
    return llama_state_seq_set_data(context_, buffer, size, sequence);
  }
  [[nodiscard]] bool can_shift() const { return llama_memory_can_shift(memory_); }
  [[nodiscard]] std::size_t num_cells() const { return llama_n_ctx(context_); }
  [[nodiscard]] std::size_t num_cells_per_sequence() const { return llama_n_ctx_seq(context_); }
  [[nodiscard]] std::size_t max_batch() const { return llama_n_batch(context_); }
  [[nodiscard]] std::size_t max_ubatch() const { return llama_n_ubatch(context_); }
  [[nodiscard]] std::size_t max_sequences() const { return llama_n_seq_max(context_); }
  [[nodiscard]] std::size_t num_layers() const {
    return static_cast<std::size_t>(llama_model_n_layer(model_));
  }
  [[nodiscard]] std::size_t trained_context() const {
    return static_cast<std::size_t>(llama_model_n_ctx_train(model_));
  }
  [[nodiscard]] std::string_view refusal() const {
    if (memory_ == nullptr)
      return "the model has no cache";
    if (llama_model_is_recurrent(model_))
      return "recurrent models have no tokens to evict";
    if (llama_model_is_hybrid(model_))
      return "hybrid models keep a state that cannot forget single tokens";
    if (llama_model_n_swa(model_) > 0)
      return "models with sliding windows keep two caches, which is not supported";
    return {};
  }

 private:
  llama_context* context_;
  const llama_model* model_;
  llama_memory_t memory_;
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> num_sequences_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<std::int8_t> logits_;
  llama_seq_id sequence_ = 0;
};

#endif  // defined(LLAMA_H)

}  // namespace llama_cpp
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ADAPTERS_LLAMA_CPP_HPP_
