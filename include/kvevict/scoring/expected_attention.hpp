#ifndef KVEVICT_SCORING_EXPECTED_ATTENTION_HPP_
#define KVEVICT_SCORING_EXPECTED_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/scoring/future_queries.hpp"
#include "kvevict/scoring/future_query_signal.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/logit_row.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// The attention that queries to come will give, if they are normally distributed (Expected
/// Attention, arXiv 2510.00636): softmax over the slots behind the sinks of
///
///   z(i) = m k_i / sqrt(d) + k_i^T S k_i / (2 d),
///
/// the logarithm of the mean of exp(q k_i / sqrt(d)) over q ~ N(m, S). With S = C C^T the second
/// term is |C^T k_i|^2 / (2 d).
template <bool kGiven>
class ExpectedAttentionRows : public FutureQuerySignal<kGiven> {
  using Base = FutureQuerySignal<kGiven>;

 public:
  static constexpr Inputs kRequiredInputs =
      kGiven ? Inputs::kKeys : Inputs::kKeys | Inputs::kAttention;

  ExpectedAttentionRows(std::string_view where, const CacheShape& shape,
                        FutureQueriesOptions options)
      : Base(where, shape, options), with_covariance_(options.with_covariance) {}

  void score(const ScoreInput& input, LaneScores& scores) const {
    Base::start(input, scores);
    const CacheShape& shape = input.sequence.shape();
    const std::size_t dim = shape.head_dim;
    const std::size_t group = shape.group_size();
    const std::size_t last = scores.first() + scores.count();
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const Lane lane = scores.cache(head);
      static_cast<void>(Base::dots_with_mean(input, scores, head));
      for (std::size_t g = 0; g < group; ++g) {
        const std::span<float> logits = scores.array(head * group + g);
        input.kernel.scale(scale, logits.size(), logits.data());
        if (with_covariance_) {
          const std::span<float> factor = input.scratch.floats(Base::kFactor, dim * dim);
          Base::queries().covariance_factor(input.sequence, scores.layer(head),
                                            scores.kv_head(head) * group + g, input.scratch,
                                            factor);
          const std::span<float> norms = scores.spare();
          projected_norms(lane.keys, dim, scores.first(), last, factor, input.kernel,
                          input.scratch.vector(Base::kGathered), norms);
          for (std::size_t i = 0; i < logits.size(); ++i)
            logits[i] += 0.5F * scale * scale * norms[i] * norms[i];
        }
        const double sum =
            take_exponentials(lane, scores.first(), scores.seq_len(), input.kernel, logits);
        if (sum > 0.0)
          input.kernel.scale(static_cast<float>(1.0 / sum), logits.size(), logits.data());
      }
    }
  }

 private:
  bool with_covariance_;
};

/// What a value adds to the volume that the cache spans, weighed by the attention that it may
/// expect (CapKV, arXiv 2604.25975): for each query head, with m its mean query to come,
///
///   w_i = exp(tau cos(m, k_i) - max),  A = I + sum_i (w_i + epsilon) v_i v_i^T,
///   score = w_i v_i^T A^-1 v_i,
///
/// the first-order gain of log det A. With A^-1 = C C^T the form is |C^T v_i|^2.
template <bool kGiven>
class CapacityGain : public FutureQuerySignal<kGiven> {
  using Base = FutureQuerySignal<kGiven>;

 public:
  static constexpr Inputs kRequiredInputs =
      kGiven ? Inputs::kKeys | Inputs::kValues
             : Inputs::kKeys | Inputs::kValues | Inputs::kAttention;

  CapacityGain(std::string_view where, const CacheShape& shape, FutureQueriesOptions options,
               float tau, float epsilon)
      : Base(where, shape, options), tau_(tau), epsilon_(epsilon) {}

  void score(const ScoreInput& input, LaneScores& scores) const {
    Base::start(input, scores);
    const std::size_t group = input.sequence.shape().group_size();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<const float> means = Base::dots_with_mean(input, scores, head);
      for (std::size_t g = 0; g < group; ++g) {
        const std::size_t dim = input.sequence.shape().head_dim;
        const std::span<float> weights = scores.array(head * group + g);
        cosines(input, scores, head, means.subspan(g * dim, dim), weights);
        input.kernel.scale(tau_, weights.size(), weights.data());
        take_exponentials(scores.cache(head), scores.first(), scores.seq_len(), input.kernel,
                          weights);
        times_gain(input, scores, head, weights);
      }
    }
  }

 private:
  // Dot products become cosines; 0 where a vector is.
  static void cosines(const ScoreInput& input, const LaneScores& scores, std::size_t head,
                      std::span<const float> mean, std::span<float> dots) {
    const std::span<float> norms = scores.spare();
    row_norms(scores.cache(head).keys, mean.size(), scores.first(), scores.first() + scores.count(),
              input.kernel, input.scratch.vector(Base::kGathered), norms);
    double length = 0.0;
    for (const float x : mean)
      length += static_cast<double>(x) * static_cast<double>(x);
    length = std::sqrt(length);
    for (std::size_t i = 0; i < dots.size(); ++i) {
      const double product = length * static_cast<double>(norms[i]);
      dots[i] = product == 0.0 ? 0.0F : static_cast<float>(static_cast<double>(dots[i]) / product);
    }
  }
  void times_gain(const ScoreInput& input, const LaneScores& scores, std::size_t head,
                  std::span<float> weights) const {
    const Lane lane = scores.cache(head);
    const std::size_t dim = input.sequence.shape().value_size();
    const std::size_t last = scores.first() + scores.count();
    const std::span<double> matrix =
        input.scratch.doubles(FutureQueries::kFirstFreeDoubles, dim * dim);
    std::fill(matrix.begin(), matrix.end(), 0.0);
    for_each_row(lane.values, dim, scores.first(), last, input.kernel,
                 input.scratch.vector(Base::kGathered), input.scratch.vector(Base::kWidened),
                 [&](const float* row, std::size_t slot) {
                   const bool valid = lane.has_token(slot);
                   // One value that is not finite would spoil all others (rule R4).
                   if (!valid || !std::isfinite(input.kernel.sum(row, dim)))
                     return;
                   const float weight = weights[slot - scores.first()] + epsilon_;
                   kernels::add_outer_product(static_cast<double>(weight), row, dim, matrix.data());
                 });
    kernels::mirror_lower(matrix.data(), dim);
    for (std::size_t i = 0; i < dim; ++i)
      matrix[i * dim + i] += 1.0;
    const std::span<float> factor = input.scratch.floats(Base::kFactor, dim * dim);
    kernels::inverse_cholesky(matrix.data(), dim, factor.data());
    const std::span<float> norms = scores.spare();
    projected_norms(lane.values, dim, scores.first(), last, factor, input.kernel,
                    input.scratch.vector(Base::kGathered), norms);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool valid = lane.has_token(scores.first() + i);
      weights[i] = valid ? weights[i] * norms[i] * norms[i] : 0.0F;
    }
  }

  float tau_;
  float epsilon_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_EXPECTED_ATTENTION_HPP_
