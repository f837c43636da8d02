#ifndef KVEVICT_ANY_POLICY_HPP_
#define KVEVICT_ANY_POLICY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/counters.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/eviction_policy.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/query_filters.hpp"
#include "kvevict/selection/projection.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// A policy chosen at run time: a value like any policy, with one virtual call per call. Signals
/// that the policy does not use are ignored; ask wants_* before making them.
class AnyPolicy {
 public:
  // AnyPolicy is ruled out first: the concept asks whether its type can be copied, which would
  // ask for this constructor again.
  template <class P>
    requires(!std::same_as<P, AnyPolicy> && EvictionPolicy<P>)
  explicit AnyPolicy(P policy, std::string description = std::string(P::kName))
      : AnyPolicy(std::in_place_type<P>, std::move(description), std::move(policy)) {}
  /// A policy made in its place, by P's constructor.
  template <EvictionPolicy P, class... Args>
  AnyPolicy(std::in_place_type_t<P> /*type*/, std::string description, Args&&... args)
      : self_(std::make_unique<Model<P>>(std::in_place, std::forward<Args>(args)...)),
        description_(std::move(description)) {}
  AnyPolicy(const AnyPolicy& other)
      : self_(other.self_ ? other.self_->clone() : nullptr), description_(other.description_) {}
  AnyPolicy& operator=(const AnyPolicy& other) {
    if (this != &other)
      *this = AnyPolicy(other);
    return *this;
  }
  AnyPolicy(AnyPolicy&&) noexcept = default;
  AnyPolicy& operator=(AnyPolicy&&) noexcept = default;
  ~AnyPolicy() = default;

  [[nodiscard]] std::string_view name() const { return self_->name(); }
  /// Name, options that are not the defaults and parts, as make_policy reads them; the name alone
  /// where it was not made from text.
  [[nodiscard]] const std::string& describe() const noexcept { return description_; }
  [[nodiscard]] Inputs required_inputs() const { return self_->required_inputs(); }
  [[nodiscard]] AttentionUse attention_use() const { return self_->attention_use(); }
  /// As Policy says: kChangesLength, kNeedsArtefact, touches_prompt and max_rollback. Of a policy
  /// that does not say so the worst is taken to be true, but that it needs no artefact.
  [[nodiscard]] bool changes_length() const { return self_->changes_length(); }
  [[nodiscard]] bool needs_artefact() const { return self_->needs_artefact(); }
  [[nodiscard]] bool touches_prompt() const { return self_->touches_prompt(); }
  [[nodiscard]] std::size_t max_rollback() const { return self_->max_rollback(); }
  /// As Policy says; nothing of a policy that does not say so.
  [[nodiscard]] Protection protection() const { return self_->protection(); }

  /// Does nothing for a policy that has no such function.
  void use_executor(Executor executor) { self_->use_executor(std::move(executor)); }
  void begin(std::size_t prompt_len, std::span<const PositionSpan> pinned = {}) {
    self_->begin(prompt_len, pinned);
  }
  void append(std::size_t count) { self_->append(count); }
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const {
    return self_->wanted_attention_rows(layer);
  }
  [[nodiscard]] bool wants_attention(std::size_t layer) const {
    return wanted_attention_rows(layer) > 0;
  }
  [[nodiscard]] bool wants_hidden(std::size_t layer) const { return self_->wants_hidden(layer); }
  [[nodiscard]] bool wants_cache() const { return self_->wants_cache(); }
  void observe_attention(std::size_t layer, const AttentionRows& rows) {
    self_->observe_attention(layer, rows);
  }
  template <KvCacheView View>
  void observe_queries(std::size_t layer, const QueryRows& queries, const View& view) {
    self_->observe_queries(layer, queries, as_view_ref(view));
  }
  void observe_hidden(std::size_t layer, const HiddenRows& rows) {
    self_->observe_hidden(layer, rows);
  }
  template <KvCacheView View>
  void observe_cache(const View& view) {
    self_->observe_cache(as_view_ref(view));
  }
  [[nodiscard]] bool wants_scores() const { return self_->wants_scores(); }
  void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                      std::size_t first_slot = 0) {
    self_->observe_scores(layer, kv_head, scores, first_slot);
  }
  [[nodiscard]] bool wants_labels() const { return self_->wants_labels(); }
  void observe_labels(std::span<const TokenLabel> labels) { self_->observe_labels(labels); }
  template <KvCacheView View>
  void end_prefill(const View& view) {
    self_->end_prefill(as_view_ref(view));
  }
  [[nodiscard]] bool should_evict() const { return self_->should_evict(); }
  template <KvCacheView View>
  [[nodiscard]] const KeepMask& select(const View& view) const {
    return self_->select(as_view_ref(view));
  }
  template <KvCacheView View>
  [[nodiscard]] const KeepMask& select(const View& view, Projection& projection) const {
    return self_->select(as_view_ref(view), projection);
  }
  void apply(const KeepMask& mask) { self_->apply(mask); }
  void truncate(std::size_t new_length) { self_->truncate(new_length); }
  void reset() { self_->reset(); }
  [[nodiscard]] std::size_t length() const { return self_->length(); }
  /// Lengths and positions of the lanes, for for_each_rerotation and after truncate.
  [[nodiscard]] const Sequence& sequence() const { return self_->sequence(); }
  [[nodiscard]] const Counters& counters() const { return self_->counters(); }

 private:
  struct Interface {
    Interface() = default;
    Interface(const Interface&) = default;
    Interface& operator=(const Interface&) = delete;
    virtual ~Interface() = default;
    [[nodiscard]] virtual std::unique_ptr<Interface> clone() const = 0;
    [[nodiscard]] virtual std::string_view name() const = 0;
    [[nodiscard]] virtual Inputs required_inputs() const = 0;
    [[nodiscard]] virtual AttentionUse attention_use() const = 0;
    [[nodiscard]] virtual bool changes_length() const = 0;
    [[nodiscard]] virtual bool needs_artefact() const = 0;
    [[nodiscard]] virtual bool touches_prompt() const = 0;
    [[nodiscard]] virtual std::size_t max_rollback() const = 0;
    [[nodiscard]] virtual Protection protection() const = 0;
    virtual void use_executor(Executor executor) = 0;
    virtual void begin(std::size_t prompt_len, std::span<const PositionSpan> pinned) = 0;
    virtual void append(std::size_t count) = 0;
    [[nodiscard]] virtual std::size_t wanted_attention_rows(std::size_t layer) const = 0;
    [[nodiscard]] virtual bool wants_hidden(std::size_t layer) const = 0;
    [[nodiscard]] virtual bool wants_cache() const = 0;
    virtual void observe_attention(std::size_t layer, const AttentionRows& rows) = 0;
    virtual void observe_queries(std::size_t layer, const QueryRows& queries,
                                 const ViewRef& view) = 0;
    virtual void observe_hidden(std::size_t layer, const HiddenRows& rows) = 0;
    virtual void observe_cache(const ViewRef& view) = 0;
    [[nodiscard]] virtual bool wants_scores() const = 0;
    virtual void observe_scores(std::size_t layer, std::size_t kv_head,
                                std::span<const float> scores, std::size_t first_slot) = 0;
    [[nodiscard]] virtual bool wants_labels() const = 0;
    virtual void observe_labels(std::span<const TokenLabel> labels) = 0;
    virtual void end_prefill(const ViewRef& view) = 0;
    [[nodiscard]] virtual bool should_evict() const = 0;
    [[nodiscard]] virtual const KeepMask& select(const ViewRef& view) const = 0;
    [[nodiscard]] virtual const KeepMask& select(const ViewRef& view,
                                                 Projection& projection) const = 0;
    virtual void apply(const KeepMask& mask) = 0;
    virtual void truncate(std::size_t new_length) = 0;
    virtual void reset() = 0;
    [[nodiscard]] virtual std::size_t length() const = 0;
    [[nodiscard]] virtual const Sequence& sequence() const = 0;
    [[nodiscard]] virtual const Counters& counters() const = 0;
  };

  template <class P>
  struct Model final : Interface {
    template <class... Args>
    explicit Model(std::in_place_t /*tag*/, Args&&... args) : policy(std::forward<Args>(args)...) {}
    [[nodiscard]] std::unique_ptr<Interface> clone() const override {
      return std::make_unique<Model>(*this);
    }
    [[nodiscard]] std::string_view name() const override { return P::kName; }
    [[nodiscard]] Inputs required_inputs() const override {
      if constexpr (requires { policy.required_inputs(); }) {
        return policy.required_inputs();
      } else {
        return P::kRequiredInputs;
      }
    }
    [[nodiscard]] AttentionUse attention_use() const override { return P::kAttentionUse; }
    [[nodiscard]] bool changes_length() const override {
      if constexpr (requires { P::kChangesLength; }) {
        return P::kChangesLength;
      } else {
        return true;
      }
    }
    [[nodiscard]] bool needs_artefact() const override {
      if constexpr (requires { P::kNeedsArtefact; }) {
        return P::kNeedsArtefact;
      } else {
        return false;
      }
    }
    [[nodiscard]] bool touches_prompt() const override {
      if constexpr (requires { policy.touches_prompt(); }) {
        return policy.touches_prompt();
      } else {
        return true;
      }
    }
    [[nodiscard]] std::size_t max_rollback() const override {
      if constexpr (requires { policy.max_rollback(); }) {
        return policy.max_rollback();
      } else {
        return 0;
      }
    }
    [[nodiscard]] Protection protection() const override {
      if constexpr (requires { policy.protection(); }) {
        return policy.protection();
      } else {
        return {};
      }
    }
    void use_executor(Executor executor) override {
      if constexpr (requires { policy.use_executor(std::move(executor)); })
        policy.use_executor(std::move(executor));
    }
    void begin(std::size_t prompt_len, std::span<const PositionSpan> pinned) override {
      policy.begin(prompt_len, pinned);
    }
    void append(std::size_t count) override { policy.append(count); }
    [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const override {
      return policy.wanted_attention_rows(layer);
    }
    [[nodiscard]] bool wants_hidden(std::size_t layer) const override {
      return policy.wants_hidden(layer);
    }
    [[nodiscard]] bool wants_cache() const override {
      if constexpr (requires { policy.wants_cache(); }) {
        return policy.wants_cache();
      } else {
        return false;
      }
    }
    void observe_attention(std::size_t layer, const AttentionRows& rows) override {
      if constexpr (requires { policy.observe_attention(layer, rows); }) {
        policy.observe_attention(layer, rows);
      }
    }
    void observe_queries(std::size_t layer, const QueryRows& queries,
                         const ViewRef& view) override {
      if constexpr (requires { policy.observe_queries(layer, queries, view); }) {
        policy.observe_queries(layer, queries, view);
      }
    }
    void observe_hidden(std::size_t layer, const HiddenRows& rows) override {
      if constexpr (requires { policy.observe_hidden(layer, rows); }) {
        policy.observe_hidden(layer, rows);
      }
    }
    void observe_cache(const ViewRef& view) override {
      if constexpr (requires { policy.observe_cache(view); })
        policy.observe_cache(view);
    }
    [[nodiscard]] bool wants_scores() const override {
      if constexpr (requires { P::wants_scores(); }) {
        return P::wants_scores();
      } else {
        return false;
      }
    }
    void observe_scores(std::size_t layer, std::size_t kv_head, std::span<const float> scores,
                        std::size_t first_slot) override {
      if constexpr (requires { policy.observe_scores(layer, kv_head, scores, first_slot); })
        policy.observe_scores(layer, kv_head, scores, first_slot);
    }
    [[nodiscard]] bool wants_labels() const override {
      if constexpr (requires { P::wants_labels(); }) {
        return P::wants_labels();
      } else {
        return false;
      }
    }
    void observe_labels(std::span<const TokenLabel> labels) override {
      if constexpr (requires { policy.observe_labels(labels); })
        policy.observe_labels(labels);
    }
    void end_prefill(const ViewRef& view) override { policy.end_prefill(view); }
    [[nodiscard]] bool should_evict() const override { return policy.should_evict(); }
    [[nodiscard]] const KeepMask& select(const ViewRef& view) const override {
      return policy.select(view);
    }
    [[nodiscard]] const KeepMask& select(const ViewRef& view,
                                         Projection& projection) const override {
      if constexpr (requires { policy.select(view, projection); }) {
        return policy.select(view, projection);
      } else {
        detail::throw_invalid_argument(P::kName, "cannot select for a projection");
      }
    }
    void apply(const KeepMask& mask) override { policy.apply(mask); }
    void truncate(std::size_t new_length) override { policy.truncate(new_length); }
    void reset() override { policy.reset(); }
    [[nodiscard]] std::size_t length() const override { return policy.length(); }
    [[nodiscard]] const Sequence& sequence() const override { return policy.sequence(); }
    [[nodiscard]] const Counters& counters() const override { return policy.counters(); }

    P policy;
  };

  std::unique_ptr<Interface> self_;
  std::string description_;
};

// Complete in their headers, which bring Eigen with them.
class OutputProjection;
class QueryStatistics;

/// What make_policy has to know of the model and of the engine.
struct ModelInfo {
  CacheShape shape;
  /// What the engine can hand over. A policy that needs more is refused. No engine has kScores by
  /// itself: add it where something works them out.
  Inputs supplied = Inputs::kAttention | Inputs::kHiddenStates | Inputs::kKeys | Inputs::kValues |
                    Inputs::kOutputProjection;
  std::shared_ptr<const OutputProjection> output_projection = nullptr;  ///< for those that ask
  std::optional<RotaryEmbedding> rotary = {};  ///< for policies that undo it; empty table: none
  std::shared_ptr<const QueryFilters> query_filters = nullptr;        ///< for QFilters
  std::shared_ptr<const QueryStatistics> query_statistics = nullptr;  ///< for those of that name
  const kernels::KernelSet* kernel = nullptr;                         ///< null: the best one
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ANY_POLICY_HPP_
