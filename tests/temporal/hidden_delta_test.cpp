#include "kvevict/temporal/hidden_delta.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

Sequence sequence_of(std::size_t length) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(length);
  return sequence;
}

double push(HiddenDelta& delta, std::size_t position, const std::vector<float>& row) {
  return delta.push(position, row.data(), ElementType::kF32, row.size(), kernels::best());
}

TEST(HiddenDelta, IsTheDistanceOfNeighbours) {
  HiddenDelta delta(0);
  EXPECT_EQ(push(delta, 0, {1, 2, 2}), 0.0);  // nothing before
  EXPECT_DOUBLE_EQ(push(delta, 1, {4, 6, 2}), 5.0);
  EXPECT_DOUBLE_EQ(push(delta, 2, {4, 6, 2}), 0.0);
  EXPECT_DOUBLE_EQ(push(delta, 3, {4, 6, 1}), 1.0);
}

// Case O-14: 600^2 + 800^2 overflows a half, 1000 does not.
TEST(HiddenDelta, WidensHalvesFirst) {
  const std::vector<std::uint16_t> zero = {0, 0};
  const std::vector<std::uint16_t> f16 = {0x60B0, 0x6240};   // 600, 800
  const std::vector<std::uint16_t> bf16 = {0x4416, 0x4448};  // 600, 800
  for (const auto& [type, row] :
       {std::pair{ElementType::kF16, f16}, std::pair{ElementType::kBF16, bf16}}) {
    HiddenDelta delta(2);
    delta.push(0, zero.data(), type, 2, kernels::best());
    EXPECT_DOUBLE_EQ(delta.push(1, row.data(), type, 2, kernels::best()), 1000.0);
  }
}

// The square of a large float overflows a float.
TEST(HiddenDelta, SumsInDouble) {
  HiddenDelta delta(0);
  push(delta, 0, {0, 0});
  EXPECT_NEAR(push(delta, 1, {3e30F, 4e30F}) / 5e30, 1.0, 1e-6);
}

TEST(HiddenDelta, IsZeroWhereTheTokenBeforeIsMissing) {
  HiddenDelta delta(4);
  push(delta, 0, {0});
  EXPECT_EQ(push(delta, 2, {7}), 0.0);
  EXPECT_EQ(push(delta, 3, {9}), 2.0);
}

TEST(HiddenDelta, NonFiniteVectorSpoilsTwoDifferences) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    HiddenDelta delta(0);
    push(delta, 0, {1, 1});
    EXPECT_FALSE(std::isfinite(push(delta, 1, {1, bad})));
    EXPECT_FALSE(std::isfinite(push(delta, 2, {1, 1})));
    EXPECT_EQ(push(delta, 3, {1, 2}), 1.0);
  }
}

TEST(HiddenDelta, RollbackUpToTheReserveIsExact) {
  for (std::size_t max_rollback = 0; max_rollback < 5; ++max_rollback) {
    HiddenDelta delta(max_rollback);
    for (std::size_t t = 0; t < 20; ++t)
      push(delta, t, {static_cast<float>(t * t)});
    delta.truncate(sequence_of(20 - max_rollback));
    const std::size_t last = 19 - max_rollback;
    ASSERT_TRUE(delta.remembers(last)) << max_rollback;
    EXPECT_EQ(push(delta, last + 1, {static_cast<float>(last * last + 3)}), 3.0) << max_rollback;
  }
}

TEST(HiddenDelta, DeeperRollbackIsAMissingVector) {
  for (std::size_t max_rollback = 0; max_rollback < 5; ++max_rollback) {
    HiddenDelta delta(max_rollback);
    for (std::size_t t = 0; t < 20; ++t)
      push(delta, t, {static_cast<float>(t)});
    const std::size_t length = 19 - max_rollback;
    delta.truncate(sequence_of(length));
    EXPECT_EQ(push(delta, length, {50}), 0.0) << max_rollback;
    EXPECT_EQ(push(delta, length + 1, {52}), 2.0) << max_rollback;
  }
}

TEST(HiddenDelta, ResetForgets) {
  HiddenDelta delta(3);
  push(delta, 0, {1});
  delta.reset();
  EXPECT_FALSE(delta.remembers(0));
  EXPECT_EQ(push(delta, 1, {5}), 0.0);
}

}  // namespace
}  // namespace kvevict
