#ifndef KVEVICT_EXAMPLES_ENGINE_EVICTION_HPP_
#define KVEVICT_EXAMPLES_ENGINE_EVICTION_HPP_

#include "engine/cache.hpp"
#include "engine/observer.hpp"
#include "engine/tokenizer.hpp"
#include "engine/transformer.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/output_projection.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// How this engine is joined to kvevict, and all that an engine has to write for it: a view of its
// cache, an observer that passes signals on, and the execution of a mask.
namespace engine {

/// The engine's cache as kvevict sees it.
class CacheView {
 public:
  CacheView(const kvevict::CacheShape& shape, const KvCache& cache) noexcept
      : shape_(shape), cache_(&cache) {}

  [[nodiscard]] const kvevict::CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] kvevict::Lane lane(std::size_t layer, std::size_t kv_head) const noexcept {
    const KvLane& lane = cache_->lane(layer, kv_head);
    return {lane.size(), rows(lane.keys), rows(lane.values), {}};
  }

 private:
  [[nodiscard]] kvevict::Rows rows(const std::vector<float>& data) const noexcept {
    kvevict::Rows rows;
    rows.data = reinterpret_cast<const std::byte*>(data.data());
    rows.slot_stride_bytes = static_cast<std::ptrdiff_t>(shape_.head_dim * sizeof(float));
    rows.dim_stride_bytes = sizeof(float);
    return rows;
  }

  kvevict::CacheShape shape_;
  const KvCache* cache_;
};

[[nodiscard]] inline kvevict::CacheShape cache_shape(const ModelConfig& config) noexcept {
  return {.num_layers = config.num_layers,
          .num_q_heads = config.num_q_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim};
}

/// How this model turns keys and queries, for policies that undo it.
[[nodiscard]] inline kvevict::RotaryEmbedding rotary(const ModelConfig& config) {
  return {.inv_freq = config.rope_frequencies,
          .pairing = config.rope_pairing == RopePairing::kHalf
                         ? kvevict::RotaryPairing::kHalf
                         : kvevict::RotaryPairing::kInterleaved};
}

/// W_O of every layer, for policies that weigh values by what the output projection makes of
/// them. Takes a while; once per model. The weights themselves are kept too, as floats, since some
/// (CriticalKV, DefensiveKV) project values by them.
[[nodiscard]] inline std::shared_ptr<const kvevict::OutputProjection> output_projection(
    const Model& model) {
  const ModelConfig& c = model.config();
  constexpr bool kKeepWeight = true;
  auto projection = std::make_shared<kvevict::OutputProjection>(cache_shape(c), c.hidden_size,
                                                                std::nullopt, kKeepWeight);
  Matrix weight;
  for (std::size_t layer = 0; layer < c.num_layers; ++layer) {
    weight = model.layer(layer).output.dequantise().transpose();  // [q_size, hidden_size]
    projection->set_layer(layer, weight.data());
  }
  return projection;
}

/// Where attention policies get their rows from.
enum class Signals {
  kRows,    ///< the softmax rows that this engine's attention has anyway, and queries where a
            ///< policy can do with nothing else
  kQueries  ///< the queries alone, as an engine with fused attention would do it
};

/// Seconds that a sequence has spent on its policy.
struct PolicySeconds {
  double observe = 0;  ///< scores from signals
  double select = 0;   ///< choosing, and renumbering the policy's state
  double evict = 0;    ///< moving rows and giving memory back
};

/// Measures one scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) noexcept : seconds_(&seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// What kind of token each one of the vocabulary is, for policies that keep some kinds: special
/// tokens, and those that are nothing but sentence marks and line breaks.
[[nodiscard]] inline std::vector<kvevict::TokenLabel> token_labels(const Tokenizer& tokenizer) {
  std::vector<kvevict::TokenLabel> labels;
  for (std::size_t i = 0; i < tokenizer.size(); ++i) {
    const auto token = static_cast<Token>(i);
    kvevict::TokenLabel label = kvevict::TokenLabel::kOther;
    if (tokenizer.is_special(token)) {
      label = kvevict::TokenLabel::kSpecial;
    } else if (const std::string text = tokenizer.decode({&token, 1});
               text.find_first_not_of(' ') != std::string::npos &&
               text.find_first_not_of(" .,;:!?\n") == std::string::npos) {
      label = kvevict::TokenLabel::kPunctuation;
    }
    labels.push_back(label);
  }
  return labels;
}

/// One sequence: a cache and the policy that keeps it small. A copy is a fork.
class Sequence {
 public:
  /// @param token_labels  [vocabulary], outlives the sequence; a token without one is ordinary
  Sequence(const Transformer& transformer, kvevict::AnyPolicy policy,
           std::span<const kvevict::TokenLabel> token_labels = {})
      : shape_(cache_shape(transformer.model().config())),
        cache_(transformer.make_cache()),
        policy_(std::move(policy)),
        token_labels_(token_labels) {}

  [[nodiscard]] KvCache& cache() noexcept { return cache_; }
  [[nodiscard]] const KvCache& cache() const noexcept { return cache_; }
  [[nodiscard]] kvevict::AnyPolicy& policy() noexcept { return policy_; }
  [[nodiscard]] const kvevict::AnyPolicy& policy() const noexcept { return policy_; }
  [[nodiscard]] CacheView view() const noexcept { return {shape_, cache_}; }
  [[nodiscard]] const PolicySeconds& seconds() const noexcept { return seconds_; }

  // What happens around a forward pass, in this order. `cache` is the one that the pass writes:
  // this sequence's own, or one that several sequences read their prompt into together.
  void begin_prompt(std::size_t prompt_len) { policy_.begin(prompt_len); }
  void before_pass(std::span<const Token> tokens) {
    policy_.append(tokens.size());
    if (token_labels_.empty() || !policy_.wants_labels())
      return;
    labels_.clear();
    for (const Token token : tokens) {
      // A model may have more tokens than its tokenizer.
      const auto i = static_cast<std::size_t>(token);
      labels_.push_back(i < token_labels_.size() ? token_labels_[i] : kvevict::TokenLabel::kOther);
    }
    policy_.observe_labels(labels_);
  }
  void on_attention(std::size_t layer, const HeadRows& rows) {
    const Stopwatch watch(seconds_.observe);
    policy_.observe_attention(layer, {.data = rows.data,
                                      .num_q_heads = rows.num_q_heads,
                                      .num_rows = rows.num_rows,
                                      .head_stride = static_cast<std::ptrdiff_t>(rows.head_stride),
                                      .row_stride = static_cast<std::ptrdiff_t>(rows.row_stride),
                                      .log_sums = rows.log_sums});
  }
  void on_queries(std::size_t layer, const HeadRows& rows, const KvCache& cache) {
    const Stopwatch watch(seconds_.observe);
    policy_.observe_queries(layer,
                            {.data = rows.data,
                             .num_q_heads = rows.num_q_heads,
                             .num_rows = rows.num_rows,
                             .head_stride = static_cast<std::ptrdiff_t>(rows.head_stride),
                             .row_stride = static_cast<std::ptrdiff_t>(rows.row_stride)},
                            CacheView(shape_, cache));
  }
  void on_hidden(std::size_t layer, const HiddenRows& rows) {
    const Stopwatch watch(seconds_.observe);
    policy_.observe_hidden(
        layer, {.data = rows.data,
                .num_rows = rows.num_rows,
                .hidden_size = rows.hidden_size,
                .row_stride_bytes = static_cast<std::ptrdiff_t>(rows.hidden_size * sizeof(float))});
  }
  void after_pass(const KvCache& cache) {
    if (!policy_.wants_cache())
      return;
    const Stopwatch watch(seconds_.observe);
    policy_.observe_cache(CacheView(shape_, cache));
  }
  void end_prompt() { policy_.end_prefill(view()); }

  /// What the policy keeps; null where it does not want to cut. Valid until the next call.
  [[nodiscard]] const kvevict::KeepMask* choose() {
    if (!policy_.should_evict())
      return nullptr;
    const Stopwatch watch(seconds_.select);
    return &policy_.select(view());
  }
  /// Rows go at once, memory is given back lane by lane.
  void execute(const kvevict::KeepMask& keep) {
    {
      const Stopwatch watch(seconds_.evict);
      for (std::size_t layer = 0; layer < shape_.num_layers; ++layer) {
        for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
          slots_.resize(keep.count(layer, head));
          keep.kept_slots(layer, head, slots_);
          cache_.keep(layer, head, slots_);
        }
      }
      cache_.shrink();
    }
    const Stopwatch watch(seconds_.select);
    policy_.apply(keep);
  }
  /// Cuts the cache if the policy wants it; returns whether it did.
  bool evict() {
    const kvevict::KeepMask* const keep = choose();
    if (keep != nullptr)
      execute(*keep);
    return keep != nullptr;
  }

 private:
  kvevict::CacheShape shape_;
  KvCache cache_;
  kvevict::AnyPolicy policy_;
  std::span<const kvevict::TokenLabel> token_labels_;
  PolicySeconds seconds_;
  std::vector<std::uint32_t> slots_;
  std::vector<kvevict::TokenLabel> labels_;
};

/// Sees what happens at a prompt's end beside the policies, to measure it.
class PromptWatcher {
 public:
  PromptWatcher() = default;
  PromptWatcher(const PromptWatcher&) = default;
  PromptWatcher& operator=(const PromptWatcher&) = default;
  virtual ~PromptWatcher() = default;

  /// How many of the newest tokens' queries it wants of each pass.
  [[nodiscard]] virtual std::size_t wants_queries() const = 0;
  /// As StepObserver hands them over, of every layer and pass.
  virtual void on_queries(std::size_t layer, const HeadRows& rows) = 0;
  /// What a sequence, the `index`-th of them, is about to keep of the prompt.
  virtual void on_mask(std::size_t index, const Sequence& sequence,
                       const kvevict::KeepMask& keep) = 0;
};

/// Passes the signals of one forward pass on to the policies of one or more sequences.
class PolicyObserver : public StepObserver {
 public:
  PolicyObserver(std::span<Sequence* const> sequences, const KvCache& cache, Signals signals,
                 PromptWatcher* watcher = nullptr)
      : sequences_(sequences), cache_(&cache), signals_(signals), watcher_(watcher) {}

  [[nodiscard]] std::size_t wants_attention_rows(std::size_t layer) const override {
    return wanted_rows(layer, false);
  }
  [[nodiscard]] std::size_t wants_queries(std::size_t layer) const override {
    return std::max(wanted_rows(layer, true), watcher_ == nullptr ? 0 : watcher_->wants_queries());
  }
  [[nodiscard]] std::size_t wants_hidden(std::size_t layer) const override {
    const bool wanted = std::any_of(sequences_.begin(), sequences_.end(), [&](const Sequence* s) {
      return s->policy().wants_hidden(layer);
    });
    return wanted ? static_cast<std::size_t>(-1) : 0;  // all rows of the pass
  }
  void on_attention(std::size_t layer, const HeadRows& rows) override {
    for (Sequence* s : sequences_) {
      if (s->policy().wants_attention(layer) && !takes_queries(*s))
        s->on_attention(layer, rows);
    }
  }
  void on_queries(std::size_t layer, const HeadRows& rows) override {
    for (Sequence* s : sequences_) {
      if (s->policy().wants_attention(layer) && takes_queries(*s))
        s->on_queries(layer, rows, *cache_);
    }
    if (watcher_ != nullptr)
      watcher_->on_queries(layer, rows);
  }
  void on_hidden(std::size_t layer, const HiddenRows& rows) override {
    for (Sequence* s : sequences_) {
      if (s->policy().wants_hidden(layer))
        s->on_hidden(layer, rows);
    }
  }

 private:
  [[nodiscard]] bool takes_queries(const Sequence& sequence) const {
    return signals_ == Signals::kQueries ||
           sequence.policy().attention_use() == kvevict::AttentionUse::kQueries;
  }
  [[nodiscard]] std::size_t wanted_rows(std::size_t layer, bool as_queries) const {
    std::size_t rows = 0;
    for (const Sequence* s : sequences_) {
      if (takes_queries(*s) == as_queries)
        rows = std::max(rows, s->policy().wanted_attention_rows(layer));
    }
    return rows;
  }

  std::span<Sequence* const> sequences_;
  const KvCache* cache_;
  Signals signals_;
  PromptWatcher* watcher_;
};

inline constexpr std::size_t kPromptChunk = 256;  ///< tokens of a prompt that pass together

/// One forward pass with signals: a chunk of a prompt or a decode step, without eviction. If a
/// token is bad, it throws and neither the cache nor a policy has changed.
inline LogitRows observed_pass(Transformer& transformer, std::span<const Token> tokens,
                               KvCache& cache, std::span<Sequence* const> sequences,
                               Signals signals, PromptWatcher* watcher = nullptr) {
  transformer.check(tokens);
  PolicyObserver observer(sequences, cache, signals, watcher);
  for (Sequence* s : sequences)
    s->before_pass(tokens);
  const LogitRows logits = transformer.forward(tokens, cache, 1, &observer);
  for (Sequence* s : sequences)
    s->after_pass(cache);
  return logits;
}

/// Reads a prompt into a sequence, chunk by chunk, evicting after each chunk where the policy
/// wants to. Returns the logits after the last token. Throws before anything changes if a token
/// of any chunk is bad.
inline LogitRows read_prompt(Transformer& transformer, std::span<const Token> prompt,
                             Sequence& sequence, Signals signals = Signals::kRows,
                             std::size_t chunk_size = kPromptChunk) {
  Sequence* const one = &sequence;
  transformer.check(prompt);
  sequence.begin_prompt(prompt.size());
  for (; prompt.size() > chunk_size; prompt = prompt.subspan(chunk_size)) {
    observed_pass(transformer, prompt.first(chunk_size), sequence.cache(), {&one, 1}, signals);
    sequence.evict();
  }
  const LogitRows logits = observed_pass(transformer, prompt, sequence.cache(), {&one, 1}, signals);
  sequence.end_prompt();
  sequence.evict();
  return logits;
}

/// The same for many sequences at once: the prompt is read once, every policy sees the signals,
/// and each sequence starts with a copy of the cache, cut at the end of the prompt.
inline void read_prompt_together(Transformer& transformer, std::span<const Token> prompt,
                                 std::span<Sequence* const> sequences,
                                 Signals signals = Signals::kRows,
                                 std::size_t chunk_size = kPromptChunk,
                                 PromptWatcher* watcher = nullptr) {
  transformer.check(prompt);
  KvCache cache = transformer.make_cache();
  for (Sequence* s : sequences)
    s->begin_prompt(prompt.size());
  for (std::size_t done = 0; done < prompt.size(); done += chunk_size) {
    observed_pass(transformer, prompt.subspan(done, std::min(chunk_size, prompt.size() - done)),
                  cache, sequences, signals, watcher);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    sequence.cache() = cache;
    sequence.cache().reset_peak();
    sequence.end_prompt();
    if (const kvevict::KeepMask* const keep = sequence.choose()) {
      if (watcher != nullptr)
        watcher->on_mask(i, sequence, *keep);
      sequence.execute(*keep);
    }
  }
}

/// Feeds one token and evicts where the policy wants to. Returns the logits after it.
inline LogitRows decode_step(Transformer& transformer, Token token, Sequence& sequence,
                             Signals signals = Signals::kRows) {
  Sequence* const one = &sequence;
  const LogitRows logits =
      observed_pass(transformer, {&token, 1}, sequence.cache(), {&one, 1}, signals);
  sequence.evict();
  return logits;
}

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_EVICTION_HPP_
