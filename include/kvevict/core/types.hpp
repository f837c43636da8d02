#ifndef KVEVICT_CORE_TYPES_HPP_
#define KVEVICT_CORE_TYPES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Place of a token in the text, counted from 0; never changes. A slot is the token's index in
/// the cache now and does change: slots are renumbered when a mask is applied.
using Position = std::int32_t;

/// Half-open range of positions.
struct PositionSpan {
  Position first = 0;
  Position last = 0;  ///< one past the end
};

/// What an engine has to hand over; a set of flags.
enum class Inputs : std::uint32_t {
  kNothing = 0,
  kAttention = 1U << 0U,         ///< attention rows, or the queries to compute them from; the
                                 ///< latter alone will do for AttentionUse::kQueries
  kHiddenStates = 1U << 1U,      ///< residual stream after some blocks
  kKeys = 1U << 2U,              ///< cached keys, through the view
  kValues = 1U << 3U,            ///< cached values, through the view
  kOutputProjection = 1U << 4U,  ///< W_O of every layer, once per model
  kScores = 1U << 5U,            ///< scores that something else worked out, through observe_scores
};

[[nodiscard]] constexpr Inputs operator|(Inputs a, Inputs b) noexcept {
  return static_cast<Inputs>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr Inputs operator&(Inputs a, Inputs b) noexcept {
  return static_cast<Inputs>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}
/// True if `supplied` holds everything that `required` names.
[[nodiscard]] constexpr bool covers(Inputs supplied, Inputs required) noexcept {
  return (supplied & required) == required;
}

namespace detail {

/// What a part of a composition says that it needs.
template <class Part>
[[nodiscard]] consteval Inputs required_by() {
  if constexpr (requires { Part::kRequiredInputs; }) {
    return Part::kRequiredInputs;
  } else {
    return Inputs::kNothing;
  }
}

}  // namespace detail

/// Which query rows a policy looks at. Fused attention kernels have no rows to give; computing
/// a few of them again is cheap, computing all of them is the attention itself a second time.
enum class AttentionUse : std::uint8_t {
  kNone,     ///< never looks at attention
  kWindow,   ///< the last rows of the prompt, once
  kLastRow,  ///< the newest row or rows of each step, few of a prompt
  kAllRows,  ///< every row, those of the prompt too
  kQueries,  ///< every query itself, but no row: observe_queries alone, at the cost of a pass
};

/// How far one row of decisions reaches.
enum class MaskScope : std::uint8_t {
  kModel,  ///< one set of slots for all layers and heads
  kLayer,  ///< one set per layer, shared by its KV heads
  kHead,   ///< one set per layer and KV head
};

[[nodiscard]] constexpr auto enum_names(MaskScope /*type*/) noexcept {
  return std::array<std::pair<std::string_view, MaskScope>, 3>{
      {{"head", MaskScope::kHead}, {"layer", MaskScope::kLayer}, {"model", MaskScope::kModel}}};
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_TYPES_HPP_
