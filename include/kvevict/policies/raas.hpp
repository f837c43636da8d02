#ifndef KVEVICT_POLICIES_RAAS_HPP_
#define KVEVICT_POLICIES_RAAS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/page_attention.hpp"
#include "kvevict/scoring/page_bounds.hpp"
#include "kvevict/scoring/page_stamps.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/selection/whole_pages.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

struct RaaSOptions {
  Budget budget = 1024;                          ///< tokens per layer, prompt included
  std::size_t page_size = 16;                    ///< decoded tokens that go together
  StampRule stamp = StampRule::kAboveThreshold;  ///< the pages to which a token attends
  double threshold = 1e-4;  ///< of above_threshold: attention from which on it does (alpha)
};

/// What both readings of RaaS have in common; `Source` says what a token gives to a page.
template <class Self, class Source>
struct KeepsAttendedPages {
  using Options = RaaSOptions;

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.threshold >= 0.0, Self::kName, "threshold", options.threshold,
                    "must be >= 0");
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Pipeline(PageStamps<Source>(Self::kName, shape, DecodePages{options.page_size},
                                       options.stamp, options.threshold));
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
    visit("stamp", options.stamp);
    visit("threshold", options.threshold);
  }
};

/// Milestones of reasoning (RaaS, arXiv 2502.11147): prompts stay; decoded tokens live in pages,
/// and when the cache exceeds the budget, the page goes to which no token has attended for longest.
/// One set for all heads of a layer. Whole pages go, so fewer tokens than the budget may stay; the
/// page that is being written stays, but for a budget that is smaller than it.
///
/// The paper has both rules for a stamp: attention above a threshold, and the better half of the
/// pages at each step. Half of the decoded pages it is here, rounded up, since prompts stay anyway;
/// of equal pages the earlier ones are stamped.
///
/// Chosen here: a page's attention is the sum over its tokens of the mean over the layer's query
/// heads, where the paper takes it from a representative key to save the product (RaaSBounds); a
/// prompt above the budget stays whole and leaves nothing for decoding; of pages whose stamps are
/// equal the later one goes (rule R3).
struct RaaSRecipe : KeepsAttendedPages<RaaSRecipe, PageAttention> {
  static constexpr std::string_view kName = "RaaS";
};

/// RaaS whose page scores come from one representative key for each page, as the paper has them:
/// Quest's bound, through a softmax over the pages (PageBounds). It needs queries and keys and no
/// attention row, so any fused attention will do.
///
/// Chosen here: the bound, where the paper leaves open which representative; a page weighs as one
/// token whatever it holds, so the threshold is one of shares of pages; the softmax runs over the
/// pages of the prompts too, so that what goes to a prompt is attention to no decoded page.
struct RaaSBoundsRecipe : KeepsAttendedPages<RaaSBoundsRecipe, PageBounds> {
  static constexpr std::string_view kName = "RaaSBounds";
};

// policy: RaaS | newest t with `sum_page mean_H a[H,t,i] > 1e-4` | newest row | - | layer
//   | decoded tokens | 4 B per layer; during a step 4 B more | a pass over the row | 2502.11147
using RaaS = Policy<Composed<RaaSRecipe>>;
// policy: RaaSBounds | newest t with `mean_H softmax_pages(max_page q_t.k) > 1e-4`, of a bound
//   | newest queries, K | - | layer | decoded tokens
//   | 4 B per layer; 8 head_dim B per page and KV head | a product per page; a cut reads K
//   | 2502.11147
using RaaSBounds = Policy<Composed<RaaSBoundsRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_RAAS_HPP_
