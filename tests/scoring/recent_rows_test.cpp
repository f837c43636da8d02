#include "kvevict/scoring/recent_rows.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

using Floats = std::vector<float>;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

struct Rows {
  Sequence sequence{"test", kShape, MaskScope::kHead};
  RecentRows rows{kShape, 2};

  void append(const Floats& row) {
    sequence.append(1);
    rows.append(1);
    const auto at = rows.of(0, 0, sequence.length() - 1);
    std::copy(row.begin(), row.end(), at.begin());
  }
  void truncate(std::size_t length) {
    sequence.truncate(length);
    rows.truncate(sequence);
  }
  [[nodiscard]] Floats at(std::size_t index) const {
    const auto row = rows.of_index(0, 0, index);
    return {row.begin(), row.end()};
  }
};

TEST(RecentRows, ANewTokenTakesThePlaceOfTheOldest) {
  Rows r;
  r.append({1});
  r.append({.4F, .6F});
  EXPECT_EQ(r.at(0), (Floats{1, 0}));
  EXPECT_EQ(r.at(1), (Floats{.4F, .6F}));
  r.append({.1F, .2F, .7F});
  EXPECT_EQ(r.at(0), (Floats{.1F, .2F, .7F}));
  EXPECT_EQ(r.at(1), (Floats{.4F, .6F, 0}));
}

TEST(RecentRows, LoseWhatTheMaskEvicts) {
  Rows r;
  r.append({1});
  r.append({.4F, .6F});
  r.append({.1F, .2F, .7F});
  const KeepMask mask = kvevict_test::mask_of(MaskScope::kHead, 1, 1, {"101"});
  r.sequence.apply(mask);
  r.rows.apply(mask);
  EXPECT_EQ(r.at(0), (Floats{.1F, .7F}));
  EXPECT_EQ(r.at(1), (Floats{.4F, 0}));
}

// The row of token 0 was pushed out by that of token 2, and does not come back.
TEST(RecentRows, RowsOfTokensThatAreTakenBackAreZero) {
  Rows r;
  r.append({1});
  r.append({.4F, .6F});
  r.append({.1F, .2F, .7F});
  r.truncate(2);
  EXPECT_EQ(r.at(0), (Floats{0, 0}));
  EXPECT_EQ(r.at(1), (Floats{.4F, .6F}));
  r.truncate(1);
  EXPECT_EQ(r.at(1), (Floats{0}));
}

}  // namespace
}  // namespace kvevict
