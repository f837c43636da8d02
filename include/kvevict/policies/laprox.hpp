#ifndef KVEVICT_POLICIES_LAPROX_HPP_
#define KVEVICT_POLICIES_LAPROX_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/stages.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Where LaProx pools; the paper does not say.
enum class PoolStage : std::uint8_t { kAttention, kProduct };

[[nodiscard]] constexpr auto enum_names(PoolStage /*type*/) noexcept {
  return std::array<std::pair<std::string_view, PoolStage>, 2>{
      {{"attention", PoolStage::kAttention}, {"product", PoolStage::kProduct}}};
}

struct LaProxOptions {
  Budget budget = 128;                  ///< tokens per KV head on average (B_total as a total)
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote (w)
  bool window_extra = false;            ///< the window comes on top of the budget
  std::size_t min_keep = 1;             ///< entries that each head keeps, the window's counted
  GroupReading group_reading = GroupReading::kMeanNorms;  ///< how a group's heads meet
  ValueFactor value_factor = ValueFactor::kProjected;     ///< the rest: the indicator ablation
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 7};  ///< over neighbouring tokens
  PoolStage pool_stage = PoolStage::kAttention;                      ///< what is pooled
  Competition competition = Competition::kModel;  ///< who shares a budget; kLane: uniform
  LayerNormaliser normaliser = LayerNormaliser::kCandidates;  ///< divides where the model competes
  /// Of the model; needed for the projected factors.
  std::shared_ptr<const OutputProjection> output_projection = nullptr;
};

/// Output-aware scores that are comparable over heads and layers (LaProx, arXiv 2605.07234,
/// section 4, Algorithms 1 and 2): a layer's output is one product of stacked attention columns
/// and projected values, and the least error comes from keeping the pairs with the largest
///
///   p(l, h, i) = | A_l^h[:, i] |_2 | v_{l,i}^h W_{O,l}^h |_2,   s(l, .) = p(l, .) / sum p(l, .).
///
/// The best s of all layers and heads stay beside each lane's window. Once, at the end of a prompt;
/// tokens decoded later are all kept. The rows of A are the softmax of the last w queries of the
/// prompt over all that they saw.
///
/// Open in the paper and chosen here: query heads of a group as GroupReading::kMeanNorms says;
/// pooling of the attention norm over the prefix; the window inside the budget and outside the
/// normaliser. A layer whose sum is 0 has scores of 0.
struct LaProxRecipe : CutsPrompts {
  using Options = LaProxOptions;
  static constexpr std::string_view kName = "LaProx";

  static void check(const Options& options, const CacheShape& shape) {
    options.pooling.check(kName);
    detail::require(reading(options) != GroupReading::kExact || options.pooling.kernel_size == 1 ||
                        options.pool_stage == PoolStage::kProduct,
                    kName, "pooling.kernel_size", options.pooling.kernel_size,
                    "needs pool_stage product with the exact reading, whose attention and values "
                    "do not come apart");
    check_value_factor(kName, options.value_factor, options.output_projection.get(), shape,
                       reading(options));
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    const bool exact = reading(options) == GroupReading::kExact;
    const bool pools_product = options.pool_stage == PoolStage::kProduct;
    return WindowAttention(kName, shape,
                           {.window = options.observation_window,
                            .rows = RowReduce::kSquares,
                            .heads = head_reduce(reading(options)),
                            .score_window = options.normaliser == LayerNormaliser::kAllSlots}) |
           when(exact, ExactContribution{options.output_projection}) | when(!exact, SquareRoot{}) |
           when(!exact && !pools_product, Pool{options.pooling}) |
           when(!exact,
                TimesValues{options.value_factor, reading(options), options.output_projection}) |
           GroupReduction{GroupReduce::kMean} | when(pools_product, Pool{options.pooling}) |
           SharesOfLayer{options.competition == Competition::kModel ? options.normaliser
                                                                    : LayerNormaliser::kNone};
  }
  static Allocation allocation(const Options& options) noexcept {
    return {.budget = options.budget,
            .competition = options.competition,
            .min_keep = options.min_keep,
            .protected_extra = options.window_extra};
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("window_extra", options.window_extra);
    visit("min_keep", options.min_keep);
    visit("group_reading", options.group_reading);
    visit("value_factor", options.value_factor);
    options.pooling.visit_options(visit);
    visit("pool_edge", options.pooling.edge);
    visit("pool_stage", options.pool_stage);
    visit("competition", options.competition);
    visit("normaliser", options.normaliser);
  }

 private:
  [[nodiscard]] static GroupReading reading(const Options& options) noexcept {
    return effective_reading(options.group_reading, options.value_factor);
  }
};

// policy: LaProx
//   | `p_i / (sum of p over the layer)`, `p_i = pool_7(norm_w(mean_h a[h,t,i])) mean_h norm(v_i
//     W_h)`
//   | last rows of the prompt, V, W_O | - | head | at prompt ends
//   | 4 B per KV head (head products: per query head; exact reading: per pair of query heads)
//   | none | 2605.07234
using LaProx = Policy<Composed<LaProxRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_LAPROX_HPP_
