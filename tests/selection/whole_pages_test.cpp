#include "kvevict/selection/whole_pages.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::WholePages;
using Slots = std::vector<std::size_t>;

/// A prompt of two tokens, which stay, and decoded tokens in pages 2-3, 4-5 and 6.
Slots left(std::vector<float> scores, std::size_t quota) {
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  kvevict::Sequence sequence("test", shape, kvevict::MaskScope::kHead);
  sequence.begin(2, {});
  sequence.append(2);
  sequence.append(scores.size() - 2);
  Lane lane(std::move(scores));
  lane.protect(0);
  lane.protect(1);
  return chosen(WholePages{{.size = 2}}, quota, {lane}, SequenceInput{sequence})[0];
}

TEST(WholePages, ThePageWhoseBestIsLeastGoesFirst) {
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 0}, 5), (Slots{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 0}, 4), (Slots{0, 1, 2, 3, 6}));
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 0}, 3), (Slots{0, 1, 2, 3, 6}));
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 0}, 1), (Slots{0, 1, 6}));
}

TEST(WholePages, OfEqualPagesTheLaterGoes) {
  EXPECT_EQ(left({0, 0, 3, 1, 0, 3, 0}, 3), (Slots{0, 1, 2, 3, 6}));
}

TEST(WholePages, OfTheNewestPageTheOldestTokensGoLast) {
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 9, 0}, 1), (Slots{0, 1, 7}));
  EXPECT_EQ(left({0, 0, 3, 1, 2, 2, 9, 0}, 0), (Slots{0, 1}));
}

}  // namespace
}  // namespace kvevict_test
