// The life of a cache as the driver of all policies sees it, on a policy whose scores are written
// down.
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/score_policy.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::KeepMask;
using Engine = TestEngine<TableScore>;
using Positions = std::vector<std::size_t>;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 3};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Engine make_engine(const TableScoreOptions& options, const CacheShape& shape = kShape) {
  return {TableScore(options, shape), layouts::hnd(shape, 64, kvevict::ElementType::kF32)};
}

// O-01: rho = 0.6 leaves the only token, and the better of two; rho = 1 leaves none.
TEST(PolicyLifecycle, ARatioKeepsOneUnlessItKeepsNothing) {
  const TableScoreOptions options{.budget = kvevict::Budget::compression_ratio(0.6),
                                  .scores = {{.3F, .7F}}};
  Engine one = make_engine(options);
  one.feed(1);
  EXPECT_EQ(text_of(one.select()), "1");
  Engine two = make_engine(options);
  two.feed(2);
  EXPECT_EQ(text_of(two.select()), "01");
  Engine none =
      make_engine({.budget = kvevict::Budget::compression_ratio(1.0), .scores = {{.3F, .7F}}});
  none.feed(2);
  EXPECT_EQ(text_of(none.select()), "00");
}

// O-08: all NaN falls back to the order of slots; the count stays exact.
TEST(PolicyLifecycle, NaNGoesFirstAndIsCounted) {
  Engine engine = make_engine({.budget = 2, .scores = {{1, kNaN, 3, kNaN}}});
  engine.feed(4);
  EXPECT_EQ(engine.policy.counters().non_finite, 2U);  // samples, when they came
  EXPECT_EQ(text_of(engine.select()), "1010");
  engine.evict(engine.select());
  EXPECT_EQ(engine.policy.counters().non_finite, 4U);  // and scores, when they were compared
  Engine all = make_engine({.budget = 2, .scores = {{kNaN, kNaN, kNaN}}});
  all.feed(3);
  EXPECT_EQ(text_of(all.select()), "110");
}

// O-24: two evictions; score and position of every entry follow.
TEST(PolicyLifecycle, StateFollowsTwoEvictions) {
  Engine engine = make_engine({.budget = 6, .scores = {{.6F, .5F, .4F, .3F, .2F, .1F}}});
  engine.feed(6);
  engine.evict(mask_of(kvevict::MaskScope::kModel, 1, 2, {"101101"}));
  engine.evict(mask_of(kvevict::MaskScope::kModel, 1, 2, {"1011"}));
  EXPECT_EQ(engine.policy.method().scores(), (std::vector<float>{.6F, .3F, .1F}));
  EXPECT_EQ(engine.positions(), (Positions{0, 3, 5}));
  EXPECT_EQ(engine.policy.sequence().position(0, 2), 5);
  EXPECT_TRUE(engine.cache_is_intact());
}

// O-21: one budget for the sequence, not for the chunk; the sink is the first token of all.
TEST(PolicyLifecycle, ChunksShareOneBudgetAndOneSink) {
  std::vector<float> scores(16, 1.0F);
  scores[8] = -5.0F;
  Engine engine =
      make_engine({.budget = 6, .protection = {.num_sink_tokens = 1}, .scores = {scores}});
  engine.policy.begin(16);
  engine.feed(8);
  engine.evict_if_due();
  EXPECT_EQ(engine.positions().size(), 6U);
  engine.feed(8);
  engine.policy.end_prefill(engine.cache.view());
  engine.evict_if_due();
  EXPECT_EQ(engine.positions(), (Positions{0, 1, 2, 3, 4, 5}));
}

TEST(PolicyLifecycle, TriggersSayWhenToCut) {
  using kvevict::Trigger;
  const auto due = [](Trigger trigger) {
    Engine engine = make_engine({.budget = 3, .trigger = trigger});
    std::string log;
    const auto ask = [&] { log += engine.policy.should_evict() ? '1' : '0'; };
    engine.policy.begin(6);
    engine.feed(4);
    ask();  // inside the prompt
    engine.feed(2);
    ask();  // all of it is there
    engine.policy.end_prefill(engine.cache.view());
    ask();
    engine.evict_if_due();
    ask();
    engine.feed(1);
    ask();  // decoding
    return log;
  };
  EXPECT_EQ(due(Trigger::kEveryStep), "11101");
  EXPECT_EQ(due(Trigger::kDecodeSteps), "00001");
  EXPECT_EQ(due(Trigger::kPrefillEnd), "00100");
}

TEST(PolicyLifecycle, APolicyForPrefillFiresOncePerPrompt) {
  Engine engine = make_engine({.budget = 3,
                               .trigger = kvevict::Trigger::kPrefillEnd,
                               .protection = {.after_prompt = true}});
  engine.prompt(6);
  EXPECT_TRUE(engine.evict_if_due());
  engine.decode(4);
  EXPECT_EQ(engine.positions().size(), 7U);
  EXPECT_EQ(engine.policy.counters().firings, 1U);
  engine.prompt(2);  // 3 + 4 decoded + 2: all of it is prefix now
  EXPECT_TRUE(engine.evict_if_due());
  EXPECT_EQ(engine.positions().size(), 3U);
  EXPECT_EQ(engine.policy.counters().firings, 2U);
}

// A turn without tokens has nothing of its own to cut, and its scores are nobody's.
TEST(PolicyLifecycle, AnEmptyPromptCutsNothing) {
  Engine engine = make_engine({.budget = 3,
                               .trigger = kvevict::Trigger::kPrefillEnd,
                               .protection = {.after_prompt = true}});
  engine.prompt(3);
  engine.decode(4);
  engine.policy.begin(0);
  engine.policy.end_prefill(engine.cache.view());
  EXPECT_FALSE(engine.policy.should_evict());
  engine.prompt(1);
  EXPECT_TRUE(engine.policy.should_evict());
}

// A prompt in one piece needs no append, and an engine may ask before it hands anything over.
TEST(PolicyLifecycle, APromptInOnePieceIsAppendedByItself) {
  Engine engine = make_engine({.budget = 3});
  engine.policy.begin(5);
  EXPECT_EQ(engine.policy.length(), 0U);
  engine.policy.reset();
  engine.prompt(5);
  EXPECT_EQ(engine.policy.length(), 5U);
  EXPECT_EQ(engine.policy.counters().steps, 1U);
}

// O-27: select twice, then from a const reference; state and bytes are as before.
TEST(PolicyLifecycle, SelectWritesNothing) {
  Engine engine = make_engine({.budget = 2, .scores = {{1, 4, 2, 3}}});
  engine.feed(4);
  const std::vector<std::byte> bytes = engine.cache.memory();
  const std::vector<float> scores = engine.policy.method().scores();
  const TableScore& constant = engine.policy;
  const KeepMask first = constant.select(engine.cache.view());
  const KeepMask second = constant.select(engine.cache.view());
  EXPECT_EQ(first, second);
  EXPECT_EQ(engine.policy.method().scores(), scores);
  EXPECT_EQ(engine.policy.counters().firings, 0U);
  EXPECT_EQ(engine.cache.memory(), bytes);
}

// O-37: 16 rows of memory, 5 of them live; what lies behind is NaN and never read.
TEST(PolicyLifecycle, CapacityIsNotLength) {
  std::vector<float> scores = {.1F, .5F, .2F, .4F, .3F};
  scores.resize(16, 1e9F);
  Engine engine{TableScore({.budget = 3, .scores = {scores}}, kShape),
                layouts::nhd(kShape, 16, kvevict::ElementType::kF32)};
  engine.feed(5);
  EXPECT_EQ(kept_slots(engine.select()), (Slots{1, 3, 4}));
}

// O-26: four drafts, one accepted.
TEST(PolicyLifecycle, TruncateKeepsWhatWasAccepted) {
  Engine engine = make_engine({.budget = 64, .scores = {{0, 1, 2, 3, 4, 5, 6, 7, 8}}});
  engine.feed(5);
  engine.feed(4);
  engine.truncate(6);
  EXPECT_EQ(engine.policy.method().scores(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  engine.truncate(6);
  EXPECT_EQ(engine.policy.length(), 6U);
  EXPECT_TRUE(refuses([&] { engine.policy.truncate(9); }, {"TableScore", "truncate", "9"}));
}

TEST(PolicyLifecycle, TruncateBehindAnEvictionAppliesToWhatIsLeft) {
  Engine engine = make_engine({.budget = 3, .scores = {{9, 1, 8, 2, 7, 3}}});
  engine.feed(6);
  engine.evict_if_due();
  EXPECT_EQ(engine.positions(), (Positions{0, 2, 4}));
  engine.truncate(3);
  EXPECT_EQ(engine.policy.method().scores(), (std::vector<float>{9, 8}));
  engine.feed(1);
  EXPECT_EQ(engine.positions(), (Positions{0, 2, 3}));
}

// O-25: a policy that never ran shows it, and one that ran says how often and how much.
TEST(PolicyLifecycle, CountersSayWhatHappened) {
  Engine engine = make_engine({.budget = 4,
                               .protection = {.num_sink_tokens = 1, .recent_window = 1},
                               .scores = {{1, 2, 3, 4, 5, 6}}});
  EXPECT_EQ(engine.policy.counters().steps, 0U);
  engine.feed(3);
  EXPECT_FALSE(engine.evict_if_due());
  EXPECT_EQ(engine.policy.counters().firings, 0U);
  engine.feed(3);
  EXPECT_TRUE(engine.evict_if_due());
  const kvevict::Counters& counters = engine.policy.counters();
  EXPECT_EQ(counters.steps, 2U);
  EXPECT_EQ(counters.firings, 1U);
  EXPECT_EQ(counters.evicted, 4U);  // two tokens of both heads
  EXPECT_EQ(counters.kept, 8U);
  EXPECT_EQ(counters.protected_entries, 4U);
  EXPECT_EQ(counters.budget_not_reached, 0U);
  engine.policy.reset();
  EXPECT_EQ(engine.policy.counters().firings, 0U);
}

TEST(PolicyLifecycle, CountsFiringsThatCouldNotReachTheBudget) {
  Engine engine = make_engine({.budget = 3, .protection = {.prompt = true}});
  engine.prompt(5);
  engine.evict(engine.select());
  EXPECT_EQ(engine.positions().size(), 5U);
  EXPECT_EQ(engine.policy.counters().budget_not_reached, 1U);
}

// Windows that are wider than a share of a short prompt.
TEST(PolicyLifecycle, CountsFiringsWhoseWindowsDidNotFit) {
  Engine engine = make_engine({.budget = kvevict::Budget::keep_ratio(0.25),
                               .protection = {.num_sink_tokens = 1, .recent_window = 4}});
  engine.feed(8);
  engine.evict_if_due();
  EXPECT_EQ(engine.positions(), (Positions{6, 7}));
  EXPECT_EQ(engine.policy.counters().budget_not_reached, 1U);
}

// What select found belongs to the mask that it made, not to one that the engine thought of.
TEST(PolicyLifecycle, AMaskOfTheEnginesOwnHasNoReport) {
  Engine engine = make_engine({.budget = 2, .scores = {{kNaN, 1, 2, 3}}});
  engine.feed(4);
  const std::size_t samples = engine.policy.counters().non_finite;
  static_cast<void>(engine.select());
  engine.evict(mask_of(kvevict::MaskScope::kModel, 1, 2, {"1110"}));
  EXPECT_EQ(engine.policy.counters().non_finite, samples);
  EXPECT_EQ(engine.policy.counters().firings, 1U);
  EXPECT_EQ(engine.policy.counters().kept, 6U);
}

TEST(PolicyLifecycle, LanesOfAPoolShareTheirBudget) {
  Engine engine = make_engine({.budget = 3,
                               .scope = kvevict::MaskScope::kHead,
                               .competition = kvevict::Competition::kModel,
                               .min_keep = 1,
                               .scores = {{9, 8, 7, 6, 5, 4}, {1, 1, 1, 1, 1, 2}}});
  engine.feed(6);
  EXPECT_TRUE(engine.evict_if_due());
  EXPECT_EQ(engine.positions(0, 0), (Positions{0, 1, 2, 3, 4}));
  EXPECT_EQ(engine.positions(0, 1), (Positions{5}));
  EXPECT_FALSE(engine.policy.should_evict());  // uneven, but within the pool's budget
  EXPECT_TRUE(engine.cache_is_intact());
}

// Positions are what pins speak of: they hold after every eviction.
TEST(PolicyLifecycle, PinnedTokensStayForEver) {
  Engine engine = make_engine({.budget = 4});
  const std::vector<kvevict::PositionSpan> pinned = {{3, 5}};
  engine.prompt(8, 0, pinned);
  engine.evict_if_due();
  engine.decode(20);
  EXPECT_EQ(engine.positions(), (Positions{0, 1, 3, 4}));
}

// R7, R15: refused when the policy is made.
TEST(PolicyLifecycle, RefusesOptionsThatCannotWork) {
  EXPECT_TRUE(refuses(
      [] {
        TableScore({.budget = 3, .protection = {.num_sink_tokens = 2, .recent_window = 2}}, kShape);
      },
      {"TableScore", "budget", "3"}));
  EXPECT_TRUE(refuses(
      [] {
        TableScore({.budget = kvevict::Budget::total(1),
                    .scope = kvevict::MaskScope::kHead,
                    .competition = kvevict::Competition::kModel,
                    .min_keep = 1},
                   kShape);
      },
      {"TableScore", "budget", "1", "min_keep"}));
  // A total that is not one entry for each head is as little where none compete.
  EXPECT_TRUE(refuses(
      [] {
        TableScore({.budget = kvevict::Budget::total(1),
                    .scope = kvevict::MaskScope::kHead,
                    .min_keep = 1},
                   kShape);
      },
      {"TableScore", "budget", "1", "min_keep"}));
  CacheShape shape = kShape;
  shape.num_q_heads = 3;
  EXPECT_TRUE(refuses([&] { TableScore({}, shape); }, {"TableScore", "num_q_heads", "3"}));
}

TEST(PolicyLifecycle, RefusesAnEndOfNoPrompt) {
  Engine engine = make_engine({.budget = 3});
  const auto end = [&] { engine.policy.end_prefill(engine.cache.view()); };
  EXPECT_TRUE(refuses(end, {"TableScore", "begin"}));
  engine.prompt(4);
  EXPECT_TRUE(refuses(end, {"TableScore", "begin"}));
}

TEST(PolicyLifecycle, RefusesAPromptInsideAPrompt) {
  Engine engine = make_engine({.budget = 3});
  engine.policy.begin(4);
  engine.feed(2);
  EXPECT_TRUE(refuses([&] { engine.policy.begin(4); }, {"TableScore", "pending prompt tokens"}));
}

}  // namespace
}  // namespace kvevict_test
