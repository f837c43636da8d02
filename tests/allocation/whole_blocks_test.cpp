#include "kvevict/allocation/whole_blocks.hpp"

#include "kvevict/allocation/whole_prompts.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>

namespace kvevict {
namespace {

using kvevict_test::refuses;

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr WholeBlocks kBlocks{
    .budget = 8, .num_sink_tokens = 2, .recent_window = 2, .block_size = 2};

Sequence sequence_of(std::size_t len) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.append(len);
  return sequence;
}

// 8 and one more block of 2: from 10 on, and the token of the block that is being written stays.
TEST(WholeBlocks, ACutIsDueOnceABlockTooManyIsFull) {
  EXPECT_EQ(kBlocks.allocation(sequence_of(9)).budget.count(), kAll);
  EXPECT_EQ(kBlocks.allocation(sequence_of(10)).budget.count(), 8U);
  EXPECT_EQ(kBlocks.allocation(sequence_of(11)).budget.count(), 9U);
  EXPECT_EQ(kBlocks.protection(sequence_of(10)).recent_window, 2U);
  EXPECT_EQ(kBlocks.protection(sequence_of(11)).recent_window, 3U);
  EXPECT_EQ(kBlocks.protection(sequence_of(11)).num_sink_tokens, 2U);
}

TEST(WholeBlocks, PaddingIsInNoBlock) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(12, {});
  sequence.append(12);
  sequence.note_prompt_padding(1);
  EXPECT_EQ(kBlocks.allocation(sequence).budget.count(), 9U);
  sequence.note_prompt_padding(3);
  EXPECT_EQ(kBlocks.allocation(sequence).budget.count(), kAll);
}

TEST(WholeBlocks, RefuseSizesThatAreNone) {
  const auto with = [](auto change) {
    return [change] {
      WholeBlocks blocks = kBlocks;
      change(blocks);
      blocks.check("test");
    };
  };
  EXPECT_NO_THROW(kBlocks.check("test"));
  EXPECT_TRUE(refuses(with([](WholeBlocks& b) { b.block_size = 0; }), {"block_size = 0"}));
  EXPECT_TRUE(refuses(with([](WholeBlocks& b) { b.budget = 9; }), {"budget = 9", "multiple"}));
  EXPECT_TRUE(refuses(with([](WholeBlocks& b) { b.num_sink_tokens = 1; }), {"num_sink_tokens"}));
  EXPECT_TRUE(refuses(with([](WholeBlocks& b) { b.recent_window = 3; }), {"recent_window"}));
  EXPECT_TRUE(refuses(with([](WholeBlocks& b) { b.budget = 4; }), {"budget = 4", "exceed"}));
}

TEST(WholePrompts, HaveNoBudgetUntilTheyAreThere) {
  const WholePrompts prompts{{.budget = 3}};
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(5, {});
  sequence.append(4);
  EXPECT_EQ(prompts.allocation(sequence).budget.count(), kAll);
  EXPECT_EQ(kBlocks.allocation(sequence).budget.count(), kAll);
  sequence.append(1);
  EXPECT_EQ(prompts.allocation(sequence).budget.count(), 3U);
}

}  // namespace
}  // namespace kvevict
