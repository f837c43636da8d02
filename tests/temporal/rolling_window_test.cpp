#include "kvevict/temporal/rolling_window.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

/// A sequence of `length` tokens.
Sequence sequence_of(std::size_t length) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(length);
  return sequence;
}

// Reference values of the EpiKV paper's notes: w = 3, eps = 1e-6.
TEST(RollingWindow, MeetsHandWorkedValues) {
  const std::vector<double> samples = {1, 2, 4, 1, 3};
  // t = 3: mean 7/3, deviation sqrt(14/9) = 1.247219, z = (4 - 7/3) / 1.247220.
  const std::vector<double> z = {0, .999998, 1.336305138, -1.069044111, .267261028};
  const std::vector<double> mean = {1, 1.5, 7.0 / 3, 7.0 / 3, 8.0 / 3};
  RollingWindow window(3, 0);
  for (std::size_t t = 0; t < samples.size(); ++t) {
    window.push(t, samples[t]);
    EXPECT_NEAR(window.z_score(1e-6), z[t], 1e-9) << t;
    EXPECT_NEAR(window.mean(), mean[t], 1e-12) << t;
  }
}

TEST(RollingWindow, IsZeroBelowTwoSamples) {
  RollingWindow window(64, 16);
  EXPECT_EQ(window.mean(), 0.0);
  EXPECT_EQ(window.z_score(1e-6), 0.0);
  window.push(0, 5.0);
  EXPECT_EQ(window.z_score(1e-6), 0.0);
  EXPECT_EQ(window.mean(), 5.0);
}

// A window of one never holds two values.
TEST(RollingWindow, OfLengthOneHasNoDeviation) {
  RollingWindow window(1, 4);
  for (std::size_t t = 0; t < 10; ++t) {
    window.push(t, static_cast<double>(t));
    EXPECT_EQ(window.z_score(1e-6), 0.0);
    EXPECT_EQ(window.mean(), static_cast<double>(t));
  }
}

// Case O-11: running sums gave a negative variance at every flat step. The second scale catches an
// absolute threshold.
TEST(RollingWindow, FlatStretchGivesExactlyZeroAtAnyScale) {
  for (const double scale : {1.0, 1e-12, 1e12}) {
    RollingWindow window(64, 16);
    for (std::size_t t = 0; t < 328; ++t) {
      const double sample = t < 128 ? 0.1 * (1.0 + static_cast<double>(37 * t % 64) / 64.0) : 0.7;
      window.push(t, scale * sample);
      ASSERT_TRUE(std::isfinite(window.z_score(1e-6)));
      if (t >= 128 + 63) {
        EXPECT_EQ(window.z_score(1e-6), 0.0) << scale << " " << t;
      } else if (t == 128) {
        EXPECT_GT(window.z_score(1e-6), 0.0) << scale;
      }
    }
  }
}

TEST(RollingWindow, EqualsTheDefinitionOnRandomSamples) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> sample(0, 2);
  RollingWindow window(7, 3);
  std::vector<double> all;
  for (std::size_t t = 0; t < 100; ++t) {
    all.push_back(sample(random));
    window.push(t, all.back());
    const std::size_t n = std::min<std::size_t>(7, all.size());
    double mean = 0;
    for (std::size_t i = all.size() - n; i < all.size(); ++i)
      mean += all[i];
    mean /= static_cast<double>(n);
    double squares = 0;
    for (std::size_t i = all.size() - n; i < all.size(); ++i) {
      squares += (all[i] - mean) * (all[i] - mean);
    }
    const double z =
        n < 2 ? 0.0 : (all.back() - mean) / (std::sqrt(squares / static_cast<double>(n)) + 1e-6);
    EXPECT_NEAR(window.z_score(1e-6), z, 1e-12);
    // |z| <= sqrt(n - 1) with the population deviation.
    EXPECT_LE(std::abs(window.z_score(1e-6)), std::sqrt(static_cast<double>(n - 1)) + 1e-12);
  }
}

TEST(RollingWindow, RollbackUpToTheReserveIsExact) {
  RollingWindow straight(4, 3);
  RollingWindow drafted(4, 3);
  for (std::size_t t = 0; t < 10; ++t) {
    straight.push(t, std::sin(static_cast<double>(t)));
    drafted.push(t, std::sin(static_cast<double>(t)));
  }
  for (std::size_t t = 10; t < 13; ++t)
    drafted.push(t, 100.0);
  drafted.truncate(sequence_of(10));
  EXPECT_EQ(drafted.mean(), straight.mean());
  EXPECT_EQ(drafted.z_score(1e-6), straight.z_score(1e-6));
}

// Seven samples are stored; five are taken back, two are left of a window of four.
TEST(RollingWindow, DeeperRollbackLeavesAShortWindow) {
  RollingWindow window(4, 3);
  for (std::size_t t = 0; t < 20; ++t)
    window.push(t, static_cast<double>(t));
  window.truncate(sequence_of(15));
  EXPECT_EQ(window.count(), 2U);
  EXPECT_EQ(window.mean(), 13.5);
  window.push(15, 15.0);
  EXPECT_EQ(window.mean(), 14.0);
}

// A token without a sample does not shift the others.
TEST(RollingWindow, RollbackGoesByPosition) {
  RollingWindow window(8, 0);
  window.push(0, 1.0);
  window.push(5, 2.0);
  window.truncate(sequence_of(5));
  EXPECT_EQ(window.mean(), 1.0);
  window.truncate(sequence_of(5));
  EXPECT_EQ(window.mean(), 1.0);
}

TEST(RollingWindow, ResetForgets) {
  RollingWindow window(4, 2);
  for (std::size_t t = 0; t < 9; ++t)
    window.push(t, 3.0);
  window.reset();
  EXPECT_EQ(window.count(), 0U);
  window.push(0, 1.0);
  EXPECT_EQ(window.mean(), 1.0);
}

}  // namespace
}  // namespace kvevict
