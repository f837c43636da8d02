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
#include "kvevict/selection/streaming_top_k.hpp"
#include "kvevict/temporal/hidden_trend.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
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

/// K tokens, the newest R and the prompts among them.
class EpiKVBudget {
 public:
  /// Throws InvalidArgument, naming `where`, for a share: of a cache that is cut in every step it
  /// has no meaning.
  EpiKVBudget(std::string_view where, const Budget& budget, const CacheShape& shape,
              std::size_t recent_window, std::size_t num_sink_tokens = 0)
      : tokens_((check_budget(where, budget),
                 budget.tokens_of(0, shape.num_layers * shape.num_kv_heads))),
        recency_(recent_window == kEpiKVRecency ? std::min<std::size_t>(128, tokens_ / 4)
                                                : recent_window),
        num_sink_tokens_(num_sink_tokens) {}

  [[nodiscard]] std::size_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] StreamingTopK streaming() const { return {tokens_, recency_}; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return {.num_sink_tokens = num_sink_tokens_, .recent_window = recency_, .prompt = true};
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = tokens_};
  }

 private:
  static void check_budget(std::string_view where, const Budget& budget) {
    if (budget.is_share())
      throw_invalid_argument(where, "budget is a share; must be a number of tokens or a total");
  }

  std::size_t tokens_;  // K
  std::size_t recency_;
  std::size_t num_sink_tokens_;
};

/// One keep-set, cut after decode steps to the prompt, sinks, the newest tokens and the best.
/// `Self` is the recipe that derives from it.
template <class Self>
struct EpiKVRules {
  template <class O>
  [[nodiscard]] static MaskScope scope(const O& /*options*/) noexcept {
    return MaskScope::kModel;
  }
  template <class O>
  [[nodiscard]] static Trigger trigger(const O& /*options*/) noexcept {
    return Trigger::kDecodeSteps;
  }
  template <class O>
  [[nodiscard]] static EpiKVBudget allocator(const O& options, const CacheShape& shape) {
    if constexpr (requires { options.num_sink_tokens; }) {
      return {Self::kName, options.budget, shape, options.recent_window, options.num_sink_tokens};
    } else {
      return {Self::kName, options.budget, shape, options.recent_window};
    }
  }
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

/// Throws for options of a rolling statistic that make no sense, `where` being the policy.
template <class O>
void check_epikv_window(std::string_view where, const O& options) {
  constexpr std::size_t kMost = std::size_t{1} << 24U;
  require(options.window > 0 && options.window <= kMost, where, "window", options.window,
          "must be in [1, 2^24]");
  require(options.max_rollback <= kMost, where, "max_rollback", options.max_rollback,
          "must be at most 2^24");
}

/// The trend of the bands that a policy's options choose.
template <class O>
[[nodiscard]] HiddenTrend epikv_trend(std::string_view where, const O& options,
                                      const CacheShape& shape, std::vector<LayerBand> bands,
                                      BandStatistic statistic = BandStatistic::kZScore) {
  check_epikv_window(where, options);
  return HiddenTrend(shape, std::move(bands), statistic, options.window, options.max_rollback);
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_EPIKV_RULES_HPP_
