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

// O-34, R13: row 46,340 of rows 46,341 long ends at 2,147,488,280, which no 32-bit number holds.
TEST(Rows, OffsetsAre64Bit) {
  static_assert(std::is_same_v<decltype(Rows::slot_stride_bytes), std::ptrdiff_t>);
  static_assert(sizeof(std::ptrdiff_t) == 8 && sizeof(std::size_t) == 8);
  const std::byte base{};
  Rows rows;
  rows.data = &base;
  rows.slot_stride_bytes = 46'341;
  const auto address = reinterpret_cast<std::uintptr_t>(rows.row(46'340));
  EXPECT_EQ(address - reinterpret_cast<std::uintptr_t>(&base), 2'147'441'940U);

  const std::int32_t table[] = {46'340};
  rows.page_table = table;
  rows.page_size = 1;
  rows.page_stride_bytes = 46'341;
  const auto paged = reinterpret_cast<std::uintptr_t>(rows.row(0));
  EXPECT_EQ(paged - reinterpret_cast<std::uintptr_t>(&base), 2'147'441'940U);

  const float first{};
  const QueryRows queries{
      .data = &first, .num_q_heads = 1, .num_rows = 46'341, .row_stride = 46'341};
  const auto last =
      reinterpret_cast<std::uintptr_t>(queries.row(0, 46'340)) + 46'340 * sizeof(float);
  EXPECT_EQ((last - reinterpret_cast<std::uintptr_t>(&first)) / sizeof(float), 2'147'488'280U);
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
