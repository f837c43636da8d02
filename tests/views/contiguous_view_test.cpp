#include "kvevict/views/contiguous_view.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvevict::views {
namespace {

using kvevict_test::refuses;

constexpr CacheShape kShape{
    .num_layers = 2, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 4, .value_dim = 2};
constexpr std::size_t kCapacity = 5;

// Element offsets, written out: layer 1, head 2, slot 3.
TEST(ContiguousView, AddressesEachLayout) {
  std::vector<float> memory(2 * kCapacity * 3 * 4);
  const auto offset = [&](const Tensor& tensor) {
    const MutableRows rows = tensor.rows(1, 2);
    return (rows.row(3) - reinterpret_cast<std::byte*>(memory.data())) / 4;
  };
  const auto element_stride = [](const Tensor& tensor) { return tensor.dim_stride_bytes / 4; };
  const Tensor nhd = Tensor::nhd(memory.data(), ElementType::kF32, kCapacity, 3, 4);
  EXPECT_EQ(offset(nhd), ((1 * 5 + 3) * 3 + 2) * 4);
  EXPECT_EQ(element_stride(nhd), 1);
  const Tensor hnd = Tensor::hnd(memory.data(), ElementType::kF32, kCapacity, 3, 4);
  EXPECT_EQ(offset(hnd), ((1 * 3 + 2) * 5 + 3) * 4);
  EXPECT_EQ(element_stride(hnd), 1);
  const Tensor transposed = Tensor::transposed(memory.data(), ElementType::kF32, kCapacity, 3, 4);
  EXPECT_EQ(offset(transposed), (1 * 3 + 2) * 4 * 5 + 3);
  EXPECT_EQ(element_stride(transposed), 5);
}

// Rows of 64 are two blocks of 34 bytes.
TEST(ContiguousView, RowsOfBlocksLieSideBySide) {
  std::vector<std::byte> memory(2 * kCapacity * 3 * 68);
  const auto offset = [&](const Tensor& tensor) {
    return tensor.rows(1, 2).row(3) - memory.data();
  };
  const Tensor nhd = Tensor::nhd(memory.data(), ElementType::kQ8_0, kCapacity, 3, 64);
  EXPECT_EQ(offset(nhd), ((1 * 5 + 3) * 3 + 2) * 68);
  EXPECT_TRUE(nhd.rows(1, 2).row_is_contiguous());
  const Tensor hnd = Tensor::hnd(memory.data(), ElementType::kQ8_0, kCapacity, 3, 64);
  EXPECT_EQ(offset(hnd), ((1 * 3 + 2) * 5 + 3) * 68);
  EXPECT_TRUE(hnd.rows(1, 2).row_is_contiguous());
  EXPECT_TRUE(refuses(
      [&] {
        static_cast<void>(Tensor::transposed(memory.data(), ElementType::kQ8_0, kCapacity, 3, 64));
      },
      {"Tensor::transposed", "type"}));
}

TEST(ContiguousView, KeysAndValuesMayDiffer) {
  std::vector<float> keys(2 * kCapacity * 3 * 4);
  std::vector<std::uint16_t> values(2 * kCapacity * 3 * 2);
  const ContiguousView view(kShape, Tensor::nhd(keys.data(), ElementType::kF32, kCapacity, 3, 4),
                            Tensor::transposed(values.data(), ElementType::kF16, kCapacity, 3, 2),
                            kCapacity);
  const Lane lane = view.lane(0, 1);
  EXPECT_TRUE(lane.keys.row_is_contiguous());
  EXPECT_FALSE(lane.values.row_is_contiguous());
  EXPECT_EQ(lane.values.type, ElementType::kF16);
  EXPECT_EQ(lane.values.slot_stride_bytes, 2);
}

TEST(ContiguousView, LengthsAreSharedOrPerLane) {
  std::vector<float> memory(2 * kCapacity * 3 * 4);
  const Tensor tensor = Tensor::nhd(memory.data(), ElementType::kF32, kCapacity, 3, 4);
  EXPECT_EQ(ContiguousView(kShape, tensor, tensor, 4).lane(1, 2).seq_len, 4U);
  const std::vector<std::size_t> lengths = {1, 2, 3, 4, 5, 0};
  const ContiguousView view(kShape, tensor, tensor, lengths);
  EXPECT_EQ(view.lane(0, 1).seq_len, 2U);
  EXPECT_EQ(view.lane(1, 2).seq_len, 0U);
}

TEST(ContiguousView, ATensorWithoutMemoryIsAbsent) {
  std::vector<float> memory(2 * kCapacity * 3 * 4);
  const ContiguousView view(kShape, Tensor::nhd(memory.data(), ElementType::kF32, kCapacity, 3, 4),
                            Tensor{}, 2);
  EXPECT_TRUE(view.lane(0, 0).keys.present());
  EXPECT_FALSE(view.lane(0, 0).values.present());
}

TEST(ContiguousView, PassesValidSlotsOn) {
  ContiguousView view(kShape, Tensor{}, Tensor{}, 3);
  EXPECT_TRUE(view.lane(0, 0).valid.empty());
  const std::vector<std::uint8_t> valid = {0, 1, 1};
  view.set_valid(valid);
  EXPECT_EQ(view.lane(1, 1).valid.data(), valid.data());
}

TEST(ContiguousView, RefusesLengthsOfAnotherShape) {
  const std::vector<std::size_t> lengths = {1, 2, 3};
  EXPECT_TRUE(refuses([&] { ContiguousView(kShape, Tensor{}, Tensor{}, lengths); },
                      {"ContiguousView", "lengths.size()", "3"}));
}

}  // namespace
}  // namespace kvevict::views
