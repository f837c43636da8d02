#include "kvevict/temporal/sample_windows.hpp"

#include "support/masks.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

float add(float a, float b) {
  return a + b;
}
float larger(float a, float b) {
  return std::max(a, b);
}

// Against the window itself, in whole numbers, which sums in any order keep exact. The token in
// slot 1 has half as many samples, so its blocks begin elsewhere.
TEST(SampleWindows, JoinTheLastSamplesOfEachToken) {
  for (const std::size_t length : {1U, 2U, 3U, 7U}) {
    SampleWindows sums(kShape, MaskScope::kModel, length);
    SampleWindows maxima(kShape, MaskScope::kModel, length);
    sums.append(2);
    maxima.append(2);
    kvevict_test::Random random(11);
    std::vector<std::vector<float>> samples(2);
    for (std::size_t t = 0; t < 50; ++t) {
      for (std::size_t slot = 0; slot < 2; ++slot) {
        if (slot == 1 && t % 2 == 0)
          continue;
        std::vector<float>& all = samples[slot];
        all.push_back(static_cast<float>(random.bits() >> 58U) - 40);
        const auto first = all.end() - static_cast<std::ptrdiff_t>(std::min(length, all.size()));
        EXPECT_EQ(sums.push(0, slot, all.size() - 1, all.back(), add),
                  std::accumulate(first, all.end(), 0.0F))
            << length << ' ' << t;
        EXPECT_EQ(maxima.push(0, slot, all.size() - 1, all.back(), larger),
                  *std::max_element(first, all.end()))
            << length << ' ' << t;
      }
    }
  }
}

// 1, 2 and 4 in slot 0; 10, 20 and 40 in slot 1, which becomes slot 0.
TEST(SampleWindows, GoWithTheirTokens) {
  SampleWindows sums(kShape, MaskScope::kModel, 2);
  sums.append(2);
  for (std::size_t i = 0; i < 3; ++i) {
    static_cast<void>(sums.push(0, 0, i, static_cast<float>(1U << i), add));
    static_cast<void>(sums.push(0, 1, i, static_cast<float>(10U << i), add));
  }
  sums.apply(kvevict_test::mask_of(MaskScope::kModel, 1, 1, {"01"}));
  EXPECT_EQ(sums.push(0, 0, 3, 80, add), 120.0F);
}

}  // namespace
}  // namespace kvevict
