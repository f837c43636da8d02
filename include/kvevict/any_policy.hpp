#ifndef KVEVICT_ANY_POLICY_HPP_
#define KVEVICT_ANY_POLICY_HPP_

#include "kvevict/composition_text.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/counters.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/eviction_policy.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/option_text.hpp"
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/aggregated.hpp"
#include "kvevict/policies/ahakv.hpp"
#include "kvevict/policies/block_eviction.hpp"
#include "kvevict/policies/cake.hpp"
#include "kvevict/policies/caote.hpp"
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/compactor.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/defensivekv.hpp"
#include "kvevict/policies/dms.hpp"
#include "kvevict/policies/dropkv.hpp"
#include "kvevict/policies/entropy_gated_chunkkv.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/epikv_attention.hpp"
#include "kvevict/policies/epikv_key_value.hpp"
#include "kvevict/policies/epikv_lag.hpp"
#include "kvevict/policies/epikv_segments.hpp"
#include "kvevict/policies/expected_attention.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/fastgen.hpp"
#include "kvevict/policies/finch.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/keyformer.hpp"
#include "kvevict/policies/kvcompose.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/lazy_lanes.hpp"
#include "kvevict/policies/nestedkv.hpp"
#include "kvevict/policies/offline_budgets.hpp"
#include "kvevict/policies/pyramidkv.hpp"
#include "kvevict/policies/qfilters.hpp"
#include "kvevict/policies/raas.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/rocketkv.hpp"
#include "kvevict/policies/scissorhands.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/thinkv.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/policies/twinkv.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "kvevict/policies/vase.hpp"
#include "kvevict/policies/window_voting.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/query_filters.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/selection/projection.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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
      : self_(std::make_unique<Model<P>>(std::move(policy))),
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
    explicit Model(P p) : policy(std::move(p)) {}
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
      if constexpr (requires { P::wants_cache(); }) {
        return P::wants_cache();
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

/// Policies that can be told apart by name.
template <class... Ps>
struct PolicyList {};

/// Every policy that can be made by name. A new one is a line here.
// clang-format off
using NamedPolicies = PolicyList<
    FullKV,
    RandomEviction,
    StreamingLLM,
    H2O,
    SnapKV,
    LaProx,
    InertiaKV,
    InertiaKVValueNorm,
    EpiKV,
    EpiKVRaw,
    EpiKVBands,
    EpiKVKey,
    EpiKVValue,
    EpiKVLag,
    EpiKVLagKey,
    EpiKVAttention,
    EpiKVSegmentHS,
    EpiKVSeg,
    AdaKV,
    AdaKVDropKV,
    AdaKVKeyDiff,
    AdaKVKnorm,
    AdaptiveRKV,
    AggregatedKeyDiff,
    AhaKV,
    BlockEviction,
    CAKE,
    CapKV,
    CapKVStats,
    ChunkKV,
    Compactor,
    CriticalAdaKV,
    CriticalKV,
    CurDKV,
    DefensiveKV,
    DMSKnorm,
    DMSQFilters,
    DropKV,
    DuoAttention,
    EntropyGatedChunkKV,
    EvolKV,
    ExpectedAttention,
    ExpectedAttentionStats,
    ExternalScores,
    FastGen,
    Finch,
    H2OCAOTE,
    H2OFastCAOTE,
    HeadKV,
    KeyDiff,
    Keyformer,
    Knorm,
    KVCompose,
    KVComposeUnstructured,
    KVzip,
    KVCrush,
    LagKV,
    LagKVBudget,
    Leverage,
    LongFlow,
    LUKVKnorm,
    MeanCentredNorm,
    NestedKV,
    NonCausal,
    PerLayerKnorm,
    PyramidKV,
    QFilters,
    RaaS,
    RandomAttention,
    RKV,
    RocketKV,
    ScissorHands,
    SimLayerKV,
    ThinKV,
    TOVA,
    TOVACAOTE,
    TOVAFastCAOTE,
    TriAttention,
    TriAttentionStats,
    TwinKVKnorm,
    TwinKVSnapKV,
    VaSE,
    VATP>;
// clang-format on

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

namespace detail {

[[nodiscard]] inline std::string input_names(Inputs inputs) {
  std::string names;
  const auto add = [&](Inputs input, std::string_view name) {
    if (covers(inputs, input))
      names.append(names.empty() ? "" : ", ").append(name);
  };
  add(Inputs::kAttention, "attention rows or queries");
  add(Inputs::kHiddenStates, "hidden states");
  add(Inputs::kKeys, "keys");
  add(Inputs::kValues, "values");
  add(Inputs::kOutputProjection, "output projection");
  add(Inputs::kScores, "scores (observe_scores)");
  return names;
}

/// Whether a method reads queries' statistics without gathering them itself.
template <class Method>
[[nodiscard]] consteval bool needs_query_statistics() {
  if constexpr (requires(typename Method::Options options) { options.query_statistics; }) {
    return Method::kAttentionUse == AttentionUse::kNone;
  } else {
    return false;
  }
}

/// What is made of a policy's name: its method, or where that is a recipe the one that takes parts.
template <class P>
struct TextMethod;
template <class Method>
struct TextMethod<Policy<Method>> {
  using Type = Method;
};
template <Recipe R>
struct TextMethod<Policy<Composed<R>>> {
  using Type = Composed<WithAdditions<R>>;
};

/// @param items  the policy, then its parts
template <class Method>
[[nodiscard]] AnyPolicy make_from_text(std::span<const TextItem> items,
                                       std::string_view options_text, const ModelInfo& model) {
  typename Method::Options options;
  read_options<Method>(items[0].options, options, items[0].where(Method::kName));
  read_options<Method>(options_text, options);
  std::string description(Method::kName);
  if (const std::string changed = write_options<Method>(options); !changed.empty())
    description.append("(").append(changed).append(")");
  Inputs needed = Method::kRequiredInputs;
  for (const TextItem& item : items.subspan(1)) {
    if constexpr (requires { options.additions; }) {
      description.append(" + ").append(
          add_part(NamedParts{}, item, {model.shape, model.output_projection}, options.additions));
      needed = needed | options.additions.stages.inputs();
    } else {
      throw_invalid_argument(Method::kName, item.where("takes no parts"));
    }
  }
  const auto missing = static_cast<Inputs>(static_cast<std::uint32_t>(needed) &
                                           ~static_cast<std::uint32_t>(model.supplied));
  if (missing != Inputs::kNothing) {
    throw_invalid_argument(Method::kName,
                           std::string("the engine does not supply ").append(input_names(missing)));
  }
  if constexpr (requires { options.output_projection; }) {
    options.output_projection = model.output_projection;
  }
  if constexpr (requires { options.rotary; }) {
    require(model.rotary.has_value(), Method::kName, "ModelInfo.rotary", 0, "must be given");
    options.rotary = *model.rotary;
  }
  if constexpr (requires { options.query_filters; })
    options.query_filters = model.query_filters;
  if constexpr (needs_query_statistics<Method>())
    options.query_statistics = model.query_statistics;
  return AnyPolicy(Policy<Method>(options, model.shape,
                                  model.kernel != nullptr ? *model.kernel : kernels::best()),
                   std::move(description));
}

template <class Visit, class... Ps>
void for_each_policy(PolicyList<Ps...> /*list*/, Visit&& visit) {
  (visit(std::type_identity<Ps>{}), ...);
}

}  // namespace detail

/// Makes a policy from its name and its options, "key=value,key=value". Case, '_' and '-' in the
/// name do not matter. The name may bring options and parts: "snapkv(budget=512) + caote +
/// ada(floor=0.1)", as describe() writes it; the options behind it come on top. Throws
/// InvalidArgument: a name, a part or a key that is not known (the text lists those that are, and
/// says at which column), a value that cannot be read or is refused, an input that is not supplied.
///
/// @tparam Policies  PolicyList to choose from. A template also so that only programs that call it
///                   compile all policies.
template <class Policies = NamedPolicies>
[[nodiscard]] AnyPolicy make_policy(std::string_view name, std::string_view options,
                                    const ModelInfo& model) {
  const std::vector<detail::TextItem> items = detail::split_composition(name);
  const std::string wanted = detail::plain_name(items[0].name);
  std::optional<AnyPolicy> made;
  detail::for_each_policy(Policies{}, [&](auto policy) {
    using P = typename decltype(policy)::type;
    if (!made && detail::plain_name(P::kName) == wanted)
      made = detail::make_from_text<typename detail::TextMethod<P>::Type>(items, options, model);
  });
  if (!made) {
    std::string known;
    detail::for_each_policy(Policies{}, [&](auto policy) {
      known.append(known.empty() ? "" : ", ").append(decltype(policy)::type::kName);
    });
    detail::throw_invalid_argument(
        "make_policy",
        std::string("no policy '").append(items[0].name).append("'; known: ").append(known));
  }
  return std::move(*made);
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ANY_POLICY_HPP_
