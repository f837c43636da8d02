#include "kvevict/core/slot_vector.hpp"

#include "support/masks.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::mask_of;
using kvevict_test::Random;
using Ints = std::vector<int>;

Ints values_of(const SlotVector<int>& vector) {
  return {vector.values().begin(), vector.values().end()};
}
SlotVector<int> numbered(int count) {
  SlotVector<int> vector;
  for (int i = 0; i < count; ++i)
    vector.append(1, i);
  return vector;
}

// One run that goes: near the front, near the end, at either end, all and nothing.
TEST(SlotVector, ClosesOneGapFromEitherSide) {
  const auto kept = [](const std::string& mask) {
    SlotVector<int> vector = numbered(static_cast<int>(mask.size()));
    vector.apply(mask_of(mask), 0);
    return values_of(vector);
  };
  EXPECT_EQ(kept("1011111"), (Ints{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(kept("1111001"), (Ints{0, 1, 2, 3, 6}));
  EXPECT_EQ(kept("0011111"), (Ints{2, 3, 4, 5, 6}));
  EXPECT_EQ(kept("1111100"), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept("0000000"), (Ints{}));
  EXPECT_EQ(kept("1111111"), (Ints{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(kept("1011101"), (Ints{0, 2, 3, 4, 6}));
  EXPECT_EQ(kept(""), (Ints{}));
}

// What lies before the gap moves, and not what lies behind it, where there is spare memory.
TEST(SlotVector, MovesTheShorterSide) {
  SlotVector<int> vector = numbered(3000);
  vector.truncate(1000);
  const int* const last = &vector.values().back();
  vector.apply(mask_of("10" + std::string(998, '1')), 0);
  EXPECT_EQ(&vector.values().back(), last);
  EXPECT_EQ(vector.values()[1], 2);
  const int* const first = vector.values().data();
  vector.apply(mask_of(std::string(997, '1') + "01"), 0);
  EXPECT_EQ(vector.values().data(), first);
  EXPECT_EQ(vector.values().back(), 999);
}

// Steps of a cache that stays as long as it is: the memory does, too.
TEST(SlotVector, TakesNoMemoryStepByStep) {
  SlotVector<int> vector = numbered(500);
  vector.truncate(300);
  const std::string mask = "0" + std::string(300, '1');
  const int* const memory = vector.values().data();
  for (int step = 0; step < 5000; ++step) {
    vector.append(1, step);
    vector.apply(mask_of(mask), 0);
    ASSERT_EQ(vector.values().back(), step);
    ASSERT_GE(vector.values().data(), memory);
    ASSERT_LE(vector.values().data(), memory + 1000);  // 500 were appended one by one
  }
}

// Against a plain vector, with anything that can happen to it in any order.
TEST(SlotVector, IsAVector) {
  Random random(1);
  SlotVector<int> vector;
  Ints expected;
  for (int step = 0; step < 3000; ++step) {
    const std::size_t count = random.below(20) == 0 ? random.below(200) : random.below(4);
    vector.append(count, step);
    expected.insert(expected.end(), count, step);
    if (random.below(10) == 0) {
      const std::size_t size = expected.size() - random.below(1 + expected.size() / 4);
      vector.truncate(size);
      expected.resize(size);
    }
    if (random.below(500) == 0) {
      vector.clear();
      expected.clear();
    }
    std::string mask(expected.size(), '1');
    for (std::size_t run = random.below(4); run > 0 && !mask.empty(); --run) {
      const std::size_t first = random.below(mask.size());
      mask.replace(first, std::min(mask.size() - first, 1 + random.below(3)),
                   std::min(mask.size() - first, 1 + random.below(3)), '0');
      mask.resize(expected.size(), '1');
    }
    vector.apply(mask_of(mask), 0);
    Ints kept;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == '1')
        kept.push_back(expected[i]);
    }
    expected = kept;
    ASSERT_EQ(values_of(vector), expected) << step;
    ASSERT_EQ(vector.size(), expected.size());
  }
}

}  // namespace
}  // namespace kvevict
