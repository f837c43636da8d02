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

TEST(ElementType, SizeInBytes) {
  EXPECT_EQ(element_size(ElementType::kF32), 4U);
  EXPECT_EQ(element_size(ElementType::kF16), 2U);
  EXPECT_EQ(element_size(ElementType::kBF16), 2U);
}

}  // namespace
}  // namespace kvevict
