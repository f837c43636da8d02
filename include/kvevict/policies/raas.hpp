#ifndef KVEVICT_POLICIES_RAAS_HPP_
#define KVEVICT_POLICIES_RAAS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/page_stamps.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/whole_pages.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct RaaSOptions {
  Budget budget = 1024;        ///< tokens per layer, prompt included
  std::size_t page_size = 16;  ///< decoded tokens that go together
  double threshold = 1e-4;     ///< attention from which on a page was attended to (alpha)
};

/// Milestones of reasoning (RaaS, arXiv 2502.11147): prompts stay; decoded tokens live in pages,
/// and when the cache exceeds the budget, the page goes to which no token has attended for longest.
/// One set for all heads of a layer. Whole pages go, so fewer tokens than the budget may stay; the
/// page that is being written stays, but for a budget that is smaller than it.
///
/// Chosen here: a page's attention is the sum over its tokens of the mean over the layer's query
/// heads, where the paper bounds it from a representative key to save the product; a prompt above
/// the budget stays whole and leaves nothing for decoding. The paper's other rule, which stamps the
/// better half of all pages at every step, is left out.
struct RaaSRecipe {
  using Options = RaaSOptions;
  static constexpr std::string_view kName = "RaaS";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.threshold >= 0.0, kName, "threshold", options.threshold,
                    "must be >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(PageStamps(kName, shape, DecodePages{options.page_size}, options.threshold));
  }
  static WholePages selector(const Options& options) noexcept {
    return {DecodePages{options.page_size}};
  }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kDecodeSteps; }
  static Protection protection(const Options& /*options*/) noexcept { return {.prompt = true}; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("page_size", options.page_size);
    visit("threshold", options.threshold);
  }
};

// policy: RaaS | newest t with `sum_page mean_H a[H,t,i] > 1e-4` | newest row | - | layer
//   | decoded tokens | 4 B per layer; during a step 4 B more | a pass over the row | 2502.11147
using RaaS = Policy<Composed<RaaSRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_RAAS_HPP_
