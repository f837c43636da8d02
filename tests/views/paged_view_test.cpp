#include "kvevict/views/paged_view.hpp"

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvevict::views {
namespace {

using kvevict_test::refuses;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 4};
constexpr std::size_t kNumPages = 4;
constexpr std::size_t kPageSize = 2;

// Element offsets, written out: layer 1, head 2, slot 3, which is row 1 of page 2.
TEST(PagedView, AddressesThroughTheTable) {
  std::vector<float> memory(2 * kNumPages * kPageSize * 3 * 4);
  const std::vector<std::int32_t> table = {3, 2};
  const auto offset = [&](const PagePool& pool) {
    const PagedView view(kShape, pool, pool, kPageSize, table, 4);
    return (view.lane(1, 2).keys.row(3) - reinterpret_cast<std::byte*>(memory.data())) / 4;
  };
  EXPECT_EQ(offset(PagePool::nhd(memory.data(), ElementType::kF32, kNumPages, kPageSize, 3, 4)),
            (((1 * 4 + 2) * 2 + 1) * 3 + 2) * 4);
  EXPECT_EQ(offset(PagePool::hnd(memory.data(), ElementType::kF32, kNumPages, kPageSize, 3, 4)),
            (((1 * 4 + 2) * 3 + 2) * 2 + 1) * 4);
}

TEST(PagedView, RunsEndWithThePage) {
  std::vector<float> memory(2 * kNumPages * kPageSize * 3 * 4);
  const PagePool pool = PagePool::nhd(memory.data(), ElementType::kF32, kNumPages, kPageSize, 3, 4);
  const std::vector<std::int32_t> table = {0, 1};
  const PagedView view(kShape, pool, pool, kPageSize, table, 3);
  EXPECT_EQ(view.lane(0, 0).values.run_length(1, 2), 1U);
  EXPECT_EQ(view.lane(0, 0).values.run_length(0, 9), 2U);
}

TEST(PagedView, LengthsAreSharedOrPerLane) {
  const std::vector<std::int32_t> table = {0, 1};
  EXPECT_EQ(PagedView(kShape, {}, {}, kPageSize, table, 3).lane(1, 2).seq_len, 3U);
  const std::vector<std::size_t> lengths = {1, 2, 3, 4, 0, 4};
  const PagedView view(kShape, {}, {}, kPageSize, table, lengths);
  EXPECT_EQ(view.lane(0, 1).seq_len, 2U);
  EXPECT_EQ(view.lane(1, 2).seq_len, 4U);
}

// Engines that free blocks layer by layer, or head by head, hold a table for each.
TEST(PagedView, TablesAreOfALayerOrOfALane) {
  std::vector<float> memory(2 * kNumPages * kPageSize * 3 * 4);
  const PagePool pool = PagePool::nhd(memory.data(), ElementType::kF32, kNumPages, kPageSize, 3, 4);
  const std::vector<std::int32_t> first = {1, 2}, second = {3};
  const std::vector<std::size_t> lengths = {3, 3, 4, 2, 1, 0};
  const auto page = [&](const PagedView& view, std::size_t layer, std::size_t head) {
    return view.lane(layer, head).keys.page_table[0];
  };
  const std::vector<PagedView::PageTable> of_layers = {first, second};
  const PagedView layers(kShape, pool, pool, kPageSize, of_layers, lengths);
  EXPECT_EQ(page(layers, 0, 2), 1);
  EXPECT_EQ(page(layers, 1, 0), 3);
  const std::vector<PagedView::PageTable> of_lanes = {first, first, first, second, second, {}};
  const PagedView lanes(kShape, pool, pool, kPageSize, of_lanes, lengths);
  EXPECT_EQ(page(lanes, 0, 2), 1);
  EXPECT_EQ(page(lanes, 1, 1), 3);
  EXPECT_EQ(lanes.lane(1, 2).seq_len, 0U);

  const std::vector<std::size_t> longer = {3, 3, 4, 3, 1, 0};
  EXPECT_TRUE(refuses([&] { PagedView(kShape, pool, pool, kPageSize, of_layers, longer); },
                      {"PagedView", "page_table.size()", "1"}));
  const std::vector<PagedView::PageTable> too_few = {first};
  EXPECT_TRUE(refuses([&] { PagedView(kShape, pool, pool, kPageSize, too_few, lengths); },
                      {"PagedView", "page_tables.size()", "1"}));
}

TEST(PagedView, SlotsWithoutATokenAreMarked) {
  const std::vector<std::int32_t> table = {0, 1};
  PagedView view(kShape, {}, {}, kPageSize, table, 3);
  EXPECT_TRUE(view.lane(0, 0).has_token(0));
  const std::vector<std::uint8_t> valid = {0, 1, 1};
  view.set_valid(valid);
  EXPECT_FALSE(view.lane(1, 2).has_token(0));
  EXPECT_TRUE(view.lane(1, 2).has_token(1));
}

TEST(PagedView, RefusesATableThatEndsEarly) {
  const std::vector<std::int32_t> table = {0, 1};
  EXPECT_TRUE(refuses([&] { PagedView(kShape, {}, {}, kPageSize, table, 5); },
                      {"PagedView", "page_table.size()", "2"}));
  const std::vector<std::size_t> lengths = {1, 2, 3, 4, 5, 4};
  EXPECT_TRUE(refuses([&] { PagedView(kShape, {}, {}, kPageSize, table, lengths); },
                      {"PagedView", "page_table.size()", "2"}));
}

TEST(PagedView, RefusesPagesOfNothingAndLengthsOfAnotherShape) {
  const std::vector<std::int32_t> table = {0, 1};
  EXPECT_TRUE(
      refuses([&] { PagedView(kShape, {}, {}, 0, table, 1); }, {"PagedView", "page_size", "0"}));
  const std::vector<std::size_t> lengths = {1, 2};
  EXPECT_TRUE(refuses([&] { PagedView(kShape, {}, {}, kPageSize, table, lengths); },
                      {"PagedView", "lengths.size()", "2"}));
}

}  // namespace
}  // namespace kvevict::views
