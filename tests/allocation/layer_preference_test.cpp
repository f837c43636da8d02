#include "kvevict/allocation/layer_preference.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Numbers = std::vector<std::size_t>;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

Numbers shared(std::vector<double> preference, std::size_t total, std::size_t cap, bool official) {
  Numbers numbers(preference.size());
  share_by_preference(preference, total, cap, official, numbers);
  return numbers;
}

TEST(ShareByPreference, GivesInProportion) {
  for (const bool official : {true, false})
    EXPECT_EQ(shared({1, 1, 2}, 8, 10, official), (Numbers{2, 2, 4}));
}

// 2 2 4 and a cap of 3: one is left, and goes to the first that has room.
TEST(ShareByPreference, WhatTheCapCutsOffGoesToTheOthers) {
  for (const bool official : {true, false})
    EXPECT_EQ(shared({1, 1, 2}, 8, 3, official), (Numbers{3, 2, 3}));
}

// 2 2 2 are rounded down, two are missing.
TEST(ShareByPreference, OddOnesGoToTheFirst) {
  for (const bool official : {true, false})
    EXPECT_EQ(shared({1, 1, 1}, 8, 10, official), (Numbers{3, 3, 2}));
}

// 9 become 2; of the seven others 4 and 3 are more than the cap.
TEST(ShareByPreference, TheAuthorsMayExceedTheCap) {
  EXPECT_EQ(shared({0, 0, 1}, 9, 2, true), (Numbers{4, 3, 2}));
}

TEST(ShareByPreference, APreferenceThatIsNoNumberCountsAsNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool official : {true, false})
    EXPECT_EQ(shared({nan, 1, 1}, 4, 9, official), (Numbers{0, 2, 2}));
  EXPECT_EQ(shared({0, nan}, 4, 9, true), (Numbers{2, 2}));  // nobody is preferred: all alike
}

struct Layers {
  std::vector<double> entropies = {1, 3};

  [[nodiscard]] double attention_entropy(std::size_t layer) const { return entropies[layer]; }
  [[nodiscard]] static double attention_variance(std::size_t /*layer*/) { return 1; }
};

// 3^(1 / 1) 4^(1 / 2)
TEST(LayerPreference, IsAProductOfPowers) {
  const LayerPreference preference(kShape, 6, 2, 1, 2, false, false);
  EXPECT_DOUBLE_EQ(preference.preference(3, 4), 6.0);
  EXPECT_EQ(preference.preference(-1, 4), 0.0);
}

// 12 entries without two windows of 2 are 8: a quarter and three quarters of them.
TEST(LayerPreference, SharesWhatLiesBesideTheWindows) {
  const LayerPreference preference(kShape, 6, 2, 1, 1, false, false);
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(20, {});
  sequence.append(10);
  EXPECT_EQ(preference.allocation(sequence, Layers()).budget.count(),
            std::numeric_limits<std::size_t>::max());
  sequence.append(10);
  const auto budgets = preference.allocation(sequence, Layers()).lane_budgets;
  EXPECT_EQ(Numbers(budgets.begin(), budgets.end()), (Numbers{4, 8}));
  // Decoding changes nothing.
  sequence.append(5);
  const auto later = preference.allocation(sequence, Layers()).lane_budgets;
  EXPECT_EQ(Numbers(later.begin(), later.end()), (Numbers{4, 8}));
}

}  // namespace
}  // namespace kvevict
