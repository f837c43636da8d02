#include "kvevict/scoring/value_norms.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::LayoutCache;
using kvevict_test::Part;
using Floats = std::vector<float>;

constexpr CacheShape kShape{
    .num_layers = 3, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4, .value_dim = 3};

/// Slot s of head h of layer l has a value of norm 5 (s + 4 h + 8 l + 1), each in one cache.
void write(LayoutCache& cache, std::size_t first, std::size_t last) {
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      for (std::size_t slot = first; slot < last; ++slot) {
        const auto x = static_cast<float>(slot + 4 * head + 8 * layer + 1);
        cache.set(Part::kValues, layer, head, slot, {3 * x, 0, -4 * x});
      }
      cache.length(layer, head) = last;
    }
  }
}
float norm(std::size_t layer, std::size_t head, std::size_t slot) {
  return 5 * static_cast<float>(slot + 4 * head + 8 * layer + 1);
}
Floats floats(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST(ValueNorms, AreThoseOfTheCacheInEveryLayout) {
  for (const auto& layout : kvevict_test::all_layouts()) {
    LayoutCache cache = layout.make(kShape, 20);
    ValueNorms norms(kShape, {0, 2});
    norms.append(3);
    EXPECT_FALSE(norms.complete());
    write(cache, 0, 3);
    norms.observe(ViewRef(cache.view()), kernels::best());
    EXPECT_TRUE(norms.complete());
    for (const std::size_t layer : {0U, 2U}) {
      for (std::size_t head = 0; head < 2; ++head) {
        EXPECT_EQ(floats(norms.of(layer, head)),
                  (Floats{norm(layer, head, 0), norm(layer, head, 1), norm(layer, head, 2)}))
            << layout.name;
      }
    }
  }
}

TEST(ValueNorms, AreComputedOnce) {
  LayoutCache cache = kvevict_test::layouts::nhd(kShape, 20, ElementType::kF32);
  ValueNorms norms(kShape, {1});
  norms.append(2);
  write(cache, 0, 2);
  norms.observe(ViewRef(cache.view()), kernels::best());
  norms.append(2);
  EXPECT_FALSE(norms.complete());
  write(cache, 2, 4);
  cache.set(Part::kValues, 1, 1, 0, {0, 0, 0});  // is not looked at again
  norms.observe(ViewRef(cache.view()), kernels::best());
  EXPECT_TRUE(norms.complete());
  EXPECT_EQ(floats(norms.of(1, 1)),
            (Floats{norm(1, 1, 0), norm(1, 1, 1), norm(1, 1, 2), norm(1, 1, 3)}));
}

TEST(ValueNorms, FollowTheCacheWithUnknownOnesToo) {
  LayoutCache cache = kvevict_test::layouts::nhd(kShape, 20, ElementType::kF32);
  ValueNorms norms(kShape, {1});
  norms.append(4);
  write(cache, 0, 4);
  norms.observe(ViewRef(cache.view()), kernels::best());
  norms.append(2);
  norms.apply(kvevict_test::mask_of("101101"));  // of the two unknown ones one stays
  EXPECT_FALSE(norms.complete());
  write(cache, 0, 4);  // now a token of norm 5 (3 + 1) lies in slot 3
  norms.observe(ViewRef(cache.view()), kernels::best());
  EXPECT_EQ(floats(norms.of(1, 0)),
            (Floats{norm(1, 0, 0), norm(1, 0, 2), norm(1, 0, 3), norm(1, 0, 3)}));
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(2);
  norms.truncate(sequence);
  EXPECT_EQ(floats(norms.of(1, 0)), (Floats{norm(1, 0, 0), norm(1, 0, 2)}));
  norms.reset();
  EXPECT_TRUE(norms.of(1, 0).empty());
  EXPECT_TRUE(norms.complete());
}

// Rule R8: the squares do not fit in half precision.
TEST(ValueNorms, LargeHalvesDoNotOverflow) {
  LayoutCache cache = kvevict_test::layouts::nhd(kShape, 4, ElementType::kF16);
  write(cache, 0, 1);
  cache.set(Part::kValues, 1, 0, 0, {600, 0, 800});
  ValueNorms norms(kShape, {1});
  norms.append(1);
  norms.observe(ViewRef(cache.view()), kernels::best());
  EXPECT_EQ(norms.of(1, 0)[0], 1000.0F);
}

TEST(WeighByNorms, DividesByTheMeanOverTheRow) {
  Floats row{.5F, .25F, .25F};
  weigh_by_norms(Floats{1, 2, 3, 99}, row);  // the row does not see the last slot
  EXPECT_EQ(row, (Floats{.25F, .25F, .375F}));
}

TEST(WeighByNorms, LeavesARowOfZeroValuesAlone) {
  Floats row{.5F, .5F};
  weigh_by_norms(Floats{0, 0}, row);
  EXPECT_EQ(row, (Floats{.5F, .5F}));
}

TEST(WeighByNorms, NonFiniteNormSpoilsItsOwnEntryOnly) {
  Floats row{.5F, .5F, .5F};
  weigh_by_norms(Floats{1, std::numeric_limits<float>::quiet_NaN(), 3}, row);
  EXPECT_EQ(row[0], .25F);
  EXPECT_TRUE(std::isnan(row[1]));
  EXPECT_EQ(row[2], .75F);
}

}  // namespace
}  // namespace kvevict
