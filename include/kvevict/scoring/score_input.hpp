#ifndef KVEVICT_SCORING_SCORE_INPUT_HPP_
#define KVEVICT_SCORING_SCORE_INPUT_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/kernel_set.hpp"

KVEVICT_NAMESPACE_BEGIN

/// What everything that scores can look at.
struct ScoreInput {
  const ViewRef& view;
  const Sequence& sequence;
  const kernels::KernelSet& kernel;
  Scratch& scratch;  ///< memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_SCORE_INPUT_HPP_
