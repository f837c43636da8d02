#include "kvevict/core/lane.hpp"

#include "kvevict/core/step_inputs.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace kvevict {
namespace {

TEST(Rows, AddressesWithoutATable) {
  std::vector<std::byte> memory(64);
  Rows rows;
  rows.data = memory.data() + 4;
  rows.slot_stride_bytes = 12;
  rows.dim_stride_bytes = 4;
  EXPECT_TRUE(rows.present());
  EXPECT_TRUE(rows.row_is_contiguous());
  EXPECT_EQ(rows.row(3) - memory.data(), 40);
  EXPECT_EQ(rows.run_length(1, 4), 4U);
}

TEST(Rows, AddressesThroughATable) {
  std::vector<std::byte> memory(256);
  const std::int32_t table[] = {2, 0};
  Rows rows;
  rows.data = memory.data();
  rows.slot_stride_bytes = 8;
  rows.dim_stride_bytes = 4;
  rows.page_table = table;
  rows.page_size = 4;
  rows.page_stride_bytes = 64;
  EXPECT_EQ(rows.row(0) - memory.data(), 128);
  EXPECT_EQ(rows.row(3) - memory.data(), 152);
  EXPECT_EQ(rows.row(4) - memory.data(), 0);
  EXPECT_EQ(rows.run_length(1, 9), 3U);  // to the end of the page
  EXPECT_EQ(rows.run_length(1, 2), 2U);
}

// O-34, R13: a square of 46,341 rows. The last row starts at 2,147,441,940 and ends at
// 2,147,488,280, which no signed 32-bit number holds; the second square ends behind the unsigned
// ones.
TEST(Rows, OffsetsAre64Bit) {
  static_assert(std::is_same_v<decltype(Rows::slot_stride_bytes), std::ptrdiff_t>);
  static_assert(std::is_same_v<decltype(AttentionRows::row_stride), std::ptrdiff_t>);
  static_assert(sizeof(std::ptrdiff_t) == 8 && sizeof(std::size_t) == 8);
  const std::byte base{};
  const auto offset = [&](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(&base);
  };
  Rows rows;
  rows.data = &base;
  rows.slot_stride_bytes = 46'341;
  EXPECT_EQ(offset(rows.row(46'340)), 2'147'441'940U);
  EXPECT_EQ(offset(rows.row(46'341)), 2'147'488'281U);
  EXPECT_EQ(offset(rows.row(92'682)), 4'294'976'562U);

  const std::int32_t table[] = {46'340, 46'341, 92'682};
  rows.page_table = table;
  rows.page_size = 1;
  rows.page_stride_bytes = 46'341;
  EXPECT_EQ(offset(rows.row(0)), 2'147'441'940U);
  EXPECT_EQ(offset(rows.row(1)), 2'147'488'281U);
  EXPECT_EQ(offset(rows.row(2)), 4'294'976'562U);

  // One head's attention, in floats, and two heads of it.
  const float score{};
  const AttentionRows square{&score, 3, 46'341, 2'147'488'281, 46'341};
  const auto floats = [&](const float* at) {
    return (reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(&score)) / 4;
  };
  EXPECT_EQ(floats(square.row(0, 46'340)), 2'147'441'940U);
  EXPECT_EQ(floats(square.row(1, 0)), 2'147'488'281U);
  EXPECT_EQ(floats(square.row(2, 1)), 4'295'022'903U);
}

TEST(Rows, ArePresentBehindACallbackToo) {
  Rows rows;
  EXPECT_FALSE(rows.present());
  EXPECT_TRUE(rows.movable());
  rows.load_row = [](const void*, std::size_t, std::size_t, std::size_t, float*) noexcept {};
  EXPECT_TRUE(rows.present());
  EXPECT_FALSE(rows.movable());
  rows.move_row = [](const void*, std::size_t, std::size_t, std::size_t, std::size_t) noexcept {};
  EXPECT_TRUE(rows.movable());
}

struct OneLaneView {
  std::size_t seq_len = 0;
  [[nodiscard]] CacheShape shape() const {
    return {.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  }
  [[nodiscard]] Lane lane(std::size_t, std::size_t) const { return {seq_len, {}, {}, {}}; }
};
static_assert(KvCacheView<OneLaneView>);
static_assert(!MutableKvCacheView<OneLaneView>);
static_assert(KvCacheView<ViewRef>);

TEST(ViewRef, AsksTheViewBehindIt) {
  OneLaneView view{3};
  const ViewRef ref = as_view_ref(view);
  EXPECT_EQ(ref.lane(0, 0).seq_len, 3U);
  view.seq_len = 5;
  EXPECT_EQ(as_view_ref(ref).lane(0, 0).seq_len, 5U);
  EXPECT_EQ(ref.shape().num_layers, 1U);
}

}  // namespace
}  // namespace kvevict
