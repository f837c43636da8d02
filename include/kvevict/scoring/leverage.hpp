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
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/row_moments.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <array>
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
///   leverage = x (X^T X + ridge I)^-1 x^T = |C^T x|^2,  C C^T = (X^T X + ridge I)^-1.
///
/// X is made once and kept until the factor C is known. Its sums are in double; a key that is not
/// finite is in none of them. Keys of any size have their leverage: X is scaled by powers of two,
/// which changes no digit, and the ridge is at least 2^-40 of the trace of X^T X, below which C
/// would make digits of the rounding of X.
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
    const std::size_t m = options_.sketch_dim;
    transposed_.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t row = i / m % shape.head_dim;
      transposed_[i - i % (shape.head_dim * m) + i % m * shape.head_dim + row] =
          (*options_.sketch)[i];
    }
    options_.sketch.reset();
  }

  /// Writes the leverage of the slots [first, first + out.size()) of a KV head; 0 where no token
  /// is. Uses scratch buffers kFirstFree to kLast, and all of doubles.
  void apply(const ScoreInput& input, const Lane& lane, std::size_t mask_lane, std::size_t kv_head,
             std::size_t first, std::span<float> out) const {
    const std::size_t dim = input.sequence.shape().head_dim;
    const std::size_t m = options_.sketch_dim;
    const RowMoments moments{m, zeros(input.scratch, kMean, m).data(),
                             zeros(input.scratch, kGram, m * m).data()};
    const std::span<float> sketched = input.scratch.floats(kSketched, out.size() * m);
    const std::span<float> products = input.scratch.floats(kProducts, RowMoments::num_floats(m));
    // Keys are taken about the mean of the first ones: X is about its own mean and does not change,
    // but a mean that is far from 0 takes no digits from it.
    const std::span<double> means = input.scratch.doubles(kMeans, dim + m);
    const std::span<double> origin = means.first(dim);
    const float* transposed = transposed_.data() + kv_head * dim * m;
    std::size_t count = 0;
    visit_keys(input, lane, mask_lane, first, out, [&](std::span<float> keys) {
      if (count == 0)
        find_mean(keys, origin);
      centre(origin, kKeyScale, keys);
      float* const x = sketched.data() + count * m;
      const std::size_t num_keys = keys.size() / dim;
      input.kernel.row_dots(
          keys.data(), num_keys, static_cast<std::ptrdiff_t>(dim),
          {transposed, static_cast<std::ptrdiff_t>(dim * sizeof(float)), m, dim, ElementType::kF32},
          x, static_cast<std::ptrdiff_t>(m));
      moments.add_rows(count, x, num_keys, input.kernel, products, means.subspan(dim, m));
      count += num_keys;
    });
    const std::span<float> factor = input.scratch.floats(kProducts, m * m);
    const double scale = find_factor({moments.products, m * m}, factor);
    centre({moments.mean, m}, scale, sketched.first(count * m));
    // Lengths in the place of the rows that they are of.
    for (std::size_t row = 0; row < count; row += kBlock) {
      const std::size_t num_rows = std::min(kBlock, count - row);
      std::array<float, kBlock> lengths;
      input.kernel.projected_norms(
          factor.data(),
          {sketched.data() + row * m, static_cast<std::ptrdiff_t>(m * sizeof(float)), num_rows, m,
           ElementType::kF32},
          lengths.data());
      std::copy_n(lengths.begin(), num_rows, sketched.data() + row);
    }
    const float* length = sketched.data();
    for (float& leverage : out) {
      if (leverage == kIsKey) {
        leverage = *length * *length;
        ++length;
      }
    }
  }

  static constexpr std::size_t kGathered = LaneScores::kFirstFree;
  static constexpr std::size_t kWidened = kGathered + 1;
  static constexpr std::size_t kKeys = kGathered + 2;
  static constexpr std::size_t kProducts = kGathered + 3;
  static constexpr std::size_t kSketched = kGathered + 4;
  static constexpr std::size_t kLast = kSketched;

 private:
  static constexpr std::size_t kBlock = RowMoments::kBlockRows;
  static constexpr float kIsKey = 1.0F;         // in the place of a score that is yet to come
  static constexpr double kKeyScale = 0x1p-20;  // with it no sketched key overflows

  // Buffers of doubles.
  static constexpr std::size_t kMean = 0;
  static constexpr std::size_t kGram = 1;
  static constexpr std::size_t kMeans = 2;
  static constexpr std::size_t kWalk = 3;

  [[nodiscard]] static std::span<double> zeros(Scratch& scratch, std::size_t buffer,
                                               std::size_t size) {
    const std::span<double> all = scratch.doubles(buffer, size);
    std::fill(all.begin(), all.end(), 0.0);
    return all;
  }
  // Calls visit(keys) with the finite keys as they were before rotary embedding, kBlock at a time.
  // Their slots get kIsKey, slots without one their score.
  template <class Visit>
  void visit_keys(const ScoreInput& input, const Lane& lane, std::size_t mask_lane,
                  std::size_t first, std::span<float> out, Visit&& visit) const {
    const std::size_t dim = input.sequence.shape().head_dim;
    const auto padding = static_cast<double>(input.sequence.first_prompt_padding());
    const std::span<float> keys = input.scratch.floats(kKeys, kBlock * dim);
    RotaryWalk walk(options_.rotary, 1.0,
                    input.scratch.doubles(kWalk, RotaryWalk::num_doubles(options_.rotary)));
    std::size_t count = 0;
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
          out[slot - first] = kIsKey;
          float* const key = keys.data() + count * dim;
          std::copy_n(row, dim, key);
          if (options_.rotary.num_pairs() > 0) {
            const auto position = static_cast<double>(input.sequence.position(mask_lane, slot));
            options_.rotary.turn_pairs(walk.back_from(position - padding), key);
          }
          if (++count == kBlock) {
            visit(keys);
            count = 0;
          }
        });
    if (count > 0)
      visit(keys.first(count * dim));
  }
  static void find_mean(std::span<const float> rows, std::span<double> mean) noexcept {
    std::fill(mean.begin(), mean.end(), 0.0);
    const std::size_t count = rows.size() / mean.size();
    const auto num_rows = static_cast<double>(count);
    for (std::size_t i = 0; i < rows.size(); i += mean.size()) {
      for (std::size_t c = 0; c < mean.size(); ++c)
        mean[c] += static_cast<double>(rows[i + c]) / num_rows;
    }
  }
  static void centre(std::span<const double> mean, double scale, std::span<float> rows) noexcept {
    for (std::size_t i = 0; i < rows.size(); i += mean.size()) {
      for (std::size_t c = 0; c < mean.size(); ++c)
        rows[i + c] = static_cast<float>((static_cast<double>(rows[i + c]) - mean[c]) * scale);
    }
  }
  // C of C C^T = (gram + ridge I)^-1 for rows that are scaled by what this returns; the lower
  // triangle of `gram`, of rows scaled by kKeyScale, is given, and overwritten.
  [[nodiscard]] double find_factor(std::span<double> gram, std::span<float> factor) const noexcept {
    const std::size_t m = options_.sketch_dim;
    kernels::mirror_lower(gram.data(), m);
    double trace = 0.0;
    for (std::size_t i = 0; i < m; ++i)
      trace += gram[i * m + i];
    // Large rows become about 1 long, since C would be too small for a float.
    const double scale = trace > 1.0 ? std::ldexp(1.0, -std::ilogb(trace) / 2) : 1.0;
    for (double& sum : gram)
      sum *= scale * scale;
    const double ridge = std::max(options_.ridge * (scale * kKeyScale) * (scale * kKeyScale),
                                  trace * scale * scale * 0x1p-40);
    for (std::size_t i = 0; i < m; ++i)
      gram[i * m + i] += ridge;
    kernels::inverse_cholesky(gram.data(), m, factor.data());
    return scale;
  }

  KeyLeverageOptions options_;
  std::vector<float> transposed_;  // the sketch [num_kv_heads, sketch_dim, head_dim]
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
