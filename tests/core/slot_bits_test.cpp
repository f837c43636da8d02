#include "kvevict/core/slot_bits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvevict::detail {
namespace {

TEST(SlotBits, LowestBits) {
  EXPECT_EQ(lowest_bits(0), 0U);
  EXPECT_EQ(lowest_bits(3), 7U);
  EXPECT_EQ(lowest_bits(63), ~std::uint64_t{0} >> 1U);
  EXPECT_EQ(lowest_bits(64), ~std::uint64_t{0});
  EXPECT_EQ(lowest_bits(1000), ~std::uint64_t{0});
}

/// What SlotTaker does, one slot after another.
struct Slots {
  std::vector<bool> keep;
  std::vector<bool> candidates;

  bool take(std::size_t s) {
    if (!candidates[s])
      return false;
    candidates[s] = false;
    keep[s] = true;
    return true;
  }
  std::size_t take_range(std::size_t first, std::size_t last, std::size_t room) {
    std::size_t taken = 0;
    for (std::size_t s = first; s < last && taken < room; ++s)
      taken += take(s) ? 1 : 0;
    return taken;
  }
  std::size_t take_window(std::size_t end, std::size_t count, std::size_t room, bool newest) {
    std::size_t taken = 0;
    for (std::size_t i = 0; i < end && count > 0 && taken < room; ++i) {
      const std::size_t s = newest ? end - 1 - i : i;
      if (!keep[s] && !candidates[s])
        continue;
      --count;
      taken += take(s) ? 1 : 0;
    }
    return taken;
  }
};

std::vector<std::uint64_t> words_of(const std::vector<bool>& bits) {
  std::vector<std::uint64_t> words((bits.size() + 63) / 64);
  for (std::size_t s = 0; s < bits.size(); ++s)
    words[s / 64] |= std::uint64_t{bits[s]} << (s % 64);
  return words;
}

// Lengths around the word size; a third of the slots is kept already, a third not valid.
TEST(SlotBits, TakesWhatASlotBySlotWalkTakes) {
  std::mt19937 random(7);
  for (const std::size_t len : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 200U}) {
    for (std::size_t round = 0; round < 200; ++round) {
      Slots slots{std::vector<bool>(len), std::vector<bool>(len)};
      for (std::size_t s = 0; s < len; ++s) {
        const auto kind = round % 2 == 0 ? 1U : static_cast<unsigned>(random() % 3);
        slots.keep[s] = kind == 0;
        slots.candidates[s] = kind == 1;
      }
      std::vector<std::uint64_t> keep = words_of(slots.keep);
      std::vector<std::uint64_t> candidates = words_of(slots.candidates);
      SlotTaker taker(keep, candidates);
      const auto any = [&] { return static_cast<std::size_t>(random() % (len + 2)); };
      const std::size_t last = std::min(any(), len);
      const std::size_t first = std::min(any(), last);
      const std::size_t few = any() / 4;
      ASSERT_EQ(taker.take_first(first, last, few), slots.take_range(first, last, few));
      ASSERT_EQ(taker.take(first, last), slots.take_range(first, last, len));
      const std::size_t end = std::min(any(), len);
      const std::size_t newest = any();
      const std::size_t oldest = any();
      std::size_t room = any();
      ASSERT_EQ(taker.take_newest(end, newest, room), slots.take_window(end, newest, room, true));
      room = any();
      ASSERT_EQ(taker.take_oldest(end, oldest, room), slots.take_window(end, oldest, room, false));
      ASSERT_EQ(keep, words_of(slots.keep));
      ASSERT_EQ(candidates, words_of(slots.candidates));
    }
  }
}

}  // namespace
}  // namespace kvevict::detail
