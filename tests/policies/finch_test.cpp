#include "kvevict/policies/finch.hpp"

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
constexpr CacheShape kPair{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};

// Rows of tokens 2 and 3, which see 2 and 3 slots before their own: 2 (.5, .25) + 3 (.25, .375) =
// (1.75, 1.625); as they are (.75, .625). Weights can turn the order: with (.5, 0) and (0, .375),
// 1.0 and 1.125 against .5 and .375.
TEST(Finch, RowsCountByWhatTheySee) {
  const auto scores = [](bool undo, const std::vector<std::vector<float>>& rows) {
    Finch policy({.budget = 3, .observation_window = 2, .undo_dilution = undo}, kOneHead);
    WindowCache cache(kOneHead, 4);
    feed_rows(policy, cache, {rows});
    return scores_of(policy, cache);
  };
  const std::vector<std::vector<float>> rows = {{.5F, .25F, .25F}, {.25F, .375F, .25F, .125F}};
  EXPECT_EQ(scores(true, rows), (std::vector<float>{1.75F, 1.625F, 0, 0}));
  EXPECT_EQ(scores(false, rows), (std::vector<float>{.75F, .625F, 0, 0}));
  const std::vector<std::vector<float>> turned = {{.5F, 0, .5F}, {0, .375F, .5F, .125F}};
  EXPECT_EQ(scores(true, turned), (std::vector<float>{1.0F, 1.125F, 0, 0}));
  EXPECT_EQ(scores(false, turned), (std::vector<float>{.5F, .375F, 0, 0}));
}

TEST(Finch, TheQuestionStays) {
  const auto kept = [](std::size_t budget, const std::vector<std::vector<float>>& rows) {
    Finch policy({.budget = budget, .observation_window = 2}, kPair);
    WindowCache cache(kPair, 4);
    feed_rows(policy, cache, {rows, rows});
    return kept_slots(policy.select(cache.view()));
  };
  const std::vector<std::vector<float>> rows = {{.5F, 0, .5F}, {0, .375F, .5F, .125F}};
  EXPECT_EQ(kept(2, rows), (Slots{2, 3}));
  EXPECT_EQ(kept(3, rows), (Slots{1, 2, 3}));
  EXPECT_EQ(kept(4, rows), range(0, 4));
  EXPECT_EQ(kept(2, {{1}}), (Slots{0}));  // a prompt shorter than the question
  EXPECT_EQ(kept(2, {{1}, {.5F, .5F}}), (Slots{0, 1}));
}

// Chunks 0-2, 3-5, 6 keep one each (floor(1.02), 1, and 1 of .34), the question among them.
// Without chunks two of seven stay.
TEST(Finch, ChunksKeepTheirShareByThemselves) {
  const auto kept = [](std::size_t chunk_len) {
    Finch policy(
        {.budget = Budget::keep_ratio(.34), .observation_window = 1, .chunk_len = chunk_len},
        kOneHead);
    WindowCache cache(kOneHead, 7);
    feed_rows(policy, cache, {{{.1F, .3F, .25F, .15F, .05F, .1F, .05F}}});
    return kept_slots(policy.select(cache.view()));
  };
  EXPECT_EQ(kept(3), (Slots{1, 3, 6}));
  EXPECT_EQ(kept(0), (Slots{1, 6}));
  EXPECT_EQ(kept(7), (Slots{1, 6}));
  EXPECT_EQ(kept(static_cast<std::size_t>(-1)), (Slots{1, 6}));
}

// Two of the last chunk's tokens are the question, and its share is one.
TEST(Finch, TheQuestionStaysWholeInItsChunk) {
  Finch policy({.budget = Budget::keep_ratio(.34), .observation_window = 2, .chunk_len = 3},
               kOneHead);
  WindowCache cache(kOneHead, 6);
  feed_rows(policy, cache, {{{.1F, .3F, .2F, .3F, .1F}, {.1F, .3F, .2F, .3F, .05F, .05F}}});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 4, 5}));
}

// A chunk that was cut has its share; a later prompt is cut in chunks of its own, and what was
// there before it stays.
TEST(Finch, ChunksAreCutOnce) {
  Finch policy({.budget = Budget::keep_ratio(.5), .observation_window = 1, .chunk_len = 2},
               kOneHead);
  WindowCache cache(kOneHead, 16);
  const auto cut = [&] {
    const KeepMask mask = policy.select(cache.view());
    cache.evict(mask);
    policy.apply(mask);
  };
  feed_rows(policy, cache, {{{.1F, .4F, .3F, .2F}}});
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{1, 3}));
  cut();
  EXPECT_EQ(policy.select(cache.view()).total_evicted(), 0U);
  policy.append(1);
  cache.append(1);
  policy.begin(4);
  policy.append(4);
  cache.append(4);
  const GivenRows rows({{{.1F, .1F, .1F, .1F, .3F, .2F, .1F}}});
  policy.observe_attention(0, rows.rows());
  policy.end_prefill(cache.view());
  // Slots 0 and 1 are of the first prompt, 2 was decoded; of 3-4 the better one stays, of 5-6 the
  // question.
  EXPECT_EQ(kept_slots(policy.select(cache.view())), (Slots{0, 1, 2, 4, 6}));
}

TEST(Finch, NaNIsNoAttention) {
  Finch policy({.budget = 2, .observation_window = 1}, kOneHead);
  WindowCache cache(kOneHead, 3);
  feed_rows(policy, cache, {{{std::numeric_limits<float>::quiet_NaN(), .5F, .5F}}});
  EXPECT_EQ(scores_of(policy, cache), (std::vector<float>{0, 1, 0}));
  EXPECT_EQ(policy.counters().non_finite, 1U);
}

TEST(Finch, RefusesOptionsAndNamesThem) {
  EXPECT_TRUE(refuses([] { Finch({.observation_window = 0}, kOneHead); },
                      {"Finch", "observation_window", "0"}));
  EXPECT_TRUE(refuses([] { Finch({.budget = 31}, kOneHead); }, {"Finch", "budget", "31"}));
  EXPECT_TRUE(refuses([] { Finch({.budget = 64, .chunk_len = 8}, kOneHead); },
                      {"Finch", "budget = 64", "must be a share"}));
}

}  // namespace
