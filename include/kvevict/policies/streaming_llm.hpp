#ifndef KVEVICT_POLICIES_STREAMING_LLM_HPP_
#define KVEVICT_POLICIES_STREAMING_LLM_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/equal_scores.hpp"
#include "kvevict/scoring/pipeline.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct StreamingLLMOptions {
  std::size_t num_sink_tokens = 4;   ///< first tokens that always stay (paper: start)
  std::size_t recent_window = 1020;  ///< newest tokens that always stay
};

/// Attention sinks and the newest tokens (StreamingLLM, arXiv 2309.17453, section 3.2): keeps
/// slots [0, num_sink_tokens) and the last recent_window, one set for all layers and heads.
///
/// The authors cache keys before rotary embedding and rotate them by their index in the cache.
/// Masks cannot do that; an engine that wants it gets the new positions from for_each_rerotation.
struct StreamingLLMRecipe : CutsEveryStep {
  using Options = StreamingLLMOptions;
  static constexpr std::string_view kName = "StreamingLLM";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.num_sink_tokens > 0 || options.recent_window > 0, kName,
                    "recent_window", options.recent_window,
                    "must be > 0 where num_sink_tokens is 0");
  }
  static auto pipeline(const Options& /*options*/, const CacheShape& /*shape*/) {
    return Pipeline(EqualScores{});
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kModel; }
  static Protection protection(const Options& options) noexcept {
    return {.num_sink_tokens = options.num_sink_tokens, .recent_window = options.recent_window};
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = detail::saturating_add(options.num_sink_tokens, options.recent_window)};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }
};

// policy: StreamingLLM | none: the first 4 and the newest 1020 stay | nothing | - | model
//   | at any time | none | the mask, n / 64 words | 2309.17453
using StreamingLLM = Policy<Composed<StreamingLLMRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_STREAMING_LLM_HPP_
