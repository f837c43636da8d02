#include "kvevict/views/ragged_view.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict::views {
namespace {

using kvevict_test::refuses;

constexpr CacheShape kShape{
    .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 3, .value_dim = 2};

TEST(RaggedView, EveryLaneHasItsOwnMemoryAndLength) {
  std::vector<float> keys(2 * 3);
  std::vector<float> values(2 * 2);
  const std::vector<MutableLane> lanes = {
      RaggedView::dense_lane(kShape, 2, keys.data(), values.data(), ElementType::kF32),
      RaggedView::dense_lane(kShape, 0, nullptr, nullptr, ElementType::kF32)};
  const RaggedView view(kShape, lanes);
  EXPECT_EQ(view.lane(0, 0).seq_len, 2U);
  EXPECT_EQ(view.lane(0, 0).keys.row(1), reinterpret_cast<const std::byte*>(&keys[3]));
  EXPECT_EQ(view.lane(0, 0).values.row(1), reinterpret_cast<const std::byte*>(&values[2]));
  EXPECT_TRUE(view.lane(0, 0).values.row_is_contiguous());
  EXPECT_EQ(view.lane(0, 1).seq_len, 0U);
  EXPECT_FALSE(view.lane(0, 1).keys.present());
}

TEST(RaggedView, RefusesLanesThatAreMissing) {
  const std::vector<MutableLane> lanes(1);
  EXPECT_TRUE(refuses([&] { RaggedView(kShape, lanes); }, {"RaggedView", "lanes.size()", "1"}));
}

}  // namespace
}  // namespace kvevict::views
