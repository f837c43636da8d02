#include "kvevict/policies/chunkkv.hpp"

#include "kvevict/option_text.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

/// Slots that stay of a prompt whose last row, the window, is `row`.
Slots kept(const ChunkKVOptions& options, const std::vector<float>& row) {
  ChunkKV policy(options, kOneHead);
  WindowCache cache(kOneHead, row.size());
  feed_rows(policy, cache, {{row}});
  return kept_slots(policy.select(cache.view()));
}
ChunkKVOptions small(std::size_t budget, ChunkScore score = ChunkScore::kSum) {
  return {.budget = budget, .observation_window = 1, .chunk_len = 3, .chunk_score = score};
}

// policies.md 3.8: chunks of 3 of (.125 .125 .5 | 0 .25 .125 | .25): sums .75, .375, .25; means
// .25, .125, .25, where the tie goes to the first chunk (rule R3). The last slot is the window.
const std::vector<float> kRow = {.125F, .125F, .5F, 0, .25F, .125F, .25F, .125F};

TEST(ChunkKV, KeepsTheBestChunks) {
  EXPECT_EQ(kept(small(4), kRow), (Slots{0, 1, 2, 7}));
  EXPECT_EQ(kept(small(7), kRow), (Slots{0, 1, 2, 3, 4, 5, 7}));
  EXPECT_EQ(kept(small(4, ChunkScore::kMean), kRow), (Slots{0, 1, 2, 7}));
  EXPECT_EQ(kept(small(5, ChunkScore::kMean), kRow), (Slots{0, 1, 2, 6, 7}));
}

// Two tokens of room are none for a chunk of three.
TEST(ChunkKV, RestOfTheBudgetIsLeftOrFilled) {
  ChunkKVOptions options = small(6);
  EXPECT_EQ(kept(options, kRow), (Slots{0, 1, 2, 7}));
  options.fill_rest = true;
  EXPECT_EQ(kept(options, kRow), (Slots{0, 1, 2, 4, 6, 7}));
}

// No room for a chunk at all: the best tokens, .5 and then the first .25.
TEST(ChunkKV, ABudgetBelowAChunkKeepsTokens) {
  EXPECT_EQ(kept(small(3), kRow), (Slots{2, 4, 7}));
  EXPECT_EQ(kept(small(1), kRow), (Slots{7}));
}

TEST(ChunkKV, AChunkOfOneTokenIsPlainSelection) {
  ChunkKVOptions options = small(4);
  options.chunk_len = 1;
  EXPECT_EQ(kept(options, kRow), (Slots{2, 4, 6, 7}));
}

TEST(ChunkKV, ShortPromptsStayWhole) {
  EXPECT_EQ(kept(small(2), {1}), (Slots{0}));
  EXPECT_EQ(kept(small(2), {.5F, .5F}), (Slots{0, 1}));
  EXPECT_EQ(kept(small(8), kRow).size(), 8U);
  EXPECT_EQ(kept(small(7), kRow).size(), 7U);
}

// The window of 2 is half of the chunk (6, 7, ..): chunks of 3 are 0-2, 3-5, 6-7 and the last is
// all window, so it comes first, then the best of the others.
TEST(ChunkKV, ChunksMayHoldTheWindow) {
  ChunkKVOptions options = small(5);
  options.window_in_chunks = true;
  EXPECT_EQ(kept(options, kRow), (Slots{0, 1, 2, 6, 7}));
  options.budget = 2;
  EXPECT_EQ(kept(options, kRow), (Slots{6, 7}));
}

// Chunks start at the first token, not at its padding (rule R9).
TEST(ChunkKV, PaddingIsInNoChunk) {
  const auto with_padding = [](std::size_t padding) {
    WindowCache cache(kOneHead, 10);
    cache.valid().assign(padding, 0);
    cache.valid().resize(kRow.size() + padding, 1);
    std::vector<float> row(padding, 0.0F);
    row.insert(row.end(), kRow.begin(), kRow.end());
    ChunkKV policy(small(7), kOneHead);
    feed_rows(policy, cache, {{row}});
    Slots slots = kept_slots(policy.select(cache.view()));
    for (std::size_t& slot : slots)
      slot -= padding;
    return slots;
  };
  EXPECT_EQ(with_padding(2), with_padding(0));
}

// A token that is not finite has no score (rule R19).
TEST(ChunkKV, NaNIsNoScore) {
  std::vector<float> row = kRow;
  row[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(kept(small(4), row), (Slots{3, 4, 5, 7}));
}

// Two heads of a KV head and two KV heads: what counts is the sum over the layer.
TEST(ChunkKV, HeadsOfALayerShareASet) {
  constexpr CacheShape shape{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};
  ChunkKV policy({.budget = 3, .observation_window = 1, .chunk_len = 2}, shape);
  WindowCache cache(shape, 5);
  feed_rows(policy, cache,
            {{{.5F, 0, 0, 0, .5F}},
             {{.5F, 0, 0, 0, .5F}},
             {{0, 0, .75F, .25F, 0}},
             {{0, 0, .25F, .25F, .5F}}});
  EXPECT_EQ(scores_of(policy, cache), (std::vector<float>{.5F, 0, .5F, .25F, 0}));
  EXPECT_EQ(kept_slots(policy.select(cache.view()), 0, 0), (Slots{2, 3, 4}));
  EXPECT_EQ(kept_slots(policy.select(cache.view()), 0, 1), (Slots{2, 3, 4}));
}

// Layer-wise index reuse: layers 0, 1 and 2, 3 share, and only layers 0 and 2 are looked at.
TEST(ChunkKV, LayersReuseTheChoiceOfTheFirst) {
  constexpr CacheShape shape{.num_layers = 4, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 4};
  Random random(3);
  WindowCache cache(shape, 40);
  cache.fill(random);
  const WindowQueries queries(shape, 4, random);
  ChunkKV policy({.budget = 16, .observation_window = 4, .chunk_len = 4, .index_reuse = 2}, shape);
  policy.begin(40);
  for (std::size_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(policy.wants_attention(layer), layer % 2 == 0);
  policy.reset();
  feed_prompt(policy, cache, 40, queries, 40);
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(kept_slots(mask, 0), kept_slots(mask, 1));
  EXPECT_EQ(kept_slots(mask, 2), kept_slots(mask, 3));
  EXPECT_NE(kept_slots(mask, 0), kept_slots(mask, 2));
  cut(policy, cache);
  EXPECT_EQ(policy.counters().missing_signals, 0U);
}

TEST(ChunkKV, RefusesOptionsAndNamesThem) {
  EXPECT_TRUE(refuses([] { ChunkKV({.chunk_len = 0}, kOneHead); }, {"ChunkKV", "chunk_len", "0"}));
  EXPECT_TRUE(
      refuses([] { ChunkKV({.index_reuse = 0}, kOneHead); }, {"ChunkKV", "index_reuse", "0"}));
  EXPECT_TRUE(refuses([] { ChunkKV({.pooling = {.kernel_size = 4}}, kOneHead); },
                      {"ChunkKV", "kernel_size", "4"}));
  EXPECT_TRUE(refuses([] { ChunkKV({.budget = 31}, kOneHead); }, {"ChunkKV", "budget", "31"}));
  EXPECT_TRUE(refuses([] { ChunkKV({.observation_window = 0}, kOneHead); },
                      {"ChunkKV", "observation_window", "0"}));
}

}  // namespace
