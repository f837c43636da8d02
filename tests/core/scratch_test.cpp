#include "kvevict/core/scratch.hpp"

#include <gtest/gtest.h>

#include <span>

namespace kvevict {
namespace {

TEST(Scratch, KeepsItsMemory) {
  Scratch scratch;
  const std::span<float> large = scratch.floats(0, 100);
  EXPECT_EQ(large.size(), 100U);
  const std::span<float> small = scratch.floats(0, 3);
  EXPECT_EQ(small.size(), 3U);
  EXPECT_EQ(small.data(), large.data());
  EXPECT_EQ(scratch.floats(0, 100).data(), large.data());
}

TEST(Scratch, BuffersAreApart) {
  Scratch scratch;
  const std::span<float> a = scratch.floats(0, 4);
  a[0] = 1.0F;
  scratch.floats(1, 4)[0] = 2.0F;
  scratch.vector(2).assign(2, 3.0F);
  EXPECT_EQ(a[0], 1.0F);
  EXPECT_EQ(scratch.vector(2).size(), 2U);
}

}  // namespace
}  // namespace kvevict
