#include "kvevict/scoring/row_blocks.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Rows;
using Blocks = std::vector<std::pair<std::size_t, std::size_t>>;  // first slot, rows

/// Rows of one float, 2 floats apart; cell c holds 10 + c.
struct Cells {
  std::vector<float> memory = std::vector<float>(32);
  std::vector<std::int32_t> table;
  std::vector<float> scratch;

  explicit Cells(std::vector<std::int32_t> pages) : table(std::move(pages)) {
    for (std::size_t cell = 0; cell < 16; ++cell)
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

// Cells 4 5 6 | 0 1 | 9 of a token-to-slot map.
TEST(RowBlocks, CellsThatLieSideBySideAreOneBlock) {
  Cells cells({4, 5, 6, 0, 1, 9});
  EXPECT_EQ(cells.blocks(cells.rows(1), 0, 6), (Blocks{{0, 3}, {3, 2}, {5, 1}}));
  EXPECT_EQ(cells.blocks(cells.rows(1), 1, 4), (Blocks{{1, 2}, {3, 1}}));
}

// Pages of two: 1 2 | 0, the last one half full.
TEST(RowBlocks, PagesThatLieSideBySideAreOneBlock) {
  Cells cells({1, 2, 0});
  EXPECT_EQ(cells.blocks(cells.rows(2), 0, 5), (Blocks{{0, 4}, {4, 1}}));
  EXPECT_EQ(cells.blocks(cells.rows(2), 1, 3), (Blocks{{1, 2}}));
}

// Something lies between the rows of two pages, such as another layer's.
TEST(RowBlocks, PagesThatAreApartAreBlocksOfTheirOwn) {
  Cells cells({0, 1});
  Rows rows = cells.rows(2);
  rows.page_stride_bytes = 12;
  std::vector<std::size_t> counts;
  kvevict::for_each_row_block(rows, 1, 0, 4, kvevict::kernels::best(), cells.scratch,
                              [&](const kvevict::kernels::RowBlock& block, std::size_t /*slot*/) {
                                counts.push_back(block.num_rows);
                              });
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 2}));
}

}  // namespace
}  // namespace kvevict_test
