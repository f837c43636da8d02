#include "kvevict/scoring/output_projection.hpp"

#include "kvevict/kernels/half.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace {

using namespace kvevict;
using kvevict_test::Random;
using kvevict_test::refuses;

constexpr CacheShape kShape{
    .num_layers = 2, .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 8, .value_dim = 5};
constexpr std::size_t kHidden = 13;
constexpr std::size_t kDim = 5;

std::vector<float> random_weight(const CacheShape& shape, std::size_t hidden_size, Random& random) {
  std::vector<float> weight(shape.num_q_heads * shape.value_size() * hidden_size);
  for (float& w : weight)
    w = random.eighths();
  return weight;
}

/// | v W | with W the sum of the rows of `heads`, formed in full.
double naive_norm(const float* v, const std::vector<float>& weight,
                  const std::vector<std::size_t>& heads) {
  double squares = 0;
  for (std::size_t d = 0; d < kHidden; ++d) {
    double sum = 0;
    for (const std::size_t head : heads) {
      for (std::size_t c = 0; c < kDim; ++c) {
        sum += static_cast<double>(v[c]) *
               static_cast<double>(weight[(head * kDim + c) * kHidden + d]);
      }
    }
    squares += sum * sum;
  }
  return std::sqrt(squares);
}

Rows dense_rows(const std::vector<float>& values, std::size_t dim) {
  Rows rows;
  rows.data = reinterpret_cast<const std::byte*>(values.data());
  rows.slot_stride_bytes = static_cast<std::ptrdiff_t>(dim * sizeof(float));
  rows.dim_stride_bytes = sizeof(float);
  return rows;
}

TEST(OutputProjection, NormsOfEveryReading) {
  Random random(1);
  OutputProjection projection(kShape, kHidden);
  std::vector<std::vector<float>> weights;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    weights.push_back(random_weight(kShape, kHidden, random));
    projection.set_layer(layer, weights.back().data());
  }
  std::vector<float> values(9 * kDim);
  for (float& v : values)
    v = random.eighths();
  std::vector<float> gathered;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
      const std::size_t first_head = kv_head * 3;
      const auto check = [&](GroupReading reading,
                             const std::vector<std::vector<std::size_t>>& sums) {
        const std::span<const float> factors = projection.factors(layer, kv_head, reading);
        ASSERT_EQ(factors.size(), sums.size() * kDim * kDim);
        // From slot 2 on, so that the offset counts.
        std::vector<float> norms(sums.size() * 7);
        projected_norms(dense_rows(values, kDim), kDim, 2, 9, factors, kernels::best(), gathered,
                        norms);
        for (std::size_t f = 0; f < sums.size(); ++f) {
          std::vector<std::size_t> heads;
          for (const std::size_t h : sums[f])
            heads.push_back(first_head + h);
          for (std::size_t i = 0; i < 7; ++i) {
            const double expected = naive_norm(&values[(i + 2) * kDim], weights[layer], heads);
            EXPECT_NEAR(norms[f * 7 + i], expected, 2e-6 * (1 + expected));
          }
        }
      };
      check(GroupReading::kHeadProducts, {{0}, {1}, {2}});
      check(GroupReading::kMeanNorms, {{0}, {1}, {2}});
      check(GroupReading::kSummed, {{0, 1, 2}});
      check(GroupReading::kExact, {{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}});
    }
  }
}

TEST(OutputProjection, ForOneReadingItIsTheSame) {
  Random random(2);
  const std::vector<float> weight = random_weight(kShape, kHidden, random);
  OutputProjection all(kShape, kHidden);
  all.set_layer(1, weight.data());
  for (const GroupReading reading : {GroupReading::kHeadProducts, GroupReading::kMeanNorms,
                                     GroupReading::kSummed, GroupReading::kExact}) {
    OutputProjection one(kShape, kHidden, reading);
    one.set_layer(1, weight.data());
    EXPECT_TRUE(one.serves(reading));
    const auto expected = all.factors(1, 1, reading);
    const auto actual = one.factors(1, 1, reading);
    EXPECT_EQ(std::vector<float>(actual.begin(), actual.end()),
              std::vector<float>(expected.begin(), expected.end()));
  }
}

// What is prepared for one reading also has what the cheaper ones need, except the sum.
TEST(OutputProjection, SaysWhichReadingsItServes) {
  using enum GroupReading;
  const auto serves = [](std::optional<GroupReading> only, GroupReading reading) {
    return OutputProjection(kShape, kHidden, only).serves(reading);
  };
  for (const GroupReading reading : {kHeadProducts, kMeanNorms, kSummed, kExact}) {
    EXPECT_TRUE(serves(std::nullopt, reading));
    EXPECT_EQ(serves(kHeadProducts, reading), reading == kHeadProducts || reading == kMeanNorms);
    EXPECT_EQ(serves(kSummed, reading), reading == kSummed);
    EXPECT_EQ(serves(kExact, reading), reading != kSummed);
  }
  const CacheShape no_groups{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};
  EXPECT_TRUE(OutputProjection(no_groups, kHidden, kSummed).serves(kExact));
}

TEST(OutputProjection, HalfPrecisionAndStridedRows) {
  Random random(3);
  const std::vector<float> weight = random_weight(kShape, kHidden, random);  // exact in 16 bits
  OutputProjection expected(kShape, kHidden);
  expected.set_layer(0, weight.data());
  constexpr std::size_t kStride = kHidden + 4;
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const std::size_t size = row_bytes(type, 1);
    std::vector<std::byte> stored(30 * kStride * size, std::byte{0xFF});  // gaps are NaN
    for (std::size_t row = 0; row < 30; ++row) {
      for (std::size_t d = 0; d < kHidden; ++d) {
        const float w = weight[row * kHidden + d];
        std::byte* at = stored.data() + (row * kStride + d) * size;
        const std::uint16_t half =
            type == ElementType::kF16 ? kernels::to_f16(w) : kernels::to_bf16(w);
        std::memcpy(at, type == ElementType::kF32 ? static_cast<const void*>(&w) : &half, size);
      }
    }
    OutputProjection projection(kShape, kHidden);
    projection.set_layer(0, stored.data(), type, static_cast<std::ptrdiff_t>(kStride * size));
    const auto a = projection.factors(0, 1, GroupReading::kExact);
    const auto b = expected.factors(0, 1, GroupReading::kExact);
    EXPECT_EQ(std::vector<float>(a.begin(), a.end()), std::vector<float>(b.begin(), b.end()));
  }
}

// W of fewer columns than rows, with rows that repeat or are zero, has no inverse; its norms are
// as good as any.
TEST(OutputProjection, SingularBlocks) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 4};
  const std::vector<float> weight{1,  2,  1,  2,  0, 0, -1, 1,    // head 0: rows 0 and 1 equal
                                  -1, -2, -1, -2, 0, 0, 1,  -1};  // head 1 undoes it
  OutputProjection projection(shape, 2);
  projection.set_layer(0, weight.data());
  const std::vector<float> values{1, 1, 1, 1, 1, -1, 5, 0};
  std::vector<float> gathered;
  std::vector<float> norms(3 * 2);
  projected_norms(dense_rows(values, 4), 4, 0, 2, projection.factors(0, 0, GroupReading::kExact),
                  kernels::best(), gathered, norms);
  EXPECT_NEAR(norms[0], std::sqrt(26.0), 1e-5);  // (1, 5)
  EXPECT_NEAR(norms[1], 0.0, 1e-5);
  EXPECT_NEAR(norms[2], std::sqrt(26.0), 1e-5);
  EXPECT_NEAR(norms[4], 0.0, 1e-5);  // the pair cancels
  EXPECT_NEAR(norms[5], 0.0, 1e-5);
}

// Case O-14: the norm of a half-precision row is taken in float.
TEST(ProjectedNorms, HalfPrecisionValuesDoNotOverflow) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  OutputProjection projection(shape, 2);
  const std::vector<float> identity{1, 0, 0, 1};
  projection.set_layer(0, identity.data());
  std::vector<std::uint16_t> value{kernels::to_f16(600.0F), kernels::to_f16(800.0F)};
  const auto tensor = views::Tensor::hnd(value.data(), ElementType::kF16, 1, 1, 2);
  const views::ContiguousView view(shape, tensor, tensor, 1);
  std::vector<float> gathered;
  std::vector<float> norm(1);
  projected_norms(view.lane(0, 0).values, 2, 0, 1,
                  projection.factors(0, 0, GroupReading::kMeanNorms), kernels::best(), gathered,
                  norm);
  EXPECT_NEAR(norm[0], 1000.0F, 1e-2F);
  row_norms(view.lane(0, 0).values, 2, 0, 1, kernels::best(), gathered, norm);
  EXPECT_NEAR(norm[0], 1000.0F, 1e-2F);
}

TEST(OutputProjection, IsCompleteOnceEveryLayerIsSet) {
  OutputProjection projection(kShape, kHidden);
  const std::vector<float> weight(30 * kHidden);
  EXPECT_FALSE(projection.complete());
  projection.set_layer(1, weight.data());
  EXPECT_FALSE(projection.complete());
  projection.set_layer(0, weight.data());
  EXPECT_TRUE(projection.complete());
  EXPECT_TRUE(
      refuses([&] { projection.set_layer(2, weight.data()); }, {"OutputProjection", "layer = 2"}));
  EXPECT_TRUE(
      refuses([] { OutputProjection(kShape, 0); }, {"OutputProjection", "hidden_size = 0"}));
}

}  // namespace
