#include "kvevict/scoring/pooling.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace {

using namespace kvevict;

std::vector<float> pooled(const Pooling& pooling, const std::vector<float>& x) {
  std::vector<float> out(x.size(), -1.0F);
  pooling.apply(x, kernels::best(), out);
  return out;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6F) << i;
}

TEST(Pooling, KernelOfOneChangesNothing) {
  for (const PoolKind kind : {PoolKind::kAverage, PoolKind::kMax}) {
    EXPECT_EQ(pooled({.kind = kind, .kernel_size = 1}, {3, 1, 2}), (std::vector<float>{3, 1, 2}));
  }
}

TEST(Pooling, EdgesOfAnAverage) {
  expect_near(pooled({.kernel_size = 3}, {3, 6, 9, 3}), {3, 6, 6, 4});
  expect_near(pooled({.kernel_size = 3, .edge = kernels::PoolEdge::kShrink}, {3, 6, 9, 3}),
              {4.5F, 6, 6, 6});
  expect_near(pooled({.kind = PoolKind::kMax, .kernel_size = 3}, {3, 6, 9, 3}), {6, 9, 9, 9});
}

TEST(Pooling, KernelWiderThanTheScores) {
  expect_near(pooled({.kernel_size = 7}, {7, 14}), {3, 3});
  expect_near(pooled({.kernel_size = 7, .edge = kernels::PoolEdge::kShrink}, {7, 14}),
              {10.5F, 10.5F});
  expect_near(pooled({.kind = PoolKind::kMax, .kernel_size = 7}, {7, 14}), {14, 14});
  expect_near(pooled({.kernel_size = 7}, {}), {});
}

// Rule R9: each run of tokens is pooled as if it were the sequence, and what lies between is not
// read: 3 and 6, then 9, 3 and 6.
TEST(Pooling, ASlotWithoutATokenIsAnEdge) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{kNan, 1000, 3, 6, kNan, 9, 3, 6, -1000};
  const std::vector<std::uint8_t> valid{0, 0, 1, 1, 0, 1, 1, 1, 0};
  const auto pooled_runs = [&](const Pooling& pooling) {
    std::vector<float> out(x.size(), -1.0F);
    pooling.apply(x, valid, kernels::best(), out);
    return out;
  };
  expect_near(pooled_runs({.kernel_size = 3}), {0, 0, 3, 3, 0, 4, 6, 3, 0});
  expect_near(pooled_runs({.kernel_size = 3, .edge = kernels::PoolEdge::kShrink}),
              {0, 0, 4.5F, 4.5F, 0, 6, 6, 4.5F, 0});
  expect_near(pooled_runs({.kind = PoolKind::kMax, .kernel_size = 3}), {0, 0, 6, 6, 0, 9, 9, 6, 0});
}

TEST(Pooling, EvenKernelHasNoCentre) {
  for (const std::size_t kernel_size : {0U, 2U, 8U}) {
    EXPECT_TRUE(kvevict_test::refuses([&] { Pooling{.kernel_size = kernel_size}.check("Owner"); },
                                      {"Owner", "pooling.kernel_size", "odd"}));
  }
  Pooling{.kernel_size = 7}.check("Owner");
}

TEST(ReduceGroup, MeanAndMaximumInOrderOfHeads) {
  const std::vector<std::vector<float>> heads{{1, -5, 3}, {4, -2, 0}, {1, -2, 9}};
  for (const GroupReduce reduce : {GroupReduce::kMean, GroupReduce::kMax}) {
    std::vector<float> out(3, 100.0F);  // what was there before does not count
    for (std::size_t h = 0; h < 3; ++h)
      reduce_group(reduce, h, 3, heads[h], out);
    expect_near(out, reduce == GroupReduce::kMean ? std::vector<float>{2, -3, 4}
                                                  : std::vector<float>{4, -2, 9});
  }
}

// The first head may be its own result.
TEST(ReduceGroup, InPlace) {
  std::vector<float> heads{1, 2, 3, 6};
  const std::span<float> all(heads);
  for (std::size_t h = 0; h < 2; ++h) {
    reduce_group(GroupReduce::kMean, h, 2, all.subspan(h * 2, 2), all.first(2));
  }
  EXPECT_EQ(heads, (std::vector<float>{2, 4, 3, 6}));
}

}  // namespace
