#include "kvevict/views/compact.hpp"

#include "kvevict/core/executor.hpp"
#include "kvevict/views/ragged_view.hpp"
#include "support/errors.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/threads.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::all_layouts;
using kvevict_test::Layout;
using kvevict_test::LayoutCache;
using kvevict_test::mask_of;
using kvevict_test::Part;
using kvevict_test::refuses;

constexpr CacheShape kShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 5};
constexpr std::size_t kCapacity = 24;

std::vector<float> content(const LayoutCache& cache, Part part, std::size_t layer, std::size_t head,
                           std::size_t position) {
  const std::size_t lane = layer * kShape.num_kv_heads + head;
  kvevict_test::Random random((lane * 1000 + position) * 2 + (part == Part::kKeys ? 0 : 1));
  std::vector<float> row(cache.dim(part));
  for (float& value : row)
    value = random.eighths();
  return row;
}

void fill(LayoutCache& cache, const std::vector<std::size_t>& lengths) {
  for (std::size_t lane = 0; lane < lengths.size(); ++lane) {
    const std::size_t layer = lane / kShape.num_kv_heads;
    const std::size_t head = lane % kShape.num_kv_heads;
    cache.length(layer, head) = lengths[lane];
    for (std::size_t slot = 0; slot < lengths[lane]; ++slot) {
      for (const Part part : {Part::kKeys, Part::kValues}) {
        cache.set(part, layer, head, slot, content(cache, part, layer, head, slot));
      }
    }
  }
}

class Compact : public testing::TestWithParam<Layout> {};

// The kept rows lie at the front, in order; no byte outside of the rows that were live has changed.
TEST_P(Compact, MovesKeptRowsAndNothingElse) {
  kvevict_test::Random random(3);
  for (int trial = 0; trial < 50; ++trial) {
    LayoutCache cache = GetParam().make(GetParam().fitting(kShape), kCapacity);
    std::vector<std::string> lanes;
    std::vector<std::size_t> lengths;
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const std::size_t length = random.below(kCapacity + 1);
      std::string text;
      while (text.size() < length)
        text.append(1 + random.below(7), random.below(2) ? '1' : '0');
      text.resize(length);
      lanes.push_back(text);
      lengths.push_back(length);
    }
    fill(cache, lengths);
    const std::vector<std::byte> before = cache.memory();
    const std::vector<bool> live = cache.live_bytes();

    // Lane after lane, or three at a time.
    compact(cache.view(), mask_of(MaskScope::kHead, 2, 2, lanes),
            trial % 2 == 0 ? Executor() : kvevict_test::threads(3));

    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::size_t target = 0;
      for (std::size_t slot = 0; slot < lengths[lane]; ++slot) {
        if (lanes[lane][slot] == '0')
          continue;
        for (const Part part : {Part::kKeys, Part::kValues}) {
          ASSERT_EQ(cache.row(part, lane / 2, lane % 2, target),
                    content(cache, part, lane / 2, lane % 2, slot))
              << "lane " << lane << " slot " << slot << " mask " << lanes[lane];
        }
        ++target;
      }
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      ASSERT_TRUE(live[i] || cache.memory()[i] == before[i]) << "byte " << i;
    }
  }
}

TEST_P(Compact, KeepingAllWritesNothing) {
  LayoutCache cache = GetParam().make(GetParam().fitting(kShape), kCapacity);
  fill(cache, {9, 9, 9, 9});
  const std::vector<std::byte> before = cache.memory();
  compact(cache.view(), mask_of(MaskScope::kModel, 2, 2, {"111111111"}));
  EXPECT_EQ(cache.memory(), before);
}

// One lane of the mask for all: every layer and head loses the same slots.
TEST_P(Compact, ExecutesASharedMaskInEveryLane) {
  LayoutCache cache = GetParam().make(GetParam().fitting(kShape), kCapacity);
  fill(cache, {6, 6, 6, 6});
  compact(cache.view(), mask_of(MaskScope::kModel, 2, 2, {"100101"}));
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t head = 0; head < 2; ++head) {
      EXPECT_EQ(cache.row(Part::kKeys, layer, head, 1),
                content(cache, Part::kKeys, layer, head, 3));
      EXPECT_EQ(cache.row(Part::kValues, layer, head, 2),
                content(cache, Part::kValues, layer, head, 5));
    }
  }
}

// A mask for another length is refused before the first row moves.
TEST_P(Compact, RefusesAMaskOfOtherLengthsUntouched) {
  LayoutCache cache = GetParam().make(GetParam().fitting(kShape), kCapacity);
  fill(cache, {6, 6, 6, 6});
  const std::vector<std::byte> before = cache.memory();
  const KeepMask mask = mask_of(MaskScope::kHead, 2, 2, {"010101", "010101", "010101", "01010"});
  EXPECT_TRUE(refuses([&] { compact(cache.view(), mask); }, {"compact", "seq_len", "5"}));
  EXPECT_EQ(cache.memory(), before);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Compact, testing::ValuesIn(all_layouts()),
                         [](const auto& layout) { return layout.param.name; });
INSTANTIATE_TEST_SUITE_P(Q8Layouts, Compact, testing::ValuesIn(kvevict_test::q8_0_layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST(CompactShape, RefusesAMaskOfAnotherModel) {
  LayoutCache cache = kvevict_test::layouts::nhd(kShape, kCapacity, ElementType::kF32);
  fill(cache, {2, 2, 2, 2});
  EXPECT_TRUE(refuses([&] { compact(cache.view(), mask_of(MaskScope::kModel, 3, 2, {"01"})); },
                      {"compact", "num_layers", "3"}));
  EXPECT_TRUE(refuses([&] { compact(cache.view(), mask_of(MaskScope::kModel, 2, 1, {"01"})); },
                      {"compact", "num_kv_heads", "1"}));
}

TEST(CompactRows, WithoutValuesMovesKeys) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  std::vector<float> keys = {1, 2, 3, 4, 5, 6};
  const MutableLane lane =
      views::RaggedView::dense_lane(shape, 3, keys.data(), nullptr, ElementType::kF32);
  EXPECT_FALSE(lane.values.present());
  compact(views::RaggedView(shape, {&lane, 1}), mask_of("101"));
  EXPECT_EQ(keys, (std::vector<float>{1, 2, 5, 6, 5, 6}));
}

TEST(CompactRows, RefusesBlocksThatNoRowCanHold) {
  std::vector<std::byte> memory(4 * 34);
  const auto compacted = [&](std::size_t head_dim, std::ptrdiff_t dim_stride_bytes) {
    const CacheShape shape{
        .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = head_dim};
    MutableLane lane =
        views::RaggedView::dense_lane(shape, 2, memory.data(), memory.data(), ElementType::kQ8_0);
    lane.values.dim_stride_bytes = dim_stride_bytes;
    compact(views::RaggedView(shape, {&lane, 1}), mask_of("01"));
  };
  compacted(32, 0);
  EXPECT_TRUE(refuses([&] { compacted(48, 0); }, {"compact", "head_dim = 48", "multiple of 32"}));
  EXPECT_TRUE(refuses([&] { compacted(32, 1); }, {"compact", "dim_stride_bytes = 1", "q8_0"}));
}

TEST(CompactRows, RefusesRowsThatCanOnlyBeRead) {
  const CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  MutableLane lane;
  lane.seq_len = 2;
  lane.keys.load_row = [](const void*, std::size_t, std::size_t, std::size_t, float*) noexcept {};
  EXPECT_TRUE(refuses(
      [&] {
        compact(views::RaggedView(shape, {&lane, 1}), mask_of("01"));
      },
      {"compact", "move_row"}));
}

}  // namespace
}  // namespace kvevict
