#include "kvevict/core/types.hpp"

#include <gtest/gtest.h>

namespace kvevict {
namespace {

TEST(Inputs, CoversMeansAllOfThem) {
  constexpr Inputs kSupplied = Inputs::kAttention | Inputs::kValues;
  EXPECT_TRUE(covers(kSupplied, Inputs::kAttention));
  EXPECT_TRUE(covers(kSupplied, kSupplied));
  EXPECT_TRUE(covers(kSupplied, Inputs::kNothing));
  EXPECT_FALSE(covers(kSupplied, Inputs::kAttention | Inputs::kKeys));
  EXPECT_FALSE(covers(Inputs::kNothing, Inputs::kHiddenStates));
}

TEST(ElementType, RowsInBytes) {
  EXPECT_EQ(row_bytes(ElementType::kF32, 3), 12U);
  EXPECT_EQ(row_bytes(ElementType::kF16, 3), 6U);
  EXPECT_EQ(row_bytes(ElementType::kBF16, 3), 6U);
  // Blocks of 32 bytes and a scale of two.
  EXPECT_EQ(row_bytes(ElementType::kQ8_0, 96), 3U * 34U);
  EXPECT_EQ(block_len(ElementType::kQ8_0), 32U);
  EXPECT_EQ(block_len(ElementType::kBF16), 1U);
}

}  // namespace
}  // namespace kvevict
