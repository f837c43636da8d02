#include "kvevict/kernels/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

using namespace kvevict::kernels;

// By definition of binary16: sign, exponent with bias 15, ten bits of mantissa.
double value_of_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0)
    return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryF16BitPatternHasItsValue) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = from_f16(half);
    if ((bits >> 10 & 31) < 31) {
      EXPECT_EQ(static_cast<double>(value), value_of_f16(half));
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
      EXPECT_EQ(to_f16(value), half);
    } else if ((bits & 1023) == 0) {
      EXPECT_TRUE(std::isinf(value));
      EXPECT_EQ(to_f16(value), half);
    } else {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(from_f16(to_f16(value))));
    }
  }
}

// Between two neighbours the nearer one wins, halfway the even one.
TEST(Half, F16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits + 1 < 0x7C00; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float middle = static_cast<float>((value_of_f16(low) + value_of_f16(high)) / 2);
    EXPECT_EQ(to_f16(middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(to_f16(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(to_f16(std::nextafter(middle, 1e9F)), high);
  }
  EXPECT_EQ(to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F), 0x7C00);  // halfway to 65536, which is infinity
  EXPECT_EQ(to_f16(-1e30F), 0xFC00);
}

TEST(Half, Bf16IsTheUpperHalfRoundedToNearestEven) {
  EXPECT_EQ(from_bf16(0x3FC0), 1.5F);
  EXPECT_EQ(to_bf16(1.5F), 0x3FC0);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // tie, even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000U)), 0x3F82);  // tie, even above
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7F800001U)))));
  EXPECT_EQ(from_bf16(0x0001), std::bit_cast<float>(0x00010000U));  // subnormal
}

}  // namespace
