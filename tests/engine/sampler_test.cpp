#include "engine/sampler.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

Eigen::RowVectorXf logits(std::initializer_list<float> values) {
  Eigen::RowVectorXf result(static_cast<Eigen::Index>(values.size()));
  std::copy(values.begin(), values.end(), result.data());
  return result;
}

TEST(LogLikelihood, IsTheLogOfTheSoftmax) {
  const Eigen::RowVectorXf two = logits({std::log(1.0F), std::log(3.0F)});
  EXPECT_NEAR(engine::log_likelihood(two, 0), std::log(0.25), 1e-7);
  EXPECT_NEAR(engine::log_likelihood(two, 1), std::log(0.75), 1e-7);
  // Neither overflows nor loses the small one.
  EXPECT_NEAR(engine::log_likelihood(logits({5000.0F, 4000.0F}), 1), -1000.0, 1e-3);
}

TEST(Greedy, TakesTheFirstOfEqualOnes) {
  EXPECT_EQ(engine::greedy(logits({1.0F, 3.0F, 3.0F, -1.0F})), 1);
  EXPECT_EQ(engine::Sampler(0.0F).sample(logits({1.0F, 3.0F, 3.0F})), 1);
}

TEST(Sampler, FollowsTheSoftmaxAtItsTemperature) {
  // Temperature 0.5 squares the odds 1 : 2 : 4 to 1 : 4 : 16.
  const Eigen::RowVectorXf odds = logits({0.0F, std::log(2.0F), std::log(4.0F)});
  engine::Sampler sampler(0.5F, 1);
  std::array<int, 3> counts{};
  for (int i = 0; i < 21000; ++i)
    ++counts[static_cast<std::size_t>(sampler.sample(odds))];
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_NEAR(counts[1], 4000, 250);
  EXPECT_NEAR(counts[2], 16000, 300);
}

TEST(Sampler, TakesOnlyTheBestWhenAskedTo) {
  const Eigen::RowVectorXf odds = logits({0.0F, 0.1F, 0.2F, 0.1F});
  engine::Sampler sampler(1.0F, 1, 2);
  std::array<int, 4> counts{};
  for (int i = 0; i < 1000; ++i)
    ++counts[static_cast<std::size_t>(sampler.sample(odds))];
  EXPECT_EQ(counts[0], 0);
  EXPECT_GT(counts[1], 300);
  EXPECT_GT(counts[2], 300);
  EXPECT_EQ(counts[3], 0);  // as good as 1, but behind it
}

TEST(Sampler, TheSeedDecides) {
  const Eigen::RowVectorXf flat = Eigen::RowVectorXf::Zero(1000);
  const auto draw = [&](std::uint64_t seed) {
    engine::Sampler sampler(1.0F, seed);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 8; ++i)
      tokens.push_back(sampler.sample(flat));
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

}  // namespace
