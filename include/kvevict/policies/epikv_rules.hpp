#ifndef KVEVICT_POLICIES_EPIKV_RULES_HPP_
#define KVEVICT_POLICIES_EPIKV_RULES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// What every variant of EpiKV (arXiv 2606.26472) shares.
//
// One keep-set for all layers and heads. The prompt is neither scored nor evicted; after each
// decode step the cache is cut to K tokens, prompt included: the newest R stay and the best of the
// rest. A prompt longer than K leaves D = max(K - P, 0) = 0 tokens to decoding and the cache at P.
// D < R: the newest D stay. The last sampled token has neither KV nor score. The paper has one
// prompt; of several, none of whose tokens goes, the newest R may be some of a prompt's.

/// Recent window of min(128, K / 4) tokens (appendix D).
inline constexpr std::size_t kEpiKVRecency = std::numeric_limits<std::size_t>::max();

/// Blocks of the paper's 32-layer model that the score compares (section 3): one of each band.
inline constexpr std::size_t kEpiKVLayerA = 10;
inline constexpr std::size_t kEpiKVLayerB = 21;

namespace detail {

/// K in tokens. Throws where it is a share: of a cache that is cut in every step that has no
/// meaning.
[[nodiscard]] inline std::size_t epikv_budget(std::string_view where, const Budget& budget,
                                              const CacheShape& shape) {
  if (budget.is_share()) {
    throw_invalid_argument(where, "budget is a share; must be a number of tokens or a total");
  }
  return budget.tokens_of(0, shape.num_layers * shape.num_kv_heads);
}

/// The recent window that the option stands for.
[[nodiscard]] constexpr std::size_t epikv_recency(std::size_t recent_window,
                                                  std::size_t budget) noexcept {
  return recent_window == kEpiKVRecency ? std::min<std::size_t>(128, budget / 4) : recent_window;
}

/// One keep-set, cut after decode steps to the prompt, sinks, the newest tokens and the best.
class EpiKVRules {
 public:
  [[nodiscard]] static MaskScope scope() noexcept { return MaskScope::kModel; }
  [[nodiscard]] static Trigger trigger() noexcept { return Trigger::kDecodeSteps; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return {.num_sink_tokens = num_sink_tokens_, .recent_window = recency_, .prompt = true};
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = budget_};
  }

 protected:
  /// Throws InvalidArgument, naming `where`.
  EpiKVRules(std::string_view where, const CacheShape& shape, const Budget& budget,
             std::size_t recent_window, std::size_t num_sink_tokens = 0)
      : budget_(epikv_budget(where, budget, shape)),
        recency_(epikv_recency(recent_window, budget_)),
        num_sink_tokens_(num_sink_tokens) {}

  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  [[nodiscard]] std::size_t recency() const noexcept { return recency_; }

 private:
  std::size_t budget_;  // K, in tokens
  std::size_t recency_;
  std::size_t num_sink_tokens_;
};

/// `given`, checked, or blocks [first, last] of the paper's 32 at the same share of the depth:
/// block l becomes round(l L / 32), half up. Other depths were not validated by the authors. Below
/// three layers 10 and 21 fall together and their difference is 0.
[[nodiscard]] inline std::vector<std::size_t> epikv_layers(std::string_view where,
                                                           std::string_view field,
                                                           std::vector<std::size_t> given,
                                                           std::size_t first, std::size_t last,
                                                           std::size_t num_layers) {
  for (const std::size_t layer : given) {
    require(layer < num_layers, where, field, layer, "must be < num_layers");
  }
  if (!given.empty())
    return given;
  const auto at_depth = [&](std::size_t layer) {
    return std::min((layer * num_layers + 16) / 32, num_layers - 1);
  };
  for (std::size_t layer = at_depth(first); layer <= at_depth(last); ++layer) {
    given.push_back(layer);
  }
  return given;
}

/// A weight that is a number.
[[nodiscard]] inline double epikv_weight(std::string_view where, std::string_view field,
                                         double weight) {
  require(std::isfinite(weight), where, field, weight, "must be finite");
  return weight;
}

/// `window` of the rolling statistics, checked together with what is kept for rollbacks.
[[nodiscard]] inline std::size_t epikv_window(std::string_view where, std::size_t window,
                                              std::size_t max_rollback) {
  constexpr std::size_t kMost = std::size_t{1} << 24U;
  require(window > 0 && window <= kMost, where, "window", window, "must be in [1, 2^24]");
  require(max_rollback <= kMost, where, "max_rollback", max_rollback, "must be at most 2^24");
  return window;
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_RULES_HPP_
