#include "kvevict/scoring/lag_deviation.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace kvevict {
namespace {

using views::ContiguousView;
using views::Tensor;

/// Keys [layers, heads, tokens, dim], values the same times two.
struct Cache {
  CacheShape shape;
  std::size_t tokens;
  std::vector<float> keys;
  std::vector<float> values;

  Cache(const CacheShape& s, std::size_t n, std::vector<float> k)
      : shape(s), tokens(n), keys(std::move(k)), values(keys) {
    for (float& value : values)
      value *= 2.0F;
  }
  [[nodiscard]] ContiguousView view() {
    return {
        shape,
        Tensor::hnd(keys.data(), ElementType::kF32, tokens, shape.num_kv_heads, shape.head_dim),
        Tensor::hnd(values.data(), ElementType::kF32, tokens, shape.num_kv_heads, shape.head_dim),
        tokens};
  }
};

CacheShape shape_of(std::size_t layers, std::size_t heads, std::size_t dim) {
  return {.num_layers = layers, .num_q_heads = heads, .num_kv_heads = heads, .head_dim = dim};
}

std::vector<float> deviations(const ContiguousView& view, std::size_t chunk_len,
                              KvPart part = KvPart::kKeys, std::size_t first = 0) {
  const ViewRef ref(view);
  Scratch scratch;
  std::vector<float> out(view.lane(0, 0).seq_len, 0.0F);
  LagDeviation(ref, chunk_len, kernels::best(), scratch).add(part, first, out);
  return out;
}

Cache random_cache(const CacheShape& shape, std::size_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value;
  std::vector<float> keys(shape.num_layers * shape.num_kv_heads * tokens * shape.head_dim);
  for (float& key : keys)
    key = value(random);
  return {shape, tokens, keys};
}

/// The definition, in double.
std::vector<double> reference(const Cache& cache, std::size_t chunk_len) {
  const CacheShape& s = cache.shape;
  const std::size_t n = cache.tokens;
  const std::size_t d = s.head_dim;
  std::vector<double> out(n, 0.0);
  for (std::size_t h = 0; h < s.num_kv_heads; ++h) {
    const auto mean = [&](std::size_t t, std::size_t c) {
      double sum = 0;
      for (std::size_t l = 0; l < s.num_layers; ++l) {
        sum += static_cast<double>(cache.keys[((l * s.num_kv_heads + h) * n + t) * d + c]);
      }
      return sum / static_cast<double>(s.num_layers);
    };
    for (std::size_t t = 0; t < n; ++t) {
      const std::size_t chunk = t / chunk_len;
      std::vector<double> scaled;
      for (std::size_t c = 0; c < d; ++c) {
        double x = mean(t, c);
        if (chunk > 0) {
          double low = mean((chunk - 1) * chunk_len, c);
          double high = low;
          for (std::size_t r = (chunk - 1) * chunk_len; r < chunk * chunk_len; ++r) {
            low = std::min(low, mean(r, c));
            high = std::max(high, mean(r, c));
          }
          x = (x - low) / (high - low + 1e-9);
        }
        scaled.push_back(x);
      }
      double centre = 0;
      for (const double x : scaled)
        centre += x / static_cast<double>(d);
      double squares = 0;
      for (const double x : scaled)
        squares += (x - centre) * (x - centre);
      out[t] +=
          std::sqrt(squares / static_cast<double>(d - 1)) / static_cast<double>(s.num_kv_heads);
    }
  }
  return out;
}

// Reference values of the EpiKV paper's notes: one head, three channels, chunks of two.
TEST(LagDeviation, MeetsHandWorkedValues) {
  Cache cache(shape_of(1, 1, 3), 4, {0, 1, 2, 2, 3, 0, 1, 3, 1, 4, 0, 2});
  // Chunk 0 raw: (0, 1, 2) deviates by 1. Its ranges are [0,2], [1,3], [0,2], so token 2 becomes
  // (.5, 1, .5), deviation 1/sqrt(12), and token 3 (2, -.5, 1).
  const std::vector<float> expected = {1.0F, 1.527525232F, .288675134F, 1.258305739F};
  const std::vector<float> actual = deviations(cache.view(), 2);
  for (std::size_t t = 0; t < 4; ++t)
    EXPECT_NEAR(actual[t], expected[t], 1e-6) << t;
}

// Case O-13, sample deviation: a constant channel becomes 0 and still counts.
TEST(LagDeviation, ConstantChannelCountsAsZero) {
  Cache cache(shape_of(1, 1, 2), 4, {1, 0, 1, 10, 1, 5, 1, 7});
  const std::vector<float> actual = deviations(cache.view(), 2);
  EXPECT_NEAR(actual[2], .353553F, 1e-6);  // (0, .5)
  EXPECT_NEAR(actual[3], .494975F, 1e-6);  // (0, .7)
}

// The same where the channel leaves the constant: 1e-9 in the divisor would give 1e9.
TEST(LagDeviation, ConstantChannelDoesNotDecideAlone) {
  Cache cache(shape_of(1, 1, 2), 4, {1, 0, 1, 10, 3, 5, 1, 7});
  EXPECT_NEAR(deviations(cache.view(), 2)[2], .353553F, 1e-6);
}

TEST(LagDeviation, EqualsTheDefinition) {
  for (const std::size_t dim : {2U, 3U, 80U, 129U}) {
    for (const std::size_t heads : {1U, 2U}) {
      Cache cache = random_cache(shape_of(3, heads, dim), 37, 7);
      const std::vector<double> expected = reference(cache, 8);
      const std::vector<float> actual = deviations(cache.view(), 8);
      for (std::size_t t = 0; t < 37; ++t) {
        EXPECT_NEAR(actual[t], expected[t], 2e-5 * (1 + expected[t])) << dim << " " << t;
      }
    }
  }
}

TEST(LagDeviation, OfOneChannelIsZero) {
  Cache cache = random_cache(shape_of(2, 1, 1), 20, 3);
  EXPECT_EQ(deviations(cache.view(), 4), std::vector<float>(20, 0.0F));
}

TEST(LagDeviation, AddsToWhatIsThere) {
  Cache cache = random_cache(shape_of(2, 2, 4), 20, 4);
  const auto view = cache.view();
  const ViewRef ref(view);
  Scratch scratch;
  std::vector<float> out(20, 1.0F);
  LagDeviation deviation(ref, 8, kernels::best(), scratch);
  deviation.add(KvPart::kKeys, 0, out);
  deviation.add(KvPart::kValues, 0, out);
  const std::vector<float> keys = deviations(view, 8);
  const std::vector<float> values = deviations(view, 8, KvPart::kValues);
  for (std::size_t t = 0; t < 20; ++t)
    EXPECT_NEAR(out[t], 1.0F + keys[t] + values[t], 1e-5);
  EXPECT_NEAR(values[0], 2.0F * keys[0], 1e-5);  // raw in the first chunk
  EXPECT_NEAR(values[9], keys[9], 1e-5);         // scaling is gone in the others
}

// What the frozen mode rests on.
TEST(LagDeviation, LaterChunksCanBeScoredAlone) {
  Cache cache = random_cache(shape_of(2, 2, 4), 50, 5);
  const std::vector<float> all = deviations(cache.view(), 8);
  for (std::size_t first = 0; first <= 50; ++first) {
    const std::vector<float> some = deviations(cache.view(), 8, KvPart::kKeys, first);
    for (std::size_t t = 0; t < 50; ++t) {
      const bool scored = (t / 8 + 1) * 8 > first && first < 50;
      EXPECT_EQ(some[t], scored ? all[t] : 0.0F) << first << " " << t;
    }
  }
}

// Rule R9: a padded cache scores its tokens as if the padding were not there, whatever it holds.
TEST(LagDeviation, SkipsSlotsThatAreNotValid) {
  const CacheShape shape = shape_of(2, 1, 3);
  Cache dense = random_cache(shape, 20, 6);
  Cache padded(shape, 27, std::vector<float>(2 * 27 * 3, std::numeric_limits<float>::quiet_NaN()));
  std::vector<std::uint8_t> valid(27, 1);
  std::vector<std::size_t> slots;
  for (std::size_t s = 0; s < 27; ++s) {
    valid[s] = s < 3 || (s >= 10 && s < 14) ? 0 : 1;
    if (valid[s] != 0)
      slots.push_back(s);
  }
  for (std::size_t l = 0; l < 2; ++l) {
    for (std::size_t t = 0; t < 20; ++t) {
      std::copy_n(dense.keys.begin() + static_cast<std::ptrdiff_t>((l * 20 + t) * 3), 3,
                  padded.keys.begin() + static_cast<std::ptrdiff_t>((l * 27 + slots[t]) * 3));
    }
  }
  ContiguousView view = padded.view();
  view.set_valid(valid);
  const std::vector<float> expected = deviations(dense.view(), 4);
  const std::vector<float> actual = deviations(view, 4);
  for (std::size_t t = 0; t < 20; ++t)
    EXPECT_EQ(actual[slots[t]], expected[t]) << t;
}

// A NaN in one layer is a NaN of the mean: 0 in its own row, and passed over as reference.
TEST(LagDeviation, NonFiniteValuesCountAsZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Two layers; token 0's first channel is NaN in the second layer.
  Cache cache(shape_of(2, 1, 2), 4,
              {0, 0, 4, 2, 1, 1, 2, 1,      //
               nan, 0, 4, 2, 1, 1, 2, 1});  //
  const std::vector<float> actual = deviations(cache.view(), 2);
  for (const float value : actual)
    EXPECT_TRUE(std::isfinite(value));
  EXPECT_EQ(actual[0], 0.0F);  // (0, 0)
  // Channel 0 of chunk 0 is {4}: constant, so 0; channel 1 is [0, 2]: (0, .5).
  EXPECT_NEAR(actual[2], .353553F, 1e-6);
}

TEST(LagDeviation, DoesNotDependOnTheLayout) {
  const CacheShape shape = shape_of(2, 2, 5);
  Cache cache = random_cache(shape, 21, 8);
  std::vector<float> transposed(cache.keys.size());
  for (std::size_t row = 0; row < 4; ++row) {  // layer and head
    for (std::size_t t = 0; t < 21; ++t) {
      for (std::size_t c = 0; c < 5; ++c) {
        transposed[(row * 5 + c) * 21 + t] = cache.keys[(row * 21 + t) * 5 + c];
      }
    }
  }
  const Tensor keys = Tensor::transposed(transposed.data(), ElementType::kF32, 21, 2, 5);
  EXPECT_EQ(deviations(ContiguousView(shape, keys, keys, 21), 6), deviations(cache.view(), 6));
}

TEST(LagDeviation, OfAnEmptyCacheIsEmpty) {
  Cache cache(shape_of(1, 1, 2), 0, {});
  EXPECT_TRUE(deviations(cache.view(), 4).empty());
}

}  // namespace
}  // namespace kvevict
