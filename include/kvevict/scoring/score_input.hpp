#ifndef KVEVICT_SCORING_SCORE_INPUT_HPP_
#define KVEVICT_SCORING_SCORE_INPUT_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// What everything that scores can look at.
struct ScoreInput {
  const ViewRef& view;
  const Sequence& sequence;
  const kernels::KernelSet& kernel;
  Scratch& scratch;  ///< memory that is kept between calls, of the worker alone
  /// Bits of the slots of the lane being scored that may be chosen, for scores that compare tokens
  /// with their rivals; empty: not known, all that hold a token.
  std::span<const std::uint64_t> candidates = {};

  [[nodiscard]] bool may_be_chosen(std::size_t slot) const noexcept {
    return candidates.empty() || detail::has_bit(candidates, slot);
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_SCORE_INPUT_HPP_
