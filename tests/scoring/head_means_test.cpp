#include "kvevict/scoring/head_means.hpp"

#include "support/masks.hpp"
#include "support/top_k.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

/// Three tokens, of which head 0 has lost the second.
struct Heads {
  Sequence sequence{"test", kShape, MaskScope::kHead};
  std::vector<kvevict_test::Lane> lanes = {
      kvevict_test::Lane({1, 3}),
      kvevict_test::Lane({4, std::numeric_limits<float>::quiet_NaN(), 5})};

  Heads() {
    sequence.append(3);
    sequence.apply(kvevict_test::mask_of(MaskScope::kHead, 1, 2, {"101", "111"}));
  }
};

TEST(HeadMeans, AreOfTheHeadsThatHoldTheToken) {
  Heads heads;
  Scratch scratch;
  const auto views = kvevict_test::views_of(heads.lanes);
  const auto means = means_over_lanes(
      heads.sequence, views, [&](std::size_t l) { return views[l].scores; }, scratch);
  // The second token has no number that counts.
  EXPECT_EQ(std::vector<float>(means.begin(), means.end()), (std::vector<float>{2.5F, 0, 4}));
}

TEST(HeadMeans, AreAddedToEveryHead) {
  Heads heads;
  Scratch scratch;
  kvevict_test::WindowCache cache(kShape, 3);
  const auto view = cache.view();
  const ViewRef ref(view);
  auto views = kvevict_test::views_of(heads.lanes);
  AddHeadMean().apply_to_pool({ref, heads.sequence, kernels::best(), scratch}, views);
  EXPECT_EQ(heads.lanes[0].scores, (std::vector<float>{3.5F, 7}));
  EXPECT_EQ(heads.lanes[1].scores[0], 6.5F);
  EXPECT_TRUE(std::isnan(heads.lanes[1].scores[1]));
  EXPECT_EQ(heads.lanes[1].scores[2], 9.0F);
  when(false, AddHeadMean{}).apply_to_pool({ref, heads.sequence, kernels::best(), scratch}, views);
  EXPECT_EQ(heads.lanes[0].scores, (std::vector<float>{3.5F, 7}));
}

}  // namespace
}  // namespace kvevict
