#ifndef KVEVICT_POLICIES_INERTIAKV_HPP_
#define KVEVICT_POLICIES_INERTIAKV_HPP_

#include "kvevict/allocation/first_prompt.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/row_entropy.hpp"
#include "kvevict/scoring/spoiling_sum.hpp"
#include "kvevict/scoring/step_rows.hpp"
#include "kvevict/scoring/value_norms.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
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

/// Defaults: the paper's main results, with every step a refresh. Lazy4 is refresh_interval = 4.
struct InertiaKVOptions {
  /// Tokens kept (B); a share is one of the first prompt, floor((1 - rho) L0), fixed from then on.
  Budget budget = Budget::compression_ratio(0.9);
  double alpha = 0.8;                        ///< weight of the past in the EMA, in [0, 1)
  Aggregator aggregator = Aggregator::kEma;  ///< EMA, cumulative or single-step
  bool per_step = false;             ///< one update a step with the mean over layers (eq. 2 - 4)
                                     ///< instead of one after each layer (what the authors run)
  std::size_t refresh_interval = 1;  ///< steps from one refresh of m to the next (r)
  bool score_free = false;           ///< refresh in the first step after a prompt and never again
  bool entropy_weighted = false;     ///< weigh a layer's row by its normalised entropy
  std::vector<std::size_t> layers = {};  ///< eligible ones, zero-based; empty: all
  std::size_t num_sink_tokens = 0;       ///< static reserve, inside the budget: first tokens
  std::size_t recent_window = 0;         ///< and newest ones, the current one included
};

/// The attention of the last query.
struct InertiaKVAttention {
  static constexpr std::string_view kName = "InertiaKV";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr bool kWeighsValues = false;
};
/// VNorm: each head's attention times |v_i|_2 / mean_j |v_j|_2 of its KV head, before the mean over
/// heads. Wants observe_cache in every step, before or after the attention is observed.
struct InertiaKVValueNormAttention {
  static constexpr std::string_view kName = "InertiaKVValueNorm";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kValues;
  static constexpr bool kWeighsValues = true;
};

/// InertiaKV (arXiv 2609.03515, section 3): one running score per token, shared by all layers. With
/// s_l(i) the mean over query heads of the newest token's attention in layer l,
///
///   m = alpha m + (1 - alpha) s_l   for each eligible layer l, first to last.
///
/// Nothing happens inside a prompt; m starts at 0. Refresh steps are t = 1, 1 + r, 1 + 2r, ..; on
/// the others m stays and no attention is wanted. A new token enters at the mean of m. After each
/// decode step the B tokens with the largest m stay, the same for all layers and heads; the first
/// one cuts the cache from L0 + 1 to B, and a new token may go in its own step.
///
/// Left open by the paper: all layers are eligible; a new token enters at the mean on refresh steps
/// and under every aggregator too; the entropy is that of the mean row, natural, over ln L_t; equal
/// scores keep the older token. Tokens that are appended together are steps one after another, as
/// if fed singly without an eviction between. A further prompt keeps B; its tokens enter at the
/// mean, and the count of steps starts over behind it. Padding, which attention does not reach,
/// counts in that mean until the first cut removes it.
///
/// State: one float per cached token; during a step another one per eligible layer, for value norms
/// one per eligible layer and KV head, and the norms themselves.
template <class Variant>
class InertiaKVMethod {
 public:
  using Options = InertiaKVOptions;
  static constexpr std::string_view kName = Variant::kName;
  static constexpr Inputs kRequiredInputs = Variant::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  InertiaKVMethod(const Options& options, const CacheShape& shape)
      : options_(options),
        shape_(shape),
        layers_(eligible_layers(options.layers, shape.num_layers)),
        scores_(shape, options.aggregator, options.alpha),
        norms_(make_norms(shape, layers_)) {
    detail::require(options.alpha >= 0.0 && options.alpha < 1.0, kName, "alpha", options.alpha,
                    "must be in [0, 1)");
    detail::require(options.refresh_interval > 0, kName, "refresh_interval",
                    options.refresh_interval, "must be > 0");
  }

  [[nodiscard]] MaskScope scope() const noexcept { return MaskScope::kModel; }
  [[nodiscard]] Trigger trigger() const noexcept { return Trigger::kDecodeSteps; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return {.num_sink_tokens = options_.num_sink_tokens, .recent_window = options_.recent_window};
  }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    return {.budget = first_prompt_.frozen(options_.budget, sequence)};
  }
  [[nodiscard]] auto state() noexcept {
    if constexpr (Variant::kWeighsValues) {
      return std::tie(first_prompt_, scores_, step_, norms_);
    } else {
      return std::tie(first_prompt_, scores_, step_);
    }
  }

  void begin(const Sequence& sequence) noexcept { first_prompt_.begin(sequence); }

  /// The newest tokens from the first one on whose step is a refresh.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    if (rank_of(layer) == layers_.size())
      return 0;
    std::size_t wanted = decoded_in_step(sequence);
    while (wanted > 0 && !refreshes(sequence, sequence.length() - wanted))
      --wanted;
    return wanted;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    const std::size_t num_tokens = wanted_rows(sequence, rows.layer);
    if (step_.empty())
      step_.start(num_tokens, layers_.size(), Variant::kWeighsValues ? shape_.num_kv_heads : 1,
                  sequence.seq_len(0));
    const float share = 1.0F / static_cast<float>(shape_.num_q_heads);
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t position = rows.first_position + r;
      if (!refreshes(sequence, position))
        continue;
      step_.add(rows, r, num_tokens - (sequence.length() - position), rank_of(rows.layer),
                Variant::kWeighsValues ? rows.kv_head : 0, share, kernel);
    }
    return 0;  // counted when m takes the samples
  }
  std::size_t end_layer(std::size_t /*layer*/, const Sequence& sequence,
                        const kernels::KernelSet& kernel) {
    step_.complete_layer();
    return update(sequence, kernel);
  }
  std::size_t observe_cache(const ScoreInput& input) requires Variant::kWeighsValues {
    norms_.observe(input.view, input.kernel);
    return update(input.sequence, input.kernel);
  }

  void score(const ScoreInput& /*input*/, std::size_t /*lane*/, std::span<float> out) const {
    detail::require(!step_.complete(), kName, "observe_cache", 0,
                    "must be called in every step before select");
    std::copy(scores().begin(), scores().end(), out.begin());
  }

  /// [seq_len] m, by slot.
  [[nodiscard]] std::span<const float> scores() const noexcept { return scores_.values(); }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("alpha", options.alpha);
    visit("aggregator", options.aggregator);
    visit("per_step", options.per_step);
    visit("refresh_interval", options.refresh_interval);
    visit("score_free", options.score_free);
    visit("entropy_weighted", options.entropy_weighted);
    visit("layers", options.layers);
    visit("num_sink_tokens", options.num_sink_tokens);
    visit("recent_window", options.recent_window);
  }

 private:
  using Norms = std::conditional_t<Variant::kWeighsValues, ValueNorms, std::tuple<>>;

  [[nodiscard]] static Norms make_norms(const CacheShape& shape,
                                        const std::vector<std::size_t>& layers) {
    if constexpr (Variant::kWeighsValues) {
      return ValueNorms(shape, layers);
    } else {
      return {};
    }
  }
  // Ascending, each once.
  [[nodiscard]] static std::vector<std::size_t> eligible_layers(std::vector<std::size_t> layers,
                                                                std::size_t num_layers) {
    if (layers.empty()) {
      layers.resize(num_layers);
      std::iota(layers.begin(), layers.end(), std::size_t{0});
    }
    for (const std::size_t layer : layers)
      detail::require(layer < num_layers, kName, "layers", layer, "must be < num_layers");
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    return layers;
  }
  [[nodiscard]] std::size_t rank_of(std::size_t layer) const noexcept {
    return static_cast<std::size_t>(std::find(layers_.begin(), layers_.end(), layer) -
                                    layers_.begin());
  }
  // Of a decoded token; t - 1 is its distance from the newest prompt.
  [[nodiscard]] bool refreshes(const Sequence& sequence, std::size_t position) const noexcept {
    const std::size_t behind_prompt = position - sequence.prompt_end();
    return options_.score_free ? behind_prompt == 0
                               : behind_prompt % options_.refresh_interval == 0;
  }

  // Lets m take the samples of the step once everything they are made of is there.
  std::size_t update(const Sequence& sequence, const kernels::KernelSet& kernel) {
    if (!step_.complete())
      return 0;
    if constexpr (Variant::kWeighsValues) {
      if (!norms_.complete())
        return 0;
    }
    std::size_t non_finite = 0;
    for (std::size_t token = 0; token < step_.num_tokens(); ++token) {
      if (token > 0)
        scores_.enter(step_.visible(token) - 1);
      if (!refreshes(sequence, sequence.length() - step_.num_tokens() + token))
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
    if constexpr (Variant::kWeighsValues) {
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

  Options options_;
  CacheShape shape_;
  std::vector<std::size_t> layers_;
  FirstPrompt first_prompt_;
  RunningScores scores_;
  StepRows step_;
  Norms norms_;
};

// policy: InertiaKV | `m_i = 0.8 m_i + 0.2 mean_H a[H,new,i]`, layer after layer
//   | newest row of every r-th step (score-free: of the first) | - | model | while decoding
//   | 4 B; during a step 4 B per eligible layer more | layers x a pass over the row | 2609.03515
using InertiaKV = Policy<InertiaKVMethod<InertiaKVAttention>>;
// policy: InertiaKVValueNorm
//   | `m_i = 0.8 m_i + 0.2 mean_H a[H,new,i] norm(v_i) / mean_j norm(v_j)`, layer after layer
//   | newest row of every r-th step, V | - | model | while decoding
//   | 4 B + 4 B per KV head; during a step 4 B per KV head of eligible layers more
//   | layers x a pass over the row | 2609.03515
using InertiaKVValueNorm = Policy<InertiaKVMethod<InertiaKVValueNormAttention>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_INERTIAKV_HPP_
