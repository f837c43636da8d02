#include "kvevict/policies/controls.hpp"

#include "support/masks.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::FullKV;
using kvevict::PromptProtection;
using kvevict::RandomAttention;
using kvevict::RandomAttentionOptions;
using kvevict::RandomEviction;
using kvevict::RandomEvictionOptions;
using Positions = std::vector<std::size_t>;

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

template <class P>
TestEngine<P> make_engine(const typename P::Options& options) {
  return {P(options, kShape), layouts::nhd(kShape, 1100, kvevict::ElementType::kF32)};
}

TEST(FullKV, NeverEvicts) {
  auto engine = make_engine<FullKV>({});
  engine.prompt(50);
  EXPECT_FALSE(engine.policy.should_evict());
  EXPECT_EQ(engine.select().total_evicted(), 0U);
  engine.decode(10);
  EXPECT_EQ(engine.positions(), range(0, 60));
  EXPECT_EQ(engine.policy.counters().evicted, 0U);
}

TEST(RandomEviction, TheSeedDecides) {
  const auto kept_with = [](std::uint64_t seed) {
    auto engine = make_engine<RandomEviction>({.budget = 20, .seed = seed});
    engine.prompt(100);
    return kept_slots(engine.select());
  };
  EXPECT_EQ(kept_with(1), kept_with(1));
  EXPECT_NE(kept_with(1), kept_with(2));
  EXPECT_EQ(kept_with(1).size(), 20U);
}

TEST(RandomEviction, LanesDrawForThemselvesUnlessShared) {
  auto engine = make_engine<RandomEviction>({.budget = 20});
  engine.prompt(100);
  const kvevict::KeepMask& mask = engine.select();
  EXPECT_NE(kept_slots(mask, 0, 0), kept_slots(mask, 0, 1));
  EXPECT_NE(kept_slots(mask, 0, 0), kept_slots(mask, 1, 0));
  auto shared = make_engine<RandomEviction>({.budget = 20, .shared = true});
  shared.prompt(100);
  EXPECT_EQ(shared.select().num_lanes(), 1U);
}

// A token keeps its number: a smaller budget keeps a subset, and cutting often ends where cutting
// once does.
TEST(RandomEviction, TokensKeepTheirNumbers) {
  auto once = make_engine<RandomEviction>({.budget = 10});
  once.prompt(100);
  auto wider = make_engine<RandomEviction>({.budget = 30});
  wider.prompt(100);
  const Positions few = kept_slots(once.select());
  const Positions many = kept_slots(wider.select());
  EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end()));
  auto step_by_step = make_engine<RandomEviction>({.budget = 10});
  step_by_step.decode(100);
  EXPECT_EQ(step_by_step.positions(), few);
}

// Every place is as likely as any other: of 1,000 tokens 100 stay; thirds of the text get
// 33 +- 12 (2.6 standard deviations of the hypergeometric law) in each of the four lanes.
TEST(RandomEviction, PrefersNoPlace) {
  auto engine = make_engine<RandomEviction>({.budget = 100, .seed = 3});
  engine.prompt(999);
  const kvevict::KeepMask& mask = engine.select();
  for (std::size_t lane = 0; lane < 4; ++lane) {
    std::size_t thirds[3] = {};
    for (const std::size_t slot : kept_slots(mask, lane / 2, lane % 2))
      ++thirds[slot / 333];
    for (const std::size_t count : thirds)
      EXPECT_NEAR(static_cast<double>(count), 33.3, 12.0);
  }
}

TEST(RandomEviction, ProtectsWhatItsRivalProtects) {
  auto engine = make_engine<RandomEviction>(
      {.budget = 12, .protection = {.num_sink_tokens = 4, .recent_window = 6}});
  engine.prompt(60);
  const Positions kept = kept_slots(engine.select());
  EXPECT_EQ(Positions(kept.begin(), kept.begin() + 4), range(0, 4));
  EXPECT_EQ(Positions(kept.end() - 6, kept.end()), range(54, 60));
}

TEST(RandomEviction, AtPrefillEndKeepsTheAnswer) {
  auto engine = make_engine<RandomEviction>(
      {.budget = kvevict::Budget::keep_ratio(0.1), .only_at_prefill_end = true});
  engine.prompt(50);
  EXPECT_TRUE(engine.evict_if_due());
  EXPECT_EQ(engine.positions().size(), 5U);
  engine.decode(30);
  EXPECT_EQ(engine.positions().size(), 35U);
  EXPECT_EQ(engine.policy.counters().firings, 1U);
}

// A share refers to all that was seen: cut at every step, a tenth stays a tenth.
TEST(RandomEviction, AShareOfAGrowingCache) {
  auto engine = make_engine<RandomEviction>({.budget = kvevict::Budget::keep_ratio(0.1)});
  engine.prompt(50);
  engine.evict_if_due();
  engine.decode(50);
  EXPECT_EQ(engine.positions().size(), 10U);
}

/// A prompt of 10 tokens, and `steps` behind it, none of them cut.
TestEngine<RandomAttention> uncut(const RandomAttentionOptions& options, std::size_t steps) {
  auto engine = make_engine<RandomAttention>(options);
  engine.prompt(10);
  for (std::size_t i = 0; i < steps; ++i)
    engine.feed(1);
  return engine;
}

// Budget 20 of 100: the prompt (10), the newest 4, and 6 of the 86 between them.
TEST(RandomAttention, KeepsThePromptAndDrawsTheRest) {
  auto engine = uncut({.budget = 20, .recent_window = 4}, 90);
  const kvevict::KeepMask& mask = engine.select();
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const Positions kept = kept_slots(mask, lane / 2, lane % 2);
    ASSERT_EQ(kept.size(), 20U);
    EXPECT_EQ(Positions(kept.begin(), kept.begin() + 10), range(0, 10));
    EXPECT_EQ(Positions(kept.end() - 4, kept.end()), range(96, 100));
  }
  EXPECT_NE(kept_slots(mask, 0, 0), kept_slots(mask, 0, 1));
  EXPECT_NE(kept_slots(mask, 0, 0), kept_slots(mask, 1, 0));
}

TEST(RandomAttention, WaitsForTheIntervalAndCutsToTheBudget) {
  auto engine = make_engine<RandomAttention>({.budget = 20, .interval = 8, .recent_window = 4});
  engine.prompt(40);  // prompts are not cut before decoding
  EXPECT_FALSE(engine.policy.should_evict());
  engine.decode(1);
  EXPECT_EQ(engine.positions().size(), 20U);
  engine.decode(7);
  EXPECT_EQ(engine.positions().size(), 27U);
  engine.decode(1);
  EXPECT_EQ(engine.positions().size(), 20U);
}

// K = 20 - 4 = 16, a prompt of 40: 15 of its tokens are protected, one of the 21 others is drawn.
TEST(RandomAttention, APromptBeyondTheBudgetGivesWay) {
  auto engine = make_engine<RandomAttention>({.budget = 20, .interval = 1, .recent_window = 4});
  engine.prompt(40);
  engine.feed(1);
  const Positions kept = kept_slots(engine.select());
  ASSERT_EQ(kept.size(), 20U);
  EXPECT_EQ(Positions(kept.begin(), kept.begin() + 15), range(0, 15));
  EXPECT_EQ(Positions(kept.end() - 4, kept.end()), range(37, 41));
  engine.evict_if_due();
  EXPECT_EQ(engine.policy.counters().protected_entries, 4 * 19U);
  EXPECT_EQ(engine.policy.counters().budget_not_reached, 0U);
}

TEST(RandomAttention, ThePlanBehindThePromptIsAPreset) {
  auto engine = uncut({.budget = 20,
                       .recent_window = 2,
                       .protect = PromptProtection::kPlanPrefix,
                       .plan_tokens = 5},
                      90);
  const Positions kept = kept_slots(engine.select());
  ASSERT_EQ(kept.size(), 20U);
  EXPECT_EQ(Positions(kept.begin(), kept.begin() + 15), range(0, 15));
  auto bare = uncut({.budget = 20, .recent_window = 2, .protect = PromptProtection::kNone}, 90);
  const Positions drawn = kept_slots(bare.select());
  EXPECT_NE(Positions(drawn.begin(), drawn.begin() + 10), range(0, 10));
}

// A later prompt is protected too; what was decoded between them is not.
TEST(RandomAttention, EveryPromptIsProtected) {
  auto engine = uncut({.budget = 20, .recent_window = 2}, 40);
  engine.prompt(5);
  engine.feed(30);
  const Positions kept = kept_slots(engine.select());
  ASSERT_EQ(kept.size(), 20U);  // 10 + 5 + 2, and 3 that were drawn
  for (std::size_t slot = 50; slot < 55; ++slot)
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), slot)) << slot;
}

// The draw depends on counters alone: asked twice it says the same, a fork goes on alike, and each
// of seed, sequence and firing gives another one.
TEST(RandomAttention, DrawsComeFromCounters) {
  const RandomAttentionOptions options{.budget = 30, .recent_window = 2};
  const auto kept_with = [](const RandomAttentionOptions& changed) {
    auto engine = uncut(changed, 90);
    const Positions first = kept_slots(engine.select());
    EXPECT_EQ(kept_slots(engine.select()), first);
    return first;
  };
  RandomAttentionOptions other_seed = options;
  other_seed.seed = 1;
  RandomAttentionOptions other_sequence = options;
  other_sequence.sequence_id = 1;
  EXPECT_EQ(kept_with(options), kept_with(options));
  EXPECT_NE(kept_with(options), kept_with(other_seed));
  EXPECT_NE(kept_with(options), kept_with(other_sequence));
  EXPECT_NE(kept_with(other_seed), kept_with(other_sequence));
  // A mask that keeps all changes nothing but the number of firings.
  auto engine = uncut(options, 90);
  const Positions first = kept_slots(engine.select());
  auto fork = engine;
  kvevict::KeepMask all = engine.select();
  for (std::size_t lane = 0; lane < 4; ++lane) {
    for (std::size_t slot = 0; slot < 100; ++slot)
      all.words(lane)[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }
  engine.evict(all);
  EXPECT_NE(kept_slots(engine.select()), first);
  EXPECT_EQ(kept_slots(fork.select()), first);
  fork.reset();
  fork.prompt(10);
  fork.feed(90);
  EXPECT_EQ(kept_slots(fork.select()), first);
}

TEST(RandomAttention, HeadsMayShareADraw) {
  auto layers = uncut({.budget = 20, .recent_window = 2, .scope = kvevict::MaskScope::kLayer}, 90);
  const kvevict::KeepMask& mask = layers.select();
  EXPECT_EQ(kept_slots(mask, 0, 0), kept_slots(mask, 0, 1));
  EXPECT_NE(kept_slots(mask, 0, 0), kept_slots(mask, 1, 0));
}

// Budget 20, an interval of 20 and nothing protected: each firing halves the cache, so a token is
// left after three with probability 1 / 8. Of the first 20 that is 2.5, over 4 lanes and 40 seeds
// 400 +- 57 (three standard deviations of a binomial, sqrt(3200 * 7 / 64) = 18.7).
TEST(RandomAttention, SurvivalFallsGeometricallyWithAge) {
  std::size_t survivors = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto engine = make_engine<RandomAttention>({.budget = 20,
                                                .interval = 20,
                                                .recent_window = 0,
                                                .protect = PromptProtection::kNone,
                                                .seed = seed});
    engine.decode(80);
    EXPECT_EQ(engine.policy.counters().firings, 3U);
    for (std::size_t lane = 0; lane < 4; ++lane) {
      for (const std::size_t position : engine.positions(lane / 2, lane % 2))
        survivors += position < 20 ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(survivors), 400.0, 57.0);
}

}  // namespace
}  // namespace kvevict_test
