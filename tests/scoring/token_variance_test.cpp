#include "kvevict/scoring/token_variance.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/min_max.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using views::ContiguousView;
using views::Tensor;

// Two layers, two heads, three tokens, two channels; the sample variance of (a, b) is (a-b)^2 / 2.
TEST(TokenVariance, AveragesOverLayersAndHeads) {
  const CacheShape shape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  std::vector<float> keys = {0, 2, 1, 1, 0, 4,   // layer 0, head 0: 2, 0, 8
                             0, 4, 3, 3, 5, 5,   // layer 0, head 1: 8, 0, 0
                             1, 1, 0, 6, 0, 0,   // layer 1, head 0: 0, 18, 0
                             2, 0, 0, 2, 2, 2};  // layer 1, head 1: 2, 2, 0
  std::vector<float> values(keys.size(), 1.0F);
  const ContiguousView view(shape, Tensor::hnd(keys.data(), ElementType::kF32, 3, 2, 2),
                            Tensor::hnd(values.data(), ElementType::kF32, 3, 2, 2), 3);
  Scratch scratch;
  std::vector<float> out(3, -1.0F);
  token_variances(ViewRef(view), KvPart::kKeys, 0, kernels::best(), scratch, out);
  EXPECT_EQ(out, (std::vector<float>{3, 5, 2}));
  std::vector<float> tail(2);
  token_variances(ViewRef(view), KvPart::kKeys, 1, kernels::best(), scratch, tail);
  EXPECT_EQ(tail, (std::vector<float>{5, 2}));
  token_variances(ViewRef(view), KvPart::kValues, 0, kernels::best(), scratch, out);
  EXPECT_EQ(out, (std::vector<float>{0, 0, 0}));
  keys[2] = std::numeric_limits<float>::quiet_NaN();
  token_variances(ViewRef(view), KvPart::kKeys, 0, kernels::best(), scratch, out);
  EXPECT_TRUE(std::isfinite(out[0]));
  EXPECT_FALSE(std::isfinite(out[1]));
}

TEST(MinMax, ScalesToTheUnitInterval) {
  MinMax range;
  for (const float value : {2.0F, 6.0F, 3.0F})
    range.add(value);
  EXPECT_EQ(range.scaled(2.0F), 0.0F);
  EXPECT_EQ(range.scaled(3.0F), 0.25F);
  EXPECT_EQ(range.scaled(6.0F), 1.0F);
}

TEST(MinMax, LeavesOutWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  MinMax range;
  for (const float value : {-infinity, 1.0F, std::numeric_limits<float>::quiet_NaN(), 3.0F}) {
    range.add(value);
  }
  EXPECT_EQ(range.scaled(2.0F), 0.5F);
  EXPECT_EQ(range.scaled(-infinity), -infinity);
}

TEST(MinMax, OfARangeOfZeroIsZero) {
  MinMax range;
  range.add(5.0F);
  range.add(5.0F);
  EXPECT_EQ(range.scaled(5.0F), 0.0F);
  EXPECT_EQ(MinMax().scaled(5.0F), 0.0F);
}

}  // namespace
}  // namespace kvevict
