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

}  // namespace
}  // namespace kvevict_test
