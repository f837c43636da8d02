#include "kvevict/core/shape.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict {
namespace {

using kvevict_test::refuses;

constexpr CacheShape kShape{.num_layers = 3, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 80};

TEST(CacheShape, LanesPerScope) {
  EXPECT_EQ(kShape.num_lanes(MaskScope::kModel), 1U);
  EXPECT_EQ(kShape.num_lanes(MaskScope::kLayer), 3U);
  EXPECT_EQ(kShape.num_lanes(MaskScope::kHead), 6U);
}

TEST(CacheShape, FirstOfALaneIsTheInverseOfLaneOf) {
  for (const MaskScope scope : {MaskScope::kModel, MaskScope::kLayer, MaskScope::kHead}) {
    for (std::size_t lane = 0; lane < kShape.num_lanes(scope); ++lane) {
      EXPECT_EQ(
          kShape.lane_of(scope, kShape.first_layer(scope, lane), kShape.first_head(scope, lane)),
          lane);
    }
  }
  EXPECT_EQ(kShape.lane_of(MaskScope::kHead, 2, 1), 5U);
  EXPECT_EQ(kShape.lane_of(MaskScope::kLayer, 2, 1), 2U);
  EXPECT_EQ(kShape.lane_of(MaskScope::kModel, 2, 1), 0U);
}

TEST(CacheShape, ValueRowsAreAsWideAsKeysUnlessSaid) {
  EXPECT_EQ(kShape.value_size(), 80U);
  CacheShape shape = kShape;
  shape.value_dim = 80;
  EXPECT_EQ(shape, kShape);
  shape.value_dim = 64;
  EXPECT_EQ(shape.value_size(), 64U);
  EXPECT_FALSE(shape == kShape);
}

// R10: a head count that is no multiple is an error, and so is a dimension of nothing.
TEST(CacheShape, RefusesWhatCannotExist) {
  const auto with = [](auto change) {
    return [change] {
      CacheShape shape = kShape;
      change(shape);
      detail::check_shape(shape, "SnapKV");
    };
  };
  EXPECT_TRUE(refuses(with([](CacheShape& s) { s.num_q_heads = 7; }),
                      {"SnapKV", "num_q_heads", "7", "num_kv_heads"}));
  EXPECT_TRUE(refuses(with([](CacheShape& s) { s.num_q_heads = 0; }), {"num_q_heads = 0"}));
  EXPECT_TRUE(refuses(with([](CacheShape& s) { s.num_layers = 0; }), {"num_layers = 0"}));
  EXPECT_TRUE(refuses(with([](CacheShape& s) { s.num_kv_heads = 0; }), {"num_kv_heads = 0"}));
  EXPECT_TRUE(refuses(with([](CacheShape& s) { s.head_dim = 0; }), {"head_dim = 0"}));
}

TEST(CacheShape, NamesTheFieldThatDiffers) {
  const auto compared_with = [](auto change) {
    return [change] {
      CacheShape view = kShape;
      change(view);
      detail::check_same_shape(view, kShape, "H2O");
    };
  };
  EXPECT_NO_THROW(detail::check_same_shape(kShape, kShape, "H2O"));
  EXPECT_TRUE(
      refuses(compared_with([](CacheShape& s) { s.num_layers = 4; }), {"H2O", "num_layers", "4"}));
  EXPECT_TRUE(
      refuses(compared_with([](CacheShape& s) { s.num_q_heads = 4; }), {"num_q_heads", "4"}));
  EXPECT_TRUE(
      refuses(compared_with([](CacheShape& s) { s.num_kv_heads = 1; }), {"num_kv_heads", "1"}));
  EXPECT_TRUE(refuses(compared_with([](CacheShape& s) { s.head_dim = 64; }), {"head_dim", "64"}));
  EXPECT_TRUE(refuses(compared_with([](CacheShape& s) { s.value_dim = 64; }), {"value_dim", "64"}));
}

}  // namespace
}  // namespace kvevict
