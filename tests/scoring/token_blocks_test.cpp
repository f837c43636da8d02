#include "kvevict/scoring/token_blocks.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvevict {
namespace {

TEST(EndOfTokens, CountsSlotsWhereAllHoldTokens) {
  EXPECT_EQ(end_of_tokens({}, 2, 10, 3), 5U);
  EXPECT_EQ(end_of_tokens({}, 8, 10, 3), 10U);
  EXPECT_EQ(end_of_tokens({}, 4, 10, 0), 4U);
}

TEST(EndOfTokens, PassesOverSlotsWithoutOne) {
  const std::vector<std::uint8_t> valid = {0, 1, 1, 0, 1};
  EXPECT_EQ(end_of_tokens(valid, 0, 5, 2), 3U);
  EXPECT_EQ(end_of_tokens(valid, 0, 5, 3), 5U);
  EXPECT_EQ(end_of_tokens(valid, 3, 5, 9), 5U);
  EXPECT_EQ(end_of_tokens(valid, 0, 5, 0), 0U);
}

}  // namespace
}  // namespace kvevict
