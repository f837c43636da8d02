#include "kvevict/scoring/row_blocks.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Rows;
using Blocks = std::vector<std::pair<std::size_t, std::size_t>>;  // first slot, rows

/// Rows of one float, 2 floats apart; cell c holds 10 + c.
struct Cells {
  std::vector<float> memory = std::vector<float>(64);
  std::vector<std::int32_t> table;
  std::vector<float> scratch;
  std::size_t num_copied = 0;  // rows that did not come in place

  explicit Cells(std::vector<std::int32_t> pages) : table(std::move(pages)) {
    for (std::size_t cell = 0; cell < 32; ++cell)
      memory[2 * cell] = static_cast<float>(10 + cell);
  }
  [[nodiscard]] Rows rows(std::size_t page_size) const {
    Rows rows;
    rows.data = reinterpret_cast<const std::byte*>(memory.data());
    rows.slot_stride_bytes = 8;
    rows.dim_stride_bytes = 4;
    rows.page_table = table.data();
    rows.page_size = page_size;
    rows.page_stride_bytes = 8 * static_cast<std::ptrdiff_t>(page_size);
    return rows;
  }
  /// Which blocks come, each row checked against the table.
  Blocks blocks(const Rows& rows, std::size_t first, std::size_t last) {
    Blocks seen;
    kvevict::for_each_row_block(
        rows, 1, first, last, kvevict::kernels::best(), scratch,
        [&](const kvevict::kernels::RowBlock& block, std::size_t slot) {
          seen.emplace_back(slot, block.num_rows);
          for (std::size_t i = 0; i < block.num_rows; ++i) {
            const auto* row =
                reinterpret_cast<const float*>(static_cast<const std::byte*>(block.data) +
                                               static_cast<std::ptrdiff_t>(i) * block.stride_bytes);
            num_copied += row < memory.data() || row >= memory.data() + memory.size() ? 1 : 0;
            const std::size_t at = slot + i;
            const auto cell =
                static_cast<std::size_t>(table[at / rows.page_size]) * rows.page_size +
                at % rows.page_size;
            EXPECT_EQ(*row, static_cast<float>(10 + cell)) << "slot " << at;
          }
        });
    return seen;
  }
};

// Cells 4 .. 13 | 20 .. 27 | 0 1 of a token-to-slot map.
TEST(RowBlocks, CellsThatLieSideBySideAreOneBlock) {
  Cells cells({4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 22, 23, 24, 25, 26, 27, 0, 1});
  EXPECT_EQ(cells.blocks(cells.rows(1), 0, 20), (Blocks{{0, 10}, {10, 8}, {18, 2}}));
  EXPECT_EQ(cells.blocks(cells.rows(1), 1, 4), (Blocks{{1, 3}}));
  EXPECT_EQ(cells.num_copied, 0U);
}

// Cells 4 5 6 | 9 | 0 1 | 20 .. 29: a call for each of the first would cost more than their copies.
// 64 rows are copied at once; the last ten come in place where the rows before them end a copy.
TEST(RowBlocks, FewRowsBetweenHolesAreCopiedTogether) {
  Cells cells({4, 5, 6, 9, 0, 1});
  for (std::int32_t i = 0; i < 70; ++i)
    cells.table.push_back(i % 2 == 0 ? 12 + i % 16 : i % 8);
  for (std::int32_t cell = 20; cell < 30; ++cell)
    cells.table.push_back(cell);
  EXPECT_EQ(cells.blocks(cells.rows(1), 0, 6), (Blocks{{0, 6}}));
  EXPECT_EQ(cells.num_copied, 6U);
  EXPECT_EQ(cells.blocks(cells.rows(1), 3, 5), (Blocks{{3, 2}}));
  EXPECT_EQ(cells.blocks(cells.rows(1), 10, 86), (Blocks{{10, 64}, {74, 12}}));
  EXPECT_EQ(cells.blocks(cells.rows(1), 12, 86), (Blocks{{12, 64}, {76, 10}}));
  EXPECT_EQ(cells.num_copied, 6U + 2 + 64 + 12 + 64);
}

// Of pages of one row that lie too far apart, in two bytes an element.
TEST(RowBlocks, CopiesAreOfTheRowsOwnType) {
  const std::vector<std::uint16_t> memory = {1, 2, 0, 0, 3, 4, 0, 0, 5, 6};
  const std::vector<std::int32_t> table = {2, 0, 1};
  Rows rows;
  rows.data = reinterpret_cast<const std::byte*>(memory.data());
  rows.type = kvevict::ElementType::kBF16;
  rows.slot_stride_bytes = rows.page_stride_bytes = 8;
  rows.dim_stride_bytes = 2;
  rows.page_table = table.data();
  rows.page_size = 1;
  std::vector<float> scratch;
  std::vector<std::uint16_t> seen(6);
  kvevict::for_each_row_block(rows, 2, 0, 3, kvevict::kernels::best(), scratch,
                              [&](const kvevict::kernels::RowBlock& block, std::size_t slot) {
                                EXPECT_EQ(block.type, kvevict::ElementType::kBF16);
                                EXPECT_EQ(slot, 0U);
                                ASSERT_EQ(block.num_rows, 3U);
                                for (std::size_t i = 0; i < 3; ++i) {
                                  std::memcpy(
                                      seen.data() + 2 * i,
                                      static_cast<const std::byte*>(block.data) +
                                          static_cast<std::ptrdiff_t>(i) * block.stride_bytes,
                                      4);
                                }
                              });
  EXPECT_EQ(seen, (std::vector<std::uint16_t>{5, 6, 1, 2, 3, 4}));
}

// Pages of four: 1 2 | 0, the last one half full.
TEST(RowBlocks, PagesThatLieSideBySideAreOneBlock) {
  Cells cells({1, 2, 0});
  EXPECT_EQ(cells.blocks(cells.rows(4), 0, 10), (Blocks{{0, 8}, {8, 2}}));
  EXPECT_EQ(cells.blocks(cells.rows(4), 1, 6), (Blocks{{1, 5}}));
}

// Something lies between the rows of two pages, such as another layer's.
TEST(RowBlocks, PagesThatAreApartAreBlocksOfTheirOwn) {
  Cells cells({0, 1});
  Rows rows = cells.rows(8);
  rows.page_stride_bytes = 68;
  std::vector<std::size_t> counts;
  kvevict::for_each_row_block(rows, 1, 0, 16, kvevict::kernels::best(), cells.scratch,
                              [&](const kvevict::kernels::RowBlock& block, std::size_t /*slot*/) {
                                counts.push_back(block.num_rows);
                              });
  EXPECT_EQ(counts, (std::vector<std::size_t>{8, 8}));
}

}  // namespace
}  // namespace kvevict_test
