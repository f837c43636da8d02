#ifndef KVEVICT_SCORING_LEVERAGE_HPP_
#define KVEVICT_SCORING_LEVERAGE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numbers>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// A random projection of keys, [num_kv_heads, head_dim, sketch_dim], shared by all layers. Entries
/// are independent, of variance 1 / sketch_dim.
using KeySketch = std::vector<float>;

/// A Gaussian sketch from a seed: the same numbers on every machine.
[[nodiscard]] inline KeySketch make_key_sketch(const CacheShape& shape, std::size_t sketch_dim,
                                               std::uint64_t seed) {
  // splitmix64 and Box-Muller: the standard's distributions differ between implementations.
  const auto uniform = [&] {
    seed += 0x9E3779B97F4A7C15U;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
    return (static_cast<double>(z >> 11U) + 0.5) * 0x1.0p-53;
  };
  KeySketch sketch(shape.num_kv_heads * shape.head_dim * sketch_dim);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(sketch_dim));
  for (float& entry : sketch) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    entry = static_cast<float>(deviation * radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }
  return sketch;
}

struct KeyLeverageOptions {
  RotaryEmbedding rotary = {};  ///< keys are turned back by it; none: they are read as cached
  std::size_t sketch_dim = 48;  ///< columns of the sketch
  std::uint64_t seed = 0;       ///< of the sketch, where none is given
  double ridge = 0.01;          ///< added to the diagonal of the Gram matrix
  std::shared_ptr<const KeySketch> sketch = nullptr;
};

/// Approximate statistical leverage of keys before rotary embedding (Compactor, arXiv 2507.08143):
/// with K the keys of the slots [first, last) of a lane, x = (k - mean) sketch and X all of them,
///
///   leverage = x (X^T X + ridge I)^-1 x^T.
///
/// The form is that of (k - mean) with M = sketch (..)^-1 sketch^T = C C^T, which is made once per
/// lane: |C^T (k - mean)|^2. The sums are in double; a key that is not finite is in none of them.
class KeyLeverage {
 public:
  /// Throws InvalidArgument, naming `where` and the option.
  KeyLeverage(std::string_view where, const CacheShape& shape, KeyLeverageOptions options)
      : options_(std::move(options)) {
    options_.rotary.check(where, shape.head_dim);
    detail::require(options_.sketch_dim > 0, where, "sketch_dim", options_.sketch_dim,
                    "must be > 0");
    detail::require(options_.ridge > 0.0, where, "ridge", options_.ridge, "must be > 0");
    const std::size_t size = shape.num_kv_heads * shape.head_dim * options_.sketch_dim;
    if (options_.sketch == nullptr) {
      options_.sketch = std::make_shared<const KeySketch>(
          make_key_sketch(shape, options_.sketch_dim, options_.seed));
    }
    detail::require(options_.sketch->size() == size, where, "sketch.size()",
                    options_.sketch->size(), "must be num_kv_heads * head_dim * sketch_dim");
  }

  /// Writes the leverage of the slots [first, first + out.size()) of a KV head; 0 where no token
  /// is. Uses scratch buffers kFirstFree to kFirstFree + 3, and all of doubles.
  void apply(const ScoreInput& input, const Lane& lane, std::size_t mask_lane, std::size_t kv_head,
             std::size_t first, std::span<float> out) const {
    const std::size_t dim = input.sequence.shape().head_dim;
    const std::span<double> mean = zeros(input.scratch, kMean, dim);
    std::size_t count = 0;
    visit_keys(input, lane, mask_lane, first, out, [&](const float* key, std::size_t) {
      for (std::size_t c = 0; c < dim; ++c)
        mean[c] += static_cast<double>(key[c]);
      ++count;
    });
    for (double& x : mean)
      x /= static_cast<double>(std::max<std::size_t>(1, count));
    const std::span<double> scatter = zeros(input.scratch, kScatter, dim * dim);
    visit_keys(input, lane, mask_lane, first, out, [&](float* key, std::size_t) {
      centre(mean, key);
      kernels::add_outer_product(1.0, key, dim, scatter.data());
    });
    kernels::mirror_lower(scatter.data(), dim);
    const std::span<float> factor = input.scratch.floats(kFactor, dim * dim);
    find_factor(kv_head, dim, input.scratch, scatter, factor);
    visit_keys(input, lane, mask_lane, first, out, [&](float* key, std::size_t slot) {
      centre(mean, key);
      float norm = 0.0F;
      input.kernel.projected_norms(factor.data(), {key, 0, 1, dim, ElementType::kF32}, &norm);
      out[slot - first] = norm * norm;
    });
  }

  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kWidened = kGathered + 1;
  static constexpr std::size_t kFactor = kGathered + 2;
  static constexpr std::size_t kKey = kGathered + 3;

 private:
  // Buffers of doubles.
  static constexpr std::size_t kMean = 0;
  static constexpr std::size_t kScatter = 1;
  static constexpr std::size_t kProduct = 2;
  static constexpr std::size_t kGram = 3;

  [[nodiscard]] static std::span<double> zeros(Scratch& scratch, std::size_t buffer,
                                               std::size_t size) {
    const std::span<double> all = scratch.doubles(buffer, size);
    std::fill(all.begin(), all.end(), 0.0);
    return all;
  }
  // Calls visit(key, slot) with every finite key as it was before rotary embedding; a slot without
  // one gets its score here.
  template <class Visit>
  void visit_keys(const ScoreInput& input, const Lane& lane, std::size_t mask_lane,
                  std::size_t first, std::span<float> out, Visit&& visit) const {
    const std::size_t dim = input.sequence.shape().head_dim;
    float* const key = input.scratch.floats(kKey, dim).data();
    for_each_row(
        lane.keys, dim, first, first + out.size(), input.kernel, input.scratch.vector(kGathered),
        input.scratch.vector(kWidened), [&](const float* row, std::size_t slot) {
          if (!lane.has_token(slot)) {
            out[slot - first] = 0.0F;
            return;
          }
          if (!std::isfinite(input.kernel.sum(row, dim))) {
            out[slot - first] = std::numeric_limits<float>::quiet_NaN();
            return;
          }
          std::copy_n(row, dim, key);
          const auto position = static_cast<double>(input.sequence.position(mask_lane, slot));
          const auto padding = static_cast<double>(input.sequence.first_prompt_padding());
          options_.rotary.turn(padding - position, key);
          visit(key, slot);
        });
  }
  static void centre(std::span<const double> mean, float* key) noexcept {
    for (std::size_t c = 0; c < mean.size(); ++c)
      key[c] = static_cast<float>(static_cast<double>(key[c]) - mean[c]);
  }
  // C of C C^T = S (S^T G S + ridge I)^-1 S^T, G the scatter of the keys about their mean, which is
  // overwritten.
  void find_factor(std::size_t kv_head, std::size_t dim, Scratch& scratch,
                   std::span<double> scatter, std::span<float> factor) const {
    const std::size_t m = options_.sketch_dim;
    const float* sketch = options_.sketch->data() + kv_head * dim * m;
    std::span<double> product = zeros(scratch, kProduct, dim * m);  // G S
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t c = 0; c < dim; ++c) {
        for (std::size_t j = 0; j < m; ++j)
          product[i * m + j] += scatter[i * dim + c] * static_cast<double>(sketch[c * m + j]);
      }
    }
    const std::span<double> gram = zeros(scratch, kGram, m * m);  // S^T G S
    for (std::size_t c = 0; c < dim; ++c) {
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < m; ++j)
          gram[i * m + j] += static_cast<double>(sketch[c * m + i]) * product[c * m + j];
      }
    }
    for (std::size_t i = 0; i < m; ++i)
      gram[i * m + i] += options_.ridge;
    kernels::invert_definite(gram.data(), m);
    product = zeros(scratch, kProduct, dim * m);  // S (..)^-1
    for (std::size_t c = 0; c < dim; ++c) {
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < m; ++j)
          product[c * m + j] += static_cast<double>(sketch[c * m + i]) * gram[i * m + j];
      }
    }
    std::fill(scatter.begin(), scatter.end(), 0.0);
    for (std::size_t c = 0; c < dim; ++c) {
      for (std::size_t d = 0; d < dim; ++d) {
        for (std::size_t j = 0; j < m; ++j)
          scatter[c * dim + d] += product[c * m + j] * static_cast<double>(sketch[d * m + j]);
      }
    }
    kernels::semidefinite_cholesky(scatter.data(), dim, factor.data());
  }

  KeyLeverageOptions options_;
};

/// KeyLeverage of all that is cached, as a signal: [1 per KV head, seq_len].
class LeverageOfKeys {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  explicit LeverageOfKeys(KeyLeverage leverage) : leverage_(std::move(leverage)) {}

  [[nodiscard]] std::tuple<> state() const noexcept { return {}; }
  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      leverage_.apply(input, scores.cache(head), scores.lane(), scores.kv_head(head), 0,
                      scores.array(head));
    }
  }

 private:
  KeyLeverage leverage_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_LEVERAGE_HPP_
