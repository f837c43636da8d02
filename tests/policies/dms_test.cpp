#include "kvevict/policies/dms.hpp"

#include "support/errors.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::refuses;
using kvevict_test::WindowCache;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
using Positions = std::vector<Position>;

DMSKnorm::Options options_of(float threshold, std::size_t window) {
  DMSKnorm::Options options;
  options.threshold = threshold;
  options.recent_window = window;
  return options;
}

/// A policy and a cache whose keys are given by position, [KV heads][position].
struct Session {
  Session(const DMSKnorm::Options& options, std::vector<std::vector<float>> all_keys)
      : keys(std::move(all_keys)),
        shape(keys.size() == 2
                  ? CacheShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1}
                  : kOneHead),
        policy(options, shape),
        cache(shape, 32) {}

  void write(std::size_t count) {
    for (std::size_t head = 0; head < keys.size(); ++head) {
      for (std::size_t i = 0; i < count; ++i)
        *cache.key(0, head, cache.seq_len(head) + i) = keys[head][policy.length() + i];
    }
    policy.append(count);
    cache.append(count);
    policy.observe_cache(cache.view());
  }
  bool cut() {
    if (!policy.should_evict())
      return false;
    const KeepMask mask = policy.select(cache.view());
    cache.evict(mask);
    policy.apply(mask);
    return true;
  }
  [[nodiscard]] Positions kept(std::size_t head = 0) const {
    Positions positions;
    for (std::size_t slot = 0; slot < policy.sequence().seq_len(head); ++slot)
      positions.push_back(policy.sequence().position(head, slot));
    return positions;
  }

  std::vector<std::vector<float>> keys;
  CacheShape shape;
  DMSKnorm policy;
  WindowCache cache;
};

// Scores -1 -5 -2 -5 -5: the window of two holds the last ones; of the others 1 is below -3.
TEST(DMS, WhatIsBelowTheThresholdGoesOnceTheWindowIsPast) {
  Session run(options_of(-3, 2), {{1, 5, 2, 5, 5, 1, 1}});
  run.write(5);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 2, 3, 4}));
  run.write(1);  // 3 leaves the window
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 2, 4, 5}));
  run.write(1);  // and 4
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 2, 5, 6}));
  EXPECT_FALSE(run.cut());
}

TEST(DMS, AScoreAtTheThresholdStays) {
  Session run(options_of(-5, 0), {{5, 4, 6}});
  run.write(3);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 1}));
}

TEST(DMS, HeadsKeepAsMuchAsTheyNeed) {
  Session run(options_of(-3, 1), {{1, 1, 1, 1}, {9, 9, 9, 9}});
  run.write(4);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(0), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(run.kept(1), (Positions{3}));
}

// The identity of the definition: nothing is below minus infinity.
TEST(DMS, WithoutAThresholdAllStay) {
  Session run(DMSKnorm::Options(), {{9, 9, 9, 9}});
  run.policy.begin(0);
  run.write(4);
  EXPECT_FALSE(run.cut());
  EXPECT_EQ(run.policy.select(run.cache.view()).total_evicted(), 0U);
}

// What a threshold took out of the running is still there for engines that free whole pages or hold
// heads at one length: head 0 loses 1 and 2 of pages {0, 1} and {2, 3}, head 1 keeps all.
TEST(DMS, PagesAndEqualCountsSeeWhatTheThresholdDropped) {
  const std::vector<std::vector<float>> keys = {{1, 9, 8, 1, 1, 1}, {1, 1, 1, 1, 1, 1}};
  Session run(options_of(-3, 2), keys);
  run.write(6);
  Projection pages({.page_size = 2}, run.shape);
  const KeepMask& paged = run.policy.select(run.cache.view(), pages);
  for (std::size_t slot = 0; slot < 6; ++slot)
    EXPECT_EQ(paged.keeps(0, 0, slot), paged.keeps(0, 0, slot / 2 * 2)) << slot;
  EXPECT_EQ(paged.count(0, 0), 4U);
  Projection equal({.equal_counts = EqualCounts::kLayer}, run.shape);
  const KeepMask& filled = run.policy.select(run.cache.view(), equal);
  EXPECT_EQ(filled.count(0, 0), 6U);
  EXPECT_EQ(filled.count(0, 1), 6U);
}

// The decision is that of the step in which the token came: its key is overwritten later.
TEST(DMS, ScoresAreThoseOfTheirBirth) {
  Session run(options_of(-3, 1), {{1, 5, 1}});
  run.write(2);
  EXPECT_FALSE(run.cut());
  *run.cache.key(0, 0, 0) = 100;
  *run.cache.key(0, 0, 1) = 0;
  run.write(1);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 2}));
}

TEST(DMS, ANumberThatIsNoneGoes) {
  Session run(options_of(-3, 0), {{1, kNaN, 1}});
  run.write(3);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 2}));
}

// Below the threshold: 1, 3, 5. 1 is a sink, 3 pinned, and nothing takes their place.
TEST(DMS, SinksAndPinnedSpansStay) {
  DMSKnorm::Options options = options_of(-3, 0);
  options.num_sink_tokens = 2;
  Session run(options, {{1, 9, 1, 9, 1, 9}});
  const std::array<PositionSpan, 1> pinned{{{3, 4}}};
  run.policy.begin(6, pinned);
  run.write(6);
  run.policy.end_prefill(run.cache.view());
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 1, 2, 3, 4}));
}

// 2 is below; of 0, 1, 3, 4 the budget leaves the best three, 3 among them as the newest.
TEST(DMS, ABudgetIsKeptToBesides) {
  DMSKnorm::Options options = options_of(-5, 1);
  options.budget = 3;
  Session run(options, {{1, 2, 9, 3, 4}});
  run.write(5);
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{0, 1, 4}));
}

// Decoded tokens stay, whatever their scores; the window is the prompt's last token.
TEST(DMS, PromptsAlone) {
  DMSKnorm::Options options = options_of(-3, 1);
  options.only_at_prefill_end = true;
  Session run(options, {{9, 1, 9, 9, 9, 9}});
  run.policy.begin(3);
  run.write(3);
  run.policy.end_prefill(run.cache.view());
  EXPECT_TRUE(run.cut());
  EXPECT_EQ(run.kept(), (Positions{1, 2}));
  for (int step = 0; step < 3; ++step) {
    run.write(1);
    EXPECT_FALSE(run.cut());
  }
}

// Chunks that are cut in between, and a prompt in one piece.
TEST(DMS, ChunksOfAPromptEndTheSame) {
  const std::vector<float> keys = {1, 5, 2, 5, 9, 1, 1, 7, 2, 2};
  Session whole(options_of(-3, 2), {keys});
  whole.write(10);
  whole.cut();
  Session chunked(options_of(-3, 2), {keys});
  for (const std::size_t count : {4U, 3U, 3U}) {
    chunked.write(count);
    chunked.cut();
  }
  EXPECT_EQ(whole.kept(), chunked.kept());
}

// Filters of one channel: score = -f k with f = 2.
TEST(DMS, OverOtherScores) {
  DMSQFilters::Options options;
  options.threshold = -6;
  options.recent_window = 0;
  options.query_filters = std::make_shared<const QueryFilters>(QueryFilters{2});
  DMSQFilters policy(options, kOneHead);
  WindowCache cache(kOneHead, 8);
  const std::vector<float> keys = {3, 4, -9};
  for (std::size_t i = 0; i < 3; ++i) {
    policy.append(1);
    cache.append(1);
    *cache.key(0, 0, i) = keys[i];
    policy.observe_cache(cache.view());
  }
  EXPECT_TRUE(policy.should_evict());
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_TRUE(mask.keeps(0, 0, 0));
  EXPECT_FALSE(mask.keeps(0, 0, 1));
  EXPECT_TRUE(mask.keeps(0, 0, 2));
}

// A look at the cache counts for its own step alone: one that was reset leaves nothing behind.
TEST(DMS, AStepWithoutALookIsCountedAfterAResetToo) {
  Session run(options_of(-3, 1), {{1, 1, 1, 1, 1, 1}});
  run.write(2);
  run.policy.reset();
  run.cache.truncate(0);
  run.cache.append(1);
  run.policy.append(1);  // nobody calls observe_cache
  run.policy.append(1);  // ends the step
  EXPECT_EQ(run.policy.counters().missing_signals, 1U);
}

TEST(DMS, RefusesAThresholdThatIsNone) {
  EXPECT_TRUE(refuses([] { DMSKnorm(options_of(kNaN, 2), kOneHead); },
                      {"DMSKnorm", "threshold = nan", "must be a number"}));
}

}  // namespace
}  // namespace kvevict
