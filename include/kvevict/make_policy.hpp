#ifndef KVEVICT_MAKE_POLICY_HPP_
#define KVEVICT_MAKE_POLICY_HPP_

#include "kvevict/any_policy.hpp"
#include "kvevict/composition_additions.hpp"
#include "kvevict/composition_parts.hpp"
#include "kvevict/composition_text.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/eviction_policy.hpp"
#include "kvevict/core/step_inputs.hpp"
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

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Policies that can be told apart by name.
template <class... Ps>
struct PolicyList {
  static_assert((EvictionPolicy<Ps> && ...));
};

/// Every policy that can be made by name. A new one is a line here and its header above.
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
    AggregatedTOVA,
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
    KVzap,
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
    RaaSBounds,
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

/// Reads a policy's options, those of its item first; returns how they read back.
[[nodiscard]] inline std::string read_policy(std::string_view name, const TextItem& item,
                                             std::string_view options_text,
                                             const OptionFields& options,
                                             const OptionFields& defaults) {
  read_options(item.options, options, item.where(name));
  read_options(options_text, options, name);
  std::string description(name);
  if (const std::string changed = write_options(options, defaults); !changed.empty())
    description.append("(").append(changed).append(")");
  return description;
}
inline void check_supplied(std::string_view name, Inputs needed, Inputs supplied) {
  const auto missing = static_cast<Inputs>(static_cast<std::uint32_t>(needed) &
                                           ~static_cast<std::uint32_t>(supplied));
  if (missing != Inputs::kNothing) {
    throw_invalid_argument(name,
                           std::string("the engine does not supply ").append(input_names(missing)));
  }
}

/// @param items  the policy, then its parts
template <class Method>
[[nodiscard]] AnyPolicy make_from_text(std::span<const TextItem> items,
                                       std::string_view options_text, const ModelInfo& model) {
  typename Method::Options options;
  typename Method::Options defaults;
  std::string description =
      read_policy(Method::kName, items[0], options_text, option_fields<Method>(options),
                  option_fields<Method>(defaults));
  check_supplied(Method::kName, Method::kRequiredInputs, model.supplied);
  if constexpr (requires { options.output_projection; })
    options.output_projection = model.output_projection;
  if constexpr (requires { options.rotary; }) {
    require(model.rotary.has_value(), Method::kName, "ModelInfo.rotary", 0, "must be given");
    options.rotary = *model.rotary;
  }
  if constexpr (requires { options.query_filters; })
    options.query_filters = model.query_filters;
  if constexpr (needs_query_statistics<Method>())
    options.query_statistics = model.query_statistics;
  if constexpr (requires { options.additions; }) {
    if (items.size() > 1) {
      using Recipe = typename Method::Recipe;
      const PartHost host = Recipe::part_host(options, model.shape);
      Recipe::check_room(options, model.shape, Method::kName);
      for (const TextItem& item : items.subspan(1)) {
        description.append(" + ").append(add_part(NamedParts{}, item, host,
                                                  {{}, model.shape, model.output_projection},
                                                  options.additions));
        Recipe::check_room(options, model.shape, item.where(item.name));
      }
    }
    check_supplied(Method::kName, Method::Recipe::added_inputs(options), model.supplied);
  } else if (items.size() > 1) {
    throw_invalid_argument(items[1].where(items[1].name),
                           std::string(Method::kName).append(" takes no parts"));
  }
  return AnyPolicy(std::in_place_type<Policy<Method>>, std::move(description), options, model.shape,
                   model.kernel != nullptr ? *model.kernel : kernels::best());
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

#endif  // KVEVICT_MAKE_POLICY_HPP_
