#include "kvevict/scoring/group_reduce.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> reduced(GroupReduce reduce, const std::vector<std::vector<float>>& heads) {
  std::vector<float> out(heads[0].size());
  for (std::size_t h = 0; h < heads.size(); ++h)
    reduce_group(reduce, h, heads.size(), heads[h], out);
  return out;
}

TEST(GroupReduce, MeanMaximumAndSum) {
  const std::vector<std::vector<float>> heads = {{1, 6}, {3, -2}};
  EXPECT_EQ(reduced(GroupReduce::kMean, heads), (std::vector<float>{2, 2}));
  EXPECT_EQ(reduced(GroupReduce::kMax, heads), (std::vector<float>{3, 6}));
  EXPECT_EQ(reduced(GroupReduce::kSum, heads), (std::vector<float>{4, 4}));
  EXPECT_EQ(reduced(GroupReduce::kMax, {{5, -1}}), (std::vector<float>{5, -1}));  // one head
}

// Rule R4: a score that is no number shows, whichever head it comes from.
TEST(GroupReduce, NaNOfAnyHeadStays) {
  for (const GroupReduce reduce : {GroupReduce::kMean, GroupReduce::kMax, GroupReduce::kSum}) {
    for (std::size_t bad = 0; bad < 3; ++bad) {
      std::vector<std::vector<float>> heads = {{1, 1}, {3, 3}, {2, 2}};
      heads[bad][0] = kNaN;
      const std::vector<float> out = reduced(reduce, heads);
      EXPECT_TRUE(std::isnan(out[0])) << bad;
      EXPECT_FALSE(std::isnan(out[1])) << bad;
    }
  }
}

}  // namespace
}  // namespace kvevict
