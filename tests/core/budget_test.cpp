#include "kvevict/core/budget.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <type_traits>

namespace kvevict {
namespace {

using kvevict_test::refuses;

// In binary floating point 1000 * (1 - 0.9) is 99.99...: a share is what its decimals say.
TEST(Budget, RatioIsExactDecimalArithmetic) {
  EXPECT_EQ(Budget::keep_ratio(0.1).tokens_of(1000), 100U);
  EXPECT_EQ(Budget::compression_ratio(0.9).tokens_of(1000), 100U);
  EXPECT_EQ(Budget::compression_ratio(0.9).tokens_of(10), 1U);
  EXPECT_EQ(Budget::compression_ratio(0.7).tokens_of(10), 3U);
  EXPECT_EQ(Budget::keep_ratio(0.29).tokens_of(100), 29U);
  EXPECT_EQ(Budget::keep_ratio(0.123456789).tokens_of(1'000'000'000), 123'456'789U);
}

TEST(Budget, RatioRoundsDown) {
  EXPECT_EQ(Budget::keep_ratio(0.5).tokens_of(7), 3U);
  EXPECT_EQ(Budget::compression_ratio(0.001).tokens_of(7), 6U);
}

// O-01: rho = 0.6 of 1 and of 2 tokens leaves one; only rho = 1 empties the cache.
TEST(Budget, RatioKeepsAtLeastOneUnlessItKeepsNothing) {
  const Budget budget = Budget::compression_ratio(0.6);
  EXPECT_EQ(budget.tokens_of(0), 0U);
  EXPECT_EQ(budget.tokens_of(1), 1U);
  EXPECT_EQ(budget.tokens_of(2), 1U);
  EXPECT_EQ(Budget::compression_ratio(1.0).tokens_of(2), 0U);
  EXPECT_EQ(Budget::keep_ratio(0.0).tokens_of(1'000'000), 0U);
  EXPECT_EQ(Budget::keep_ratio(1.0).tokens_of(7), 7U);
}

// R6: "only if rho >= 1" holds for shares finer than the nine places that are read, too.
TEST(Budget, NearlyEverythingIsNotEverything) {
  EXPECT_EQ(Budget::compression_ratio(1.0 - 1e-12).tokens_of(5), 1U);
  EXPECT_EQ(Budget::keep_ratio(1e-12).tokens_of(5), 1U);
  EXPECT_EQ(Budget::keep_ratio(1.0 - 1e-12).tokens_of(5), 4U);
  EXPECT_EQ(Budget::compression_ratio(1e-12).tokens_of(5), 4U);
}

// R13: the product of length and share needs more than 64 bits if it is formed at once.
TEST(Budget, RatioOfAVeryLongSequence) {
  constexpr std::size_t kLen = std::size_t{1} << 60U;
  EXPECT_EQ(Budget::keep_ratio(0.5).tokens_of(kLen), kLen / 2);
  EXPECT_EQ(Budget::keep_ratio(1.0).tokens_of(kLen), kLen);
}

TEST(Budget, TokensAreANumberWhateverTheLength) {
  const Budget budget = 64;
  EXPECT_TRUE(budget.is_tokens());
  EXPECT_EQ(budget.count(), 64U);
  EXPECT_EQ(budget.tokens_of(10), 64U);
  EXPECT_EQ(Budget::tokens(64).tokens_of(1000, 8), 64U);
}

TEST(Budget, TotalIsSharedByTheLanes) {
  const Budget budget = Budget::total(10);
  EXPECT_TRUE(budget.is_total());
  EXPECT_EQ(budget.count(), 10U);
  EXPECT_EQ(budget.tokens_of(1000, 4), 2U);
}

// A share written as a plain number would be truncated to 0 tokens.
static_assert(!std::is_constructible_v<Budget, double> && !std::is_constructible_v<Budget, float>);
static_assert(std::is_convertible_v<int, Budget> && std::is_convertible_v<std::size_t, Budget>);

TEST(Budget, RefusesANegativeNumberOfTokens) {
  EXPECT_TRUE(refuses([] { return Budget(-1); }, {"Budget", "tokens", "-1"}));
}

TEST(Budget, RefusesWhatIsNoShare) {
  EXPECT_TRUE(refuses([] { return Budget::keep_ratio(1.5); }, {"Budget", "keep_ratio", "1.5"}));
  EXPECT_TRUE(refuses([] { return Budget::compression_ratio(-0.25); },
                      {"Budget", "compression_ratio", "-0.25"}));
  EXPECT_TRUE(refuses([] { return Budget::keep_ratio(std::numeric_limits<double>::quiet_NaN()); },
                      {"Budget", "keep_ratio", "nan"}));
}

}  // namespace
}  // namespace kvevict
