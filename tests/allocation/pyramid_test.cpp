#include "kvevict/allocation/pyramid.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::PyramidBudgets;
using kvevict::PyramidRounding;
using Sizes = std::vector<std::size_t>;

kvevict::CacheShape shape_of(std::size_t layers, std::size_t kv_heads = 1) {
  return {.num_layers = layers, .num_q_heads = kv_heads, .num_kv_heads = kv_heads, .head_dim = 1};
}
Sizes budgets(const PyramidBudgets& pyramid, std::size_t len) {
  const auto table = pyramid.budgets(len).lane_budgets;
  return {table.begin(), table.end()};
}

// b = 8, beta 4: lo = 8 / 4 = 2, hi = 16 - 2 = 14; steps of 4.
TEST(PyramidBudgets, FallOnALine) {
  const PyramidBudgets pyramid(shape_of(4), 12, 4, 4, PyramidRounding::kExact);
  EXPECT_EQ(budgets(pyramid, 1000), (Sizes{18, 14, 10, 6}));
}

// n - w = 12 < 14: hi = 12, lo = 16 - 12 = 4. The line 12, 9.33, 6.67, 4 adds up to 32; the
// authors' step floor(8 / 3) = 2 makes it 12, 10, 8, 6 = 36.
TEST(PyramidBudgets, AreCutAtThePrompt) {
  const PyramidBudgets exact(shape_of(4), 12, 4, 4, PyramidRounding::kExact);
  EXPECT_EQ(budgets(exact, 16), (Sizes{16, 13, 11, 8}));
  const PyramidBudgets official(shape_of(4), 12, 4, 4, PyramidRounding::kOfficial);
  EXPECT_EQ(budgets(official, 16), (Sizes{16, 14, 12, 10}));
}

// 32 layers, 2048 tokens, window 32, prompt 8192: lo 100, hi 3932, step 123 for 123.6.
TEST(PyramidBudgets, AuthorsLeakWhereTheDefaultDoesNot) {
  const auto sum = [](PyramidRounding rounding) {
    const Sizes table = budgets({shape_of(32), 2048, 32, 20, rounding}, 8192);
    return std::accumulate(table.begin(), table.end(), std::size_t{0});
  };
  EXPECT_EQ(sum(PyramidRounding::kExact), 32U * 2048U);
  EXPECT_EQ(sum(PyramidRounding::kOfficial), 32U * 2048U + 304U);
}

TEST(PyramidBudgets, AreEqualWhereThereIsNoPyramid) {
  // n < 2b.
  EXPECT_EQ(budgets({shape_of(4), 10, 2, 4, PyramidRounding::kExact}, 14), (Sizes(4, 10)));
  // The prompt fits, or there is none.
  EXPECT_EQ(budgets({shape_of(4), 10, 2, 4, PyramidRounding::kExact}, 10), (Sizes(4, 10)));
  EXPECT_EQ(budgets({shape_of(4), 10, 2, 4, PyramidRounding::kExact}, 0), (Sizes(4, 10)));
  // Nothing but the window.
  EXPECT_EQ(budgets({shape_of(4), 10, 10, 4, PyramidRounding::kExact}, 100), (Sizes(4, 10)));
  // One layer; kvpress takes the top of its line: b = 32, 32 / 4 = 8, 56.
  EXPECT_EQ(budgets({shape_of(1), 64, 8, 20, PyramidRounding::kOfficial}, 500), (Sizes{64}));
  EXPECT_EQ(budgets({shape_of(1), Budget::keep_ratio(0.5), 8, 4, PyramidRounding::kKvpress}, 64),
            (Sizes{56}));
}

// A total is conserved to the entry: 2 layers of 2 heads, 41 = 4 * 2 + 33; b = 8.25, lo = 4,
// hi = 12.5; the two halves of the first layer go to its first head and then its second: 33 = 13 +
// 12 + 4 + 4 after the largest fraction .5 is given once.
TEST(PyramidBudgets, ConserveATotal) {
  const PyramidBudgets pyramid(shape_of(2, 2), Budget::total(41), 2, 2, PyramidRounding::kExact);
  EXPECT_EQ(budgets(pyramid, 1000), (Sizes{15, 14, 6, 6}));
}

}  // namespace
}  // namespace kvevict_test
