#ifndef KVEVICT_SCORING_QUERY_CENTRES_HPP_
#define KVEVICT_SCORING_QUERY_CENTRES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/future_query_signal.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_blocks.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// How the scores at several distances become one.
enum class OffsetReduce : std::uint8_t {
  kMean,  ///< one query stands for all distances
  kMax,   ///< a query for each, and a pass over the keys
};

[[nodiscard]] constexpr auto enum_names(OffsetReduce /*type*/) noexcept {
  return std::array<std::pair<std::string_view, OffsetReduce>, 2>{
      {{"mean", OffsetReduce::kMean}, {"max", OffsetReduce::kMax}}};
}

/// What the length of a key's bands counts for.
enum class BandWeight : std::uint8_t {
  kResidual,  ///< a_f - |m_f|: what the mean query leaves out
  kWhole,     ///< a_f: the ablation that does not ask how far queries agree
  kNone,      ///< nothing
};

[[nodiscard]] constexpr auto enum_names(BandWeight /*type*/) noexcept {
  return std::array<std::pair<std::string_view, BandWeight>, 3>{
      {{"residual", BandWeight::kResidual},
       {"whole", BandWeight::kWhole},
       {"none", BandWeight::kNone}}};
}

struct QueryCentreOptions {
  RotaryEmbedding rotary = {};
  std::size_t largest_offset = 65536;  ///< distances are 1, 2, 4, .. up to it
  OffsetReduce offset_reduce = OffsetReduce::kMean;
  bool use_distance = true;  ///< false: band lengths alone
  BandWeight band_weight = BandWeight::kResidual;
  std::size_t min_queries = 64;  ///< until so many were seen, the newest tokens score best
  std::size_t first_layer = 0;   ///< earlier ones score 0 and are not looked at
  std::shared_ptr<const QueryStatistics> statistics = nullptr;
};

/// What a key is worth to queries that lie around their mean (TriAttention): [query heads,
/// seq_len]. With m_f the mean of band f of a head's queries before rotary embedding and a_f the
/// mean of its length, both of unscaled queries, s the model's attention scaling, w_f the
/// frequencies, t the position of the next token and k~_f band f of a key as it is cached,
///
///   S(k) = sum_f Re( u_f conj(k~_f) ) + sum_f c_f |k~_f|,
///   u_f  = s m_f M_f e^(i w_f t),  M_f = mean over the distances o of e^(i w_f o),
///   c_f  = s (a_f - |m_f|).
///
/// This is the published form, the mean over o of s^2 sum_f |m_f| |k_f| cos(w_f (t - p + o) +
/// arg m_f - arg k_f) and s^2 sum_f (a_f - |m_f|) |k_f|, exactly: with k~_f = s k_f e^(i w_f p) the
/// key's position p cancels. So a key costs a dot product and head_dim / 2 square roots, no cosine,
/// and its position need not be known. Channels that do not turn are left out. Phases are in
/// double: in float they err by up to 3e-4 of the largest score.
/// @note  O(seq_len * head_dim) per query head.
template <bool kGiven>
class QueryCentres : public FutureQuerySignal<kGiven> {
  using Base = FutureQuerySignal<kGiven>;

 public:
  static constexpr Inputs kRequiredInputs =
      kGiven ? Inputs::kKeys : Inputs::kKeys | Inputs::kAttention;

  /// Throws InvalidArgument, naming `where` and the option.
  QueryCentres(std::string_view where, const CacheShape& shape, const QueryCentreOptions& options)
      : Base((check(where, options), where), shape,
             {.rotary = options.rotary,
              .num_future = options.largest_offset,
              .num_sink_tokens = 0,
              .with_covariance = false,
              .offsets = FutureOffsets::kPowersOfTwo,
              .rotated_only = true,
              .with_band_lengths = true,
              .statistics = options.statistics}),
        offset_reduce_(options.offset_reduce),
        use_distance_(options.use_distance),
        band_weight_(options.band_weight),
        min_queries_(kGiven ? 1 : options.min_queries),
        first_layer_(options.first_layer) {}

  void score(const ScoreInput& input, LaneScores& scores) const {
    Base::start(input, scores);
    const std::size_t group = input.sequence.shape().group_size();
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::size_t layer = scores.layer(head);
      if (layer < first_layer_) {
        for (std::size_t g = 0; g < group; ++g)
          std::fill_n(scores.array(head * group + g).begin(), scores.count(), 0.0F);
        continue;
      }
      const bool one_query = use_distance_ && offset_reduce_ == OffsetReduce::kMean;
      if (use_distance_ && !one_query)
        largest_dots(input, scores, head);
      if (band_weight_ != BandWeight::kNone) {
        score_bands(input, scores, head, one_query);
      } else if (one_query) {
        static_cast<void>(Base::dots_with_mean(input, scores, head));
      }
      for (std::size_t g = 0; g < group; ++g) {
        const std::size_t seen =
            Base::queries().statistics().count(layer, scores.kv_head(head) * group + g);
        if (seen < min_queries_)
          newest_first(scores.array(head * group + g));
      }
    }
  }

 private:
  static void check(std::string_view where, const QueryCentreOptions& options) {
    detail::require(options.rotary.num_pairs() > 0, where, "rotary.inv_freq.size()", 0,
                    "must be > 0: without rotary embedding there is no distance to score");
    detail::require(options.largest_offset > 0, where, "largest_offset", options.largest_offset,
                    "must be > 0");
    detail::require(options.use_distance || options.band_weight != BandWeight::kNone, where,
                    "use_distance", 0, "must be true where band lengths do not count");
  }
  static void newest_first(std::span<float> array) noexcept {
    for (std::size_t i = 0; i < array.size(); ++i)
      array[i] = static_cast<float>(i);
  }
  void largest_dots(const ScoreInput& input, LaneScores& scores, std::size_t head) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t dim = shape.head_dim;
    const std::size_t group = shape.group_size();
    const std::span<float> means = input.scratch.floats(Base::kMeans, group * dim);
    const std::span<float> dots = input.scratch.floats(Base::kFactor, group * scores.count());
    bool first = true;
    Base::queries().for_each_offset([&](std::size_t offset) {
      for (std::size_t g = 0; g < group; ++g) {
        Base::queries().mean_at(input.sequence, offset, scores.layer(head),
                                scores.kv_head(head) * group + g, input.scratch,
                                means.subspan(g * dim, dim));
      }
      Base::dots_with(input, scores, head, means, dots.data());
      for (std::size_t g = 0; g < group; ++g) {
        const std::span<float> largest = scores.array(head * group + g);
        const std::span<const float> now = dots.subspan(g * scores.count(), scores.count());
        for (std::size_t i = 0; i < largest.size(); ++i)
          largest[i] = first ? now[i] : std::max(largest[i], now[i]);
      }
      first = false;
    });
  }
  // c |k~| and, `with_mean`, u k~, in one pass over the keys; otherwise added to the largest dots
  // where distance counts.
  void score_bands(const ScoreInput& input, LaneScores& scores, std::size_t head,
                   bool with_mean) const {
    const CacheShape& shape = input.sequence.shape();
    const RotaryEmbedding& rotary = Base::queries().rotary();
    const std::size_t dim = shape.head_dim;
    const std::size_t num_bands = rotary.num_pairs();
    const std::size_t group = shape.group_size();
    // A mean and weights for each query head. Of the mean the channels that turn.
    const std::size_t width = 3 * num_bands;
    const std::span<float> vectors = input.scratch.floats(Base::kMeans, group * width + dim);
    const std::span<float> mean = vectors.last(dim);
    for (std::size_t g = 0; g < group; ++g) {
      const std::size_t layer = scores.layer(head);
      const std::size_t q_head = scores.kv_head(head) * group + g;
      const std::span<float> vector = vectors.subspan(g * width, width);
      std::fill(vector.begin(), vector.end(), 0.0F);
      if (with_mean) {
        Base::queries().mean(input.sequence, layer, q_head, input.scratch, mean);
        std::copy_n(mean.begin(), 2 * num_bands, vector.begin());
      }
      band_weights(layer, q_head, vector.last(num_bands));
    }
    const bool adds = use_distance_ && !with_mean;
    const std::size_t count = scores.count();
    const std::span<float> arrays(scores.array(head * group).data(), group * count);
    const std::span<float> sums =
        adds ? input.scratch.floats(Base::kFactor, arrays.size()) : arrays;
    const bool interleaved = rotary.pairing == RotaryPairing::kInterleaved;
    for_each_row_block(
        scores.cache(head).keys, dim, scores.first(), scores.first() + count, input.kernel,
        input.scratch.vector(Base::kGathered), [&](kernels::RowBlock keys, std::size_t first_slot) {
          keys.dim = 2 * num_bands;
          input.kernel.band_dots(vectors.data(), group, static_cast<std::ptrdiff_t>(width), keys,
                                 interleaved, sums.data() + (first_slot - scores.first()),
                                 static_cast<std::ptrdiff_t>(count));
        });
    // Not kernel.add, which would leave out what is not finite.
    for (std::size_t i = 0; adds && i < arrays.size(); ++i)
      arrays[i] += sums[i];
  }
  void band_weights(std::size_t layer, std::size_t q_head, std::span<float> weights) const {
    const RotaryEmbedding& rotary = Base::queries().rotary();
    const std::span<const double> mean = Base::queries().statistics().mean(layer, q_head);
    const std::span<const double> lengths =
        Base::queries().statistics().band_lengths(layer, q_head);
    for (std::size_t f = 0; f < weights.size(); ++f) {
      const auto [c, d] = rotary.channels(f);
      const double explained =
          band_weight_ == BandWeight::kResidual ? std::hypot(mean[c], mean[d]) : 0.0;
      weights[f] = static_cast<float>(rotary.attention_scaling * (lengths[f] - explained));
    }
  }

  OffsetReduce offset_reduce_;
  bool use_distance_;
  BandWeight band_weight_;
  std::size_t min_queries_;
  std::size_t first_layer_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_QUERY_CENTRES_HPP_
