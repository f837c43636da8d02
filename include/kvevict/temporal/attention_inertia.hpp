#ifndef KVEVICT_TEMPORAL_ATTENTION_INERTIA_HPP_
#define KVEVICT_TEMPORAL_ATTENTION_INERTIA_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_entropy.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/spoiling_sum.hpp"
#include "kvevict/scoring/step_rows.hpp"
#include "kvevict/scoring/value_norms.hpp"
#include "kvevict/temporal/refresh_steps.hpp"
#include "kvevict/temporal/running_scores.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

struct AttentionInertiaOptions {
  Aggregator aggregator = Aggregator::kEma;
  double alpha = 0.8;                    ///< weight of the past in the EMA, in [0, 1)
  bool per_step = false;                 ///< one update a step with the mean over layers, in the
                                         ///< place of one after each layer
  bool entropy_weighted = false;         ///< weigh a layer's row by its normalised entropy
  std::vector<std::size_t> layers = {};  ///< that take part, zero-based; empty: all
  RefreshSteps refresh = {};
};

/// One running score per token for the whole model, fed by the newest token's attention layer after
/// layer, mean over query heads (InertiaKV, arXiv 2609.03515): [1, seq_len]. Nothing happens inside
/// a prompt; on steps that are no refresh scores stay and no rows are wanted. A new token enters at
/// the mean.
///
/// @tparam kWeighsValues  each head's attention times |v_i|_2 / mean_j |v_j|_2 of its KV head,
///                        before the mean over heads; wants observe_cache of prompts and in refresh
///                        steps, before or after the attention is observed
template <bool kWeighsValues>
class AttentionInertia {
 public:
  static constexpr Inputs kRequiredInputs =
      kWeighsValues ? Inputs::kAttention | Inputs::kValues : Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;
  static constexpr MaskScope kScope = MaskScope::kModel;

  /// Throws InvalidArgument, naming `where`, for a layer or a weight that is out of range.
  AttentionInertia(std::string_view where, const CacheShape& shape,
                   const AttentionInertiaOptions& options)
      : options_(options),
        shape_(shape),
        layers_(eligible_layers(where, options.layers, shape.num_layers)),
        scores_(shape, options.aggregator, options.alpha),
        norms_(make_norms(shape, layers_)) {
    detail::require(options.alpha >= 0.0 && options.alpha < 1.0, where, "alpha", options.alpha,
                    "must be in [0, 1)");
    options.refresh.check(where);
  }

  [[nodiscard]] auto state() noexcept {
    if constexpr (kWeighsValues) {
      return std::tie(scores_, step_, norms_);
    } else {
      return std::tie(scores_, step_);
    }
  }

  /// The newest tokens from the first one on whose step is a refresh.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    return rank_of(layer) == layers_.size() ? 0 : options_.refresh.tokens_in_step(sequence);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    const std::size_t num_tokens = wanted_rows(sequence, rows.layer);
    if (step_.empty())
      step_.start(num_tokens, layers_.size(), kWeighsValues ? shape_.num_kv_heads : 1,
                  sequence.seq_len(0));
    const float share = 1.0F / static_cast<float>(shape_.num_q_heads);
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t position = rows.first_position + r;
      if (!options_.refresh.include(sequence, position))
        continue;
      step_.add(rows, r, num_tokens - (sequence.length() - position), rank_of(rows.layer),
                kWeighsValues ? rows.kv_head : 0, share, kernel);
    }
    return 0;  // counted when m takes the samples
  }
  std::size_t end_layer(std::size_t /*layer*/, const Sequence& sequence,
                        const kernels::KernelSet& kernel) {
    step_.complete_layer();
    return update(sequence, kernel);
  }
  [[nodiscard]] bool wants_cache(const Sequence& sequence) const noexcept requires kWeighsValues {
    return options_.refresh.renew_in_step(sequence);
  }
  std::size_t observe_cache(const ScoreInput& input) requires kWeighsValues {
    norms_.observe(input.view, input.kernel);
    return update(input.sequence, input.kernel);
  }

  /// [seq_len] the running score of each slot.
  [[nodiscard]] std::span<const float> scores() const noexcept { return scores_.values(); }
  void score(const ScoreInput& input, LaneScores& scores) const {
    detail::require(!step_.complete(), input.sequence.owner(), "observe_cache", 0,
                    "must be called in every refresh step before select");
    scores.start_one(0, scores.seq_len());
    std::copy(scores_.values().begin(), scores_.values().end(), scores.array(0).begin());
  }

 private:
  using Norms = std::conditional_t<kWeighsValues, ValueNorms, std::tuple<>>;

  [[nodiscard]] static Norms make_norms(const CacheShape& shape,
                                        const std::vector<std::size_t>& layers) {
    if constexpr (kWeighsValues) {
      return ValueNorms(shape, layers);
    } else {
      return {};
    }
  }
  // Ascending, each once.
  [[nodiscard]] static std::vector<std::size_t> eligible_layers(std::string_view where,
                                                                std::vector<std::size_t> layers,
                                                                std::size_t num_layers) {
    if (layers.empty()) {
      layers.resize(num_layers);
      std::iota(layers.begin(), layers.end(), std::size_t{0});
    }
    for (const std::size_t layer : layers)
      detail::require(layer < num_layers, where, "layers", layer, "must be < num_layers");
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    return layers;
  }
  [[nodiscard]] std::size_t rank_of(std::size_t layer) const noexcept {
    return static_cast<std::size_t>(std::find(layers_.begin(), layers_.end(), layer) -
                                    layers_.begin());
  }
  // Lets m take the samples of the step once everything they are made of is there.
  std::size_t update(const Sequence& sequence, const kernels::KernelSet& kernel) {
    if (!step_.complete())
      return 0;
    if constexpr (kWeighsValues) {
      if (!norms_.complete())
        return 0;
    }
    std::size_t non_finite = 0;
    for (std::size_t token = 0; token < step_.num_tokens(); ++token) {
      if (token > 0)
        scores_.enter(step_.visible(token) - 1);
      if (!options_.refresh.include(sequence, sequence.length() - step_.num_tokens() + token))
        continue;
      if (options_.per_step) {
        non_finite += scores_.update(mean_over_layers(token, kernel), kernel);
        continue;
      }
      for (std::size_t rank = 0; rank < layers_.size(); ++rank)
        non_finite += scores_.update(layer_sample(token, rank, kernel), kernel);
    }
    step_.clear();
    return non_finite;
  }
  // s_l, in the place of its first part.
  [[nodiscard]] std::span<float> layer_sample(std::size_t token, std::size_t rank,
                                              const kernels::KernelSet& kernel) noexcept {
    const std::span<float> sample = step_.at(token, rank, 0);
    if constexpr (kWeighsValues) {
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
        const std::span<float> part = step_.at(token, rank, head);
        weigh_by_norms(norms_.of(layers_[rank], head), part);
        if (head > 0)
          add_spoiling(1.0F, part, kernel, sample);
      }
    }
    if (options_.entropy_weighted)
      kernel.scale(static_cast<float>(normalised_entropy(sample)), sample.size(), sample.data());
    return sample;
  }
  [[nodiscard]] std::span<float> mean_over_layers(std::size_t token,
                                                  const kernels::KernelSet& kernel) noexcept {
    const std::span<float> mean = layer_sample(token, 0, kernel);
    for (std::size_t rank = 1; rank < layers_.size(); ++rank)
      add_spoiling(1.0F, layer_sample(token, rank, kernel), kernel, mean);
    kernel.scale(1.0F / static_cast<float>(layers_.size()), mean.size(), mean.data());
    return mean;
  }

  AttentionInertiaOptions options_;
  CacheShape shape_;
  std::vector<std::size_t> layers_;
  RunningScores scores_;
  StepRows step_;
  Norms norms_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_ATTENTION_INERTIA_HPP_
