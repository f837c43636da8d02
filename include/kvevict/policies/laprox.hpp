#ifndef KVEVICT_POLICIES_LAPROX_HPP_
#define KVEVICT_POLICIES_LAPROX_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/projected_norms.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Where LaProx pools; the paper does not say.
enum class PoolStage : std::uint8_t { kAttention, kProduct };

[[nodiscard]] constexpr auto enum_names(PoolStage /*type*/) noexcept {
  return std::array<std::pair<std::string_view, PoolStage>, 2>{
      {{"attention", PoolStage::kAttention}, {"product", PoolStage::kProduct}}};
}

/// What the scores of a layer are divided by before layers compete.
enum class LayerNormaliser : std::uint8_t {
  kNone,        ///< nothing: the ablation that does worse than no competition at all
  kCandidates,  ///< their sum over the slots that may be evicted
  kAllSlots,    ///< their sum with the window; pooling then sees the window too
};

[[nodiscard]] constexpr auto enum_names(LayerNormaliser /*type*/) noexcept {
  return std::array<std::pair<std::string_view, LayerNormaliser>, 3>{
      {{"none", LayerNormaliser::kNone},
       {"candidates", LayerNormaliser::kCandidates},
       {"all_slots", LayerNormaliser::kAllSlots}}};
}

struct LaProxOptions {
  Budget budget = 128;                  ///< tokens per KV head on average (B_total as a total)
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote (w)
  bool window_extra = false;            ///< the window comes on top of the budget
  std::size_t min_keep = 1;             ///< entries that each head keeps, the window's counted
  GroupReading group_reading = GroupReading::kMeanNorms;
  ValueFactor value_factor = ValueFactor::kProjected;  ///< the rest: the indicator ablation
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 7};
  PoolStage pool_stage = PoolStage::kAttention;
  Competition competition = Competition::kModel;  ///< who shares a budget; kLane: uniform
  LayerNormaliser normaliser = LayerNormaliser::kCandidates;  ///< divides where the model competes
  /// Of the model; needed for ValueFactor::kProjected.
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
class LaProxMethod {
 public:
  using Options = LaProxOptions;
  static constexpr std::string_view kName = "LaProx";
  static constexpr Inputs kRequiredInputs =
      Inputs::kAttention | Inputs::kValues | Inputs::kOutputProjection;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kWindow;

  LaProxMethod(const Options& options, const CacheShape& shape)
      : options_(options),
        reading_(effective_reading(options.group_reading, options.value_factor)),
        columns_(shape, RowReduce::kSquares, head_reduce(reading_)) {
    detail::require(options.observation_window > 0, kName, "observation_window",
                    options.observation_window, "must be > 0");
    options.pooling.check(kName);
    detail::require(reading_ != GroupReading::kExact || options.pooling.kernel_size == 1 ||
                        options.pool_stage == PoolStage::kProduct,
                    kName, "pooling.kernel_size", options.pooling.kernel_size,
                    "needs pool_stage product with the exact reading, whose attention and values "
                    "do not come apart");
    if (options.value_factor != ValueFactor::kProjected)
      return;
    check_projection(options.output_projection.get(), shape);
  }

  [[nodiscard]] MaskScope scope() const noexcept { return MaskScope::kHead; }
  [[nodiscard]] Trigger trigger() const noexcept { return Trigger::kPrefillEnd; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return {.recent_window = options_.observation_window, .after_prompt = true};
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = options_.budget,
            .competition = options_.competition,
            .min_keep = options_.min_keep,
            .protected_extra = options_.window_extra};
  }
  [[nodiscard]] auto state() noexcept { return std::tie(columns_); }

  void begin(const Sequence& /*sequence*/) noexcept { columns_.clear(); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(options_.observation_window);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    return columns_.observe(rows, kernel);
  }

  /// p, before the normalisation.
  void score(const ScoreInput& input, std::size_t lane_index, std::span<float> out) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t layer = shape.first_layer(MaskScope::kHead, lane_index);
    const std::size_t head = shape.first_head(MaskScope::kHead, lane_index);
    const Lane lane = input.view.lane(layer, head);
    const ObservationWindow window = find_observation_window(
        input.sequence, lane_index, options_.observation_window, lane.valid);
    const std::size_t first = window.first;
    const std::size_t last = scores_window() ? window.prompt_end : window.prefix_end;
    std::fill(out.begin(), out.end(), 0.0F);
    const std::span<float> p = out.subspan(first, last - first);

    std::span<const float> values;
    if (options_.value_factor == ValueFactor::kNorm) {
      const std::span<float> norms = input.scratch.floats(1, p.size());
      value_norms(lane.values, shape.value_size(), first, last, input.kernel,
                  input.scratch.vector(0), norms);
      values = norms;
    } else if (options_.value_factor == ValueFactor::kProjected) {
      values = projected_values(lane.values, first, p.size(), *options_.output_projection, layer,
                                head, reading_, input.kernel, input.scratch);
    }
    const bool pools_product = options_.pool_stage == PoolStage::kProduct;
    if (reading_ == GroupReading::kExact) {
      exact_contributions(columns_, shape.group_size(), layer, head, first, values, p);
    } else {
      norm_products(columns_, layer, head, first, pools_product ? nullptr : &options_.pooling,
                    values, input.kernel, input.scratch, p);
    }
    for (std::size_t i = 0; !lane.valid.empty() && i < p.size(); ++i) {
      if (lane.valid[first + i] == 0)
        p[i] = 0.0F;  // nothing is there (rule R9)
    }
    if (pools_product) {
      const std::span<float> products = input.scratch.floats(2, p.size());
      std::copy(p.begin(), p.end(), products.begin());
      options_.pooling.apply(products, input.kernel, p);
    }
  }

  /// s = p / (sum of p over the layer).
  void normalise(std::span<ScoredLane> lanes, const ScoreInput& input) const {
    if (options_.competition != Competition::kModel ||
        options_.normaliser == LayerNormaliser::kNone) {
      return;
    }
    const std::size_t num_kv_heads = input.sequence.shape().num_kv_heads;
    for (; !lanes.empty(); lanes = lanes.subspan(num_kv_heads)) {
      const std::span<ScoredLane> layer = lanes.first(num_kv_heads);
      double sum = 0.0;
      for (const ScoredLane& lane : layer) {
        sum += scores_window() ? finite_sum(lane.scores) : finite_sum(lane.scores, lane.candidates);
      }
      for (const ScoredLane& lane : layer)
        divide_by_sum(sum, lane.scores);
    }
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("window_extra", options.window_extra);
    visit("min_keep", options.min_keep);
    visit("group_reading", options.group_reading);
    visit("value_factor", options.value_factor);
    visit("pooling", options.pooling.kind);
    visit("pool_kernel_size", options.pooling.kernel_size);
    visit("pool_edge", options.pooling.edge);
    visit("pool_stage", options.pool_stage);
    visit("competition", options.competition);
    visit("normaliser", options.normaliser);
  }

 private:
  [[nodiscard]] bool scores_window() const noexcept {
    return options_.normaliser == LayerNormaliser::kAllSlots;
  }
  void check_projection(const OutputProjection* projection, const CacheShape& shape) const {
    if (projection == nullptr) {
      detail::throw_invalid_argument(kName, "output_projection is missing");
    }
    detail::check_same_shape(projection->shape(), shape, "LaProx output_projection");
    if (!projection->complete()) {
      detail::throw_invalid_argument(kName, "output_projection has layers that were not set");
    }
    if (!projection->serves(reading_)) {
      detail::throw_invalid_argument(kName,
                                     "output_projection was prepared for another group_reading");
    }
  }

  Options options_;
  GroupReading reading_;
  AttentionColumns columns_;
};

using LaProx = Policy<LaProxMethod>;

static_assert(EvictionPolicy<LaProx>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_LAPROX_HPP_
