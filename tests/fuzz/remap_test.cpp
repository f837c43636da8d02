// The fuzz body on fixed seeds.
#include "fuzz/remap_body.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvevict_test {
namespace {

TEST(RemapFuzz, FixedSeedsFindNoDifference) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    std::vector<std::uint8_t> bytes(300 + random.below(1500));
    for (std::uint8_t& byte : bytes)
      byte = static_cast<std::uint8_t>(random.bits() >> 13U);
    ASSERT_EQ(RemapFuzz::run(bytes), "") << "seed " << seed;
  }
}

TEST(RemapFuzz, ShortInputsAreInputs) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t length = 0; length < 60; ++length) {
    EXPECT_EQ(RemapFuzz::run(bytes), "");
    bytes.push_back(static_cast<std::uint8_t>(length * 37));
  }
}

}  // namespace
}  // namespace kvevict_test
