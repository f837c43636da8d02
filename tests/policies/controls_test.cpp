#include "kvevict/policies/controls.hpp"

#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
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

// Sequences of one batch run with one seed, and each has its own draw.
TEST(RandomEviction, SequencesDrawForThemselves) {
  const auto kept = [](std::uint64_t sequence_id) {
    auto engine = make_engine<RandomEviction>({.budget = 20, .sequence_id = sequence_id});
    engine.prompt(100);
    return kept_slots(engine.select());
  };
  EXPECT_EQ(kept(1), kept(1));
  EXPECT_NE(kept(0), kept(1));
  EXPECT_NE(kept(1), kept(2));
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

/// Positions of all lanes after every step of a decode loop.
using History = std::vector<std::vector<Positions>>;

/// Two sequences of one seed, alone and in turns: in another order, with more calls of select than
/// cuts, and with a third sequence that starts over in between.
template <class P>
struct SideBySide {
  static constexpr std::size_t kSteps = 40;
  typename P::Options options;  // of the first
  typename P::Options other;    // of the second

  static TestEngine<P> start(const typename P::Options& o, std::size_t prompt_len) {
    auto engine = make_engine<P>(o);
    engine.prompt(prompt_len);
    return engine;
  }
  static History alone(const typename P::Options& o, std::size_t prompt_len) {
    auto engine = start(o, prompt_len);
    History history;
    for (std::size_t step = 0; step < kSteps; ++step) {
      engine.decode(1);
      history.push_back(engine.all_positions());
    }
    return history;
  }
  /// Of the first and of the second, whose turns come as `turns` says.
  [[nodiscard]] std::pair<History, History> in_turns(std::uint64_t turns) const {
    Random random(turns);
    auto first = start(options, 30);
    auto second = start(other, 17);
    auto third = start(options, 5);
    std::pair<History, History> histories;
    while (histories.first.size() < kSteps || histories.second.size() < kSteps) {
      const std::size_t turn = random.below(3);
      auto& engine = turn == 0 ? first : turn == 1 ? second : third;
      if (turn == 2 && random.below(4) == 0) {
        third.reset();
        third.prompt(5 + random.below(30));
      }
      const std::size_t done = turn == 0 ? histories.first.size() : histories.second.size();
      if (turn != 2 && done == kSteps)
        continue;
      for (std::size_t i = random.below(3); i > 0; --i)
        static_cast<void>(engine.select());
      engine.decode(1);
      for (std::size_t i = random.below(3); i > 0; --i)
        static_cast<void>(engine.select());
      if (turn != 2)
        (turn == 0 ? histories.first : histories.second).push_back(engine.all_positions());
    }
    return histories;
  }
  void expect_no_difference() const {
    const History first = alone(options, 30);
    const History second = alone(other, 17);
    for (std::uint64_t turns = 1; turns < 6; ++turns) {
      const auto [first_in_turns, second_in_turns] = in_turns(turns);
      EXPECT_EQ(first_in_turns, first) << turns;
      EXPECT_EQ(second_in_turns, second) << turns;
    }
  }
};

// The draw depends on neither the order of calls nor other sequences, also of the same seed.
TEST(RandomEviction, SequencesDoNotDisturbEachOther) {
  const RandomEvictionOptions options{.budget = 14, .seed = 3};
  SideBySide<RandomEviction>{options, options}.expect_no_difference();
  // Another seed is another history.
  EXPECT_NE(SideBySide<RandomEviction>::alone(options, 30),
            SideBySide<RandomEviction>::alone({.budget = 14, .seed = 4}, 30));
}
TEST(RandomAttention, SequencesDoNotDisturbEachOther) {
  const RandomAttentionOptions options{
      .budget = 14, .interval = 3, .recent_window = 2, .protect = PromptProtection::kNone};
  RandomAttentionOptions other = options;
  other.sequence_id = 1;
  SideBySide<RandomAttention>{options, options}.expect_no_difference();
  SideBySide<RandomAttention>{options, other}.expect_no_difference();
}

// Sequences of one seed with numbers of their own draw for themselves, in every lane and at every
// firing, and as independently as two seeds do: of 12 tokens that two of them draw from 60, on
// average 2.4 are the same (hypergeometric, deviation 1.27), over 45 pairs and 4 lanes 2.4 +- .3.
TEST(RandomAttention, NumbersOfSequencesAreDrawsOfTheirOwn) {
  std::vector<std::vector<Positions>> drawn;
  for (std::uint64_t id = 0; id < 10; ++id) {
    auto engine = make_engine<RandomAttention>({.budget = 12,
                                                .interval = 48,
                                                .recent_window = 0,
                                                .protect = PromptProtection::kNone,
                                                .sequence_id = id});
    engine.decode(60);
    EXPECT_EQ(engine.policy.counters().firings, 1U);
    drawn.push_back(engine.all_positions());
  }
  std::size_t same = 0;
  for (std::size_t a = 0; a < 10; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      for (std::size_t lane = 0; lane < 4; ++lane) {
        ASSERT_EQ(drawn[a][lane].size(), 12U);
        EXPECT_NE(drawn[a][lane], drawn[b][lane]) << a << ' ' << b << ' ' << lane;
        Positions both;
        std::set_intersection(drawn[a][lane].begin(), drawn[a][lane].end(), drawn[b][lane].begin(),
                              drawn[b][lane].end(), std::back_inserter(both));
        same += both.size();
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(same) / (45 * 4), 2.4, .3);
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
