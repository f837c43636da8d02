#include "kvevict/kernels/q8_0.hpp"

#include "kvevict/element_type.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace kvevict::kernels {
namespace {

using Floats = std::array<float, 32>;
using Block = std::array<std::byte, 34>;

Block written(const Floats& x) {
  Block block;
  to_q8_0(x.data(), block.data());
  return block;
}
std::uint16_t scale_of(const Block& block) {
  std::uint16_t half = 0;
  std::memcpy(&half, block.data(), sizeof(half));
  return half;
}
int byte_of(const Block& block, std::size_t i) {
  return std::to_integer<std::int8_t>(block[2 + i]);
}

// Two blocks: scales of 2 (0x4000) and -1/4 (0xB400); element i of a block is the byte i - 16.
TEST(Q8, AnElementIsItsByteTimesTheScaleOfItsBlock) {
  std::vector<std::byte> row(2 * 34);
  const std::uint16_t scales[] = {0x4000, 0xB400};
  for (std::size_t b = 0; b < 2; ++b) {
    std::memcpy(row.data() + 34 * b, &scales[b], 2);
    for (std::size_t i = 0; i < 32; ++i)
      row[34 * b + 2 + i] = static_cast<std::byte>(i - 16);
  }
  EXPECT_EQ(from_q8_0(row.data(), 0), -32.0F);
  EXPECT_EQ(from_q8_0(row.data(), 31), 30.0F);
  EXPECT_EQ(from_q8_0(row.data(), 32), 4.0F);
  EXPECT_EQ(from_q8_0(row.data(), 63), -3.75F);
}

// The largest is 63.5, so the scale is 1/2 (0x3800).
TEST(Q8, WritesTheNearestMultiplesOfTheScale) {
  Floats x{};
  x[0] = -63.5F;
  x[1] = 0.5F;
  x[2] = 0.24F;
  x[3] = 0.26F;
  x[31] = -1.3F;
  const Block block = written(x);
  EXPECT_EQ(scale_of(block), 0x3800);
  EXPECT_EQ(byte_of(block, 0), -127);
  EXPECT_EQ(byte_of(block, 1), 1);
  EXPECT_EQ(byte_of(block, 2), 0);
  EXPECT_EQ(byte_of(block, 3), 1);
  EXPECT_EQ(byte_of(block, 31), -3);
}

TEST(Q8, ZeroesAndWhatNoScaleReachesAreZero) {
  EXPECT_EQ(written({}), Block{});
  EXPECT_EQ(written({1e-8F, -1e-8F}), Block{});  // 1e-8 / 127 is far below 2^-25
}

// 127 * 2^-24 needs the smallest binary16, 0x0001. 1.4 times that does so too, being nearer to it
// than to the next, and is cut off at 127.
TEST(Q8, SmallScalesAreSubnormal) {
  const float smallest = std::ldexp(1.0F, -24);
  EXPECT_EQ(scale_of(written({127 * smallest})), 0x0001);
  EXPECT_EQ(byte_of(written({127 * smallest}), 0), 127);
  EXPECT_EQ(scale_of(written({-1.4F * 127 * smallest})), 0x0001);
  EXPECT_EQ(byte_of(written({1.4F * 127 * smallest}), 0), 127);
}

// What 65504 * -128 was read from goes back to it; a larger number would need an infinite scale.
TEST(Q8, TheScaleIsNeverInfinite) {
  EXPECT_EQ(scale_of(written({-65504.0F * 128})), 0x7BFF);
  EXPECT_EQ(byte_of(written({-65504.0F * 128}), 0), -128);
  EXPECT_EQ(scale_of(written({std::numeric_limits<float>::max()})), 0x7BFF);
  EXPECT_EQ(byte_of(written({std::numeric_limits<float>::max()}), 0), 127);
}

// Half a step and the rounding of the scale to 11 bits, which 127 steps feel.
TEST(Q8, WritingMovesNumbersByHalfAStep) {
  Floats x;
  for (std::size_t i = 0; i < 32; ++i)
    x[i] = std::sin(static_cast<float>(7 * i)) * 3.0F;
  const Block block = written(x);
  const float step = from_f16(scale_of(block));
  EXPECT_NEAR(step, 3.0F / 127, 3.0F / 127 * 0.03F);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_NEAR(from_q8_0(block.data(), i), x[i], step * (0.5F + 127.0F / 2048));
}

}  // namespace
}  // namespace kvevict::kernels
