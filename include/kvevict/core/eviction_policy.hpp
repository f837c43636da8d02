#ifndef KVEVICT_CORE_EVICTION_POLICY_HPP_
#define KVEVICT_CORE_EVICTION_POLICY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/counters.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/types.hpp"

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// What an engine can rely on. Signals (observe_attention, observe_queries, observe_hidden,
/// observe_scores) exist where kRequiredInputs and kAttentionUse say so.
template <class P>
concept EvictionPolicy = std::copyable<P> &&
    requires(P& policy, const P& constant, const ViewRef& view, const KeepMask& mask,
             std::span<const PositionSpan> pinned, std::size_t count) {
  { P::kName } -> std::convertible_to<std::string_view>;
  { P::kRequiredInputs } -> std::convertible_to<Inputs>;
  { P::kAttentionUse } -> std::convertible_to<AttentionUse>;
  policy.begin(count, pinned);
  policy.append(count);
  { constant.wanted_attention_rows(count) } -> std::same_as<std::size_t>;
  { constant.wants_hidden(count) } -> std::same_as<bool>;
  policy.end_prefill(view);
  { constant.should_evict() } -> std::same_as<bool>;
  { constant.select(view) } -> std::same_as<const KeepMask&>;
  policy.apply(mask);
  policy.truncate(count);
  policy.reset();
  { constant.length() } -> std::same_as<std::size_t>;
  { constant.sequence() } -> std::same_as<const Sequence&>;
  { constant.counters() } -> std::same_as<const Counters&>;
};

/// What an engine can be asked before it is written: whether `kSupplied` holds everything `P`
/// needs.
template <class P, Inputs kSupplied>
concept PolicyForInputs = EvictionPolicy<P> && covers(kSupplied, P::kRequiredInputs);

/// True unless the policy needs rows that a fused attention kernel does not have and that cost as
/// much to recompute as the attention itself.
template <class P>
inline constexpr bool is_flash_attention_compatible = P::kAttentionUse != AttentionUse::kAllRows;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_EVICTION_POLICY_HPP_
