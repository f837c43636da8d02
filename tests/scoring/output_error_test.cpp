#include "kvevict/scoring/output_error.hpp"

#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using kvevict_test::Random;
using kvevict_test::WindowCache;

constexpr CacheShape kOne{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

AttentionRows row_of(const std::vector<float>& row) {
  return {.data = row.data(),
          .num_q_heads = 1,
          .num_rows = 1,
          .head_stride = static_cast<std::ptrdiff_t>(row.size()),
          .row_stride = static_cast<std::ptrdiff_t>(row.size())};
}

/// Values (1, 0), (0, 1), (0, 0).
WindowCache cache() {
  WindowCache cache(kOne, 3);
  cache.append(3);
  cache.value(0, 0, 0)[0] = 1.0F;
  cache.value(0, 0, 1)[1] = 1.0F;
  return cache;
}

// a = (.5, .25, .25): AV = (.5, .25). Without slot 1 a' = (2/3, 1/3): A'V' = (2/3, 0), so
// moved = sqrt((1/6)^2 + .25^2) = .300463 and |AV| = .559017.
TEST(OutputError, IsHowFarTheOutputMoves) {
  WindowCache three = cache();
  OutputError error(kOne);
  error.add(0, row_of({0.5F, 0.25F, 0.25F}), three.view(), mask_of("101"));
  EXPECT_NEAR(error.absolute(), 0.300463, 1e-6);
  EXPECT_NEAR(error.relative(), 0.300463 / 0.559017, 1e-6);
  error.reset();
  EXPECT_EQ(error.relative(), 0.0);
  error.add(0, row_of({0.5F, 0.25F, 0.25F}), three.view(), mask_of("111"));
  EXPECT_EQ(error.absolute(), 0.0);
}

// Half of the mass went to a sink: a' = a / (1 - .25) = (1/3, .), AV = (.25, .25).
TEST(OutputError, MassOutsideTheCacheStaysThere) {
  WindowCache three = cache();
  OutputError error(kOne);
  error.add(0, row_of({0.25F, 0.25F, 0.0F}), three.view(), mask_of("101"));
  EXPECT_NEAR(error.absolute(), std::hypot(1.0 / 3 - 0.25, 0.25), 1e-6);
}

// All values equal: whatever is kept, the output does not move, not even where almost all goes and
// the rest of 1 is rounding.
TEST(OutputError, KeepsItsDigitsWhereAlmostAllGoes) {
  WindowCache three = cache();
  for (std::size_t slot = 0; slot < 3; ++slot)
    three.value(0, 0, slot)[0] = three.value(0, 0, slot)[1] = 1.0F;
  OutputError error(kOne);
  error.add(0, row_of({0.7F, 1e-7F, 0.3F}), three.view(), mask_of("010"));
  EXPECT_LT(error.relative(), 1e-5);
}

TEST(OutputError, ARowWithoutMassHasNoOutput) {
  WindowCache three = cache();
  OutputError error(kOne);
  error.add(0, row_of({1.0F, 0.0F, 0.0F}), three.view(), mask_of("011"));
  EXPECT_EQ(error.relative(), 1.0);
}

// Queries give the rows that the softmax formula gives, causal corner and GQA included; the
// reference is double throughout.
TEST(OutputError, QueriesEqualTheDoubleReference) {
  constexpr CacheShape shape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  constexpr std::size_t kLen = 21;
  constexpr std::size_t kRows = 5;
  WindowCache cache(shape, kLen);
  Random random(9);
  cache.fill(random);
  cache.append(kLen);
  std::vector<float> queries(4 * kRows * 8);
  for (float& x : queries)
    x = random.eighths();
  const KeepMask mask = mask_of(MaskScope::kHead, 2, 2,
                                {"111111111111111111111", "101101010010101011111",
                                 "111000000000000001111", "000111000111000111001"});
  double moved = 0;
  double whole = 0;
  OutputError error(shape);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    error.add(layer,
              QueryRows{.data = queries.data(),
                        .num_q_heads = 4,
                        .num_rows = kRows,
                        .head_stride = kRows * 8,
                        .row_stride = 8},
              cache.view(), mask);
    for (std::size_t q = 0; q < 4; ++q) {
      for (std::size_t r = 0; r < kRows; ++r) {
        const std::size_t visible = kLen - kRows + 1 + r;
        std::vector<double> weights(visible);
        double sum = 0;
        double kept = 0;
        for (std::size_t s = 0; s < visible; ++s) {
          double logit = 0;
          for (std::size_t c = 0; c < 8; ++c) {
            logit += static_cast<double>(queries[(q * kRows + r) * 8 + c]) *
                     static_cast<double>(cache.key(layer, q / 2, s)[c]);
          }
          weights[s] = std::exp(logit / std::sqrt(8.0));
          sum += weights[s];
          kept += mask.keeps(layer, q / 2, s) ? weights[s] : 0.0;
        }
        for (std::size_t c = 0; c < 8; ++c) {
          double before = 0;
          double after = 0;
          for (std::size_t s = 0; s < visible; ++s) {
            const double value = cache.value(layer, q / 2, s)[c];
            before += weights[s] / sum * value;
            after += mask.keeps(layer, q / 2, s) ? weights[s] / kept * value : 0.0;
          }
          moved += (before - after) * (before - after);
          whole += before * before;
        }
      }
    }
  }
  EXPECT_NEAR(error.absolute(), std::sqrt(moved), 1e-5);
  EXPECT_NEAR(error.relative(), std::sqrt(moved / whole), 1e-5);
}

TEST(OutputError, RefusesWhatDoesNotFit) {
  WindowCache three = cache();
  OutputError error(kOne);
  const std::vector<float> row = {1.0F, 0.0F, 0.0F};
  EXPECT_THROW(error.add(1, row_of(row), three.view(), mask_of("111")), InvalidArgument);
  EXPECT_THROW(error.add(0, row_of(row), three.view(), mask_of("11")), InvalidArgument);
  AttentionRows nothing = row_of(row);
  nothing.data = nullptr;
  EXPECT_THROW(error.add(0, nothing, three.view(), mask_of("111")), InvalidArgument);
}

}  // namespace
}  // namespace kvevict
