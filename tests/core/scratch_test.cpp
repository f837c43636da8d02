#include "kvevict/core/scratch.hpp"

#include <gtest/gtest.h>

#include <cstddef>
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

// Numbers of floats, doubles and counts are apart too: all three are in use at the same time.
TEST(Scratch, TypesAreApart) {
  Scratch scratch;
  const std::span<float> a = scratch.floats(0, 2);
  const std::span<double> b = scratch.doubles(0, 2);
  const std::span<std::size_t> c = scratch.counts(0, 2);
  a[1] = 1.5F;
  b[1] = 2.5;
  c[1] = 3;
  EXPECT_EQ(a[1], 1.5F);
  EXPECT_EQ(b[1], 2.5);
  EXPECT_EQ(c[1], 3U);
}

// A vector that has the memory keeps it where it grows; one without has to move.
TEST(Scratch, TakesAsMuchMemoryAsAnother) {
  Scratch large;
  static_cast<void>(large.floats(1, 100));
  static_cast<void>(large.doubles(2, 100));
  static_cast<void>(large.counts(1, 100));
  Scratch scratch;
  scratch.reserve_as(large);
  const float* const floats = scratch.floats(1, 1).data();
  const double* const doubles = scratch.doubles(2, 1).data();
  const std::size_t* const counts = scratch.counts(1, 1).data();
  EXPECT_EQ(scratch.floats(1, 100).data(), floats);
  EXPECT_EQ(scratch.doubles(2, 100).data(), doubles);
  EXPECT_EQ(scratch.counts(1, 100).data(), counts);
}

}  // namespace
}  // namespace kvevict
