// What holds for every policy, whatever it scores by.
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/policy_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::KeepMask;

class PolicyInvariants : public testing::TestWithParam<PolicyCase> {
 protected:
  /// After the prompt, and where the policy waits for it some decode steps, nothing evicted yet.
  static AnyEngine before_first_cut(ToyModel model = {}, RowsFrom rows_from = RowsFrom::kQueries,
                                    std::size_t chunk = 0,
                                    std::span<const kvevict::PositionSpan> pinned = {},
                                    std::optional<std::size_t> budget = std::nullopt) {
    const Workload load = workload(GetParam());
    AnyEngine engine = GetParam().engine(budget.value_or(load.budget), model, rows_from);
    engine.prompt(load.prompt_len, chunk, pinned);
    if (engine.policy.trigger() == kvevict::Trigger::kDecodeSteps) {
      for (std::size_t step = 0; step < 12; ++step)
        engine.feed(1);
    }
    return engine;
  }
  /// Everything that a workload leads to.
  static std::vector<std::vector<std::size_t>> run(AnyEngine& engine) {
    const Workload load = workload(GetParam());
    engine.prompt(load.prompt_len);
    engine.evict_if_due();
    engine.decode(load.num_steps);
    EXPECT_TRUE(engine.cache_is_intact());
    return engine.all_positions();
  }
  /// What the policy may keep of all lanes together (rule R2), given that all slots are valid.
  static std::size_t expected_total(const AnyEngine& engine) {
    const auto& sequence = engine.policy.sequence();
    const kvevict::Allocation allocation = engine.policy.allocation();
    const bool answer_is_extra = engine.policy.protection().after_prompt;
    const std::size_t num_lanes = sequence.num_lanes();
    const std::size_t pools = allocation.num_pools(kToyShape, num_lanes);
    std::size_t total = 0;
    for (std::size_t pool = 0; pool < pools; ++pool) {
      double quota = 0;  // an unlimited budget may not overflow
      std::size_t held = 0;
      std::size_t extra = 0;
      for (std::size_t l = 0; l < num_lanes / pools; ++l) {
        const std::size_t lane = pool * num_lanes / pools + l;
        const std::size_t len = sequence.seq_len(lane);
        const std::size_t answer =
            answer_is_extra ? len - sequence.slots_before(lane, sequence.prompt_end()) : 0;
        quota += static_cast<double>(allocation.lane_budget(kToyShape, lane, len));
        held += len - answer;
        extra += answer;
      }
      total += static_cast<std::size_t>(std::min(quota, static_cast<double>(held))) + extra;
    }
    return total * (kToyShape.num_layers * kToyShape.num_kv_heads / num_lanes);
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, PolicyInvariants, testing::ValuesIn(policy_cases()),
                         [](const auto& policy) { return policy.param.name; });

// R2.
TEST_P(PolicyInvariants, ExactlyTheBudgetStays) {
  auto engine = before_first_cut();
  const std::size_t expected = expected_total(engine);
  const std::size_t kept = engine.select().total_count();
  if (GetParam().keeps_exactly) {
    EXPECT_EQ(kept, expected);
  } else {
    EXPECT_LE(kept, expected);
    EXPECT_GT(kept, 0U);
  }
}

// Nothing that is decoded later brings the cache over what the policy promises.
TEST_P(PolicyInvariants, TheCacheStaysWithinTheBudgetWhileDecoding) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  engine.evict_if_due();
  for (std::size_t step = 0; step < load.num_steps; ++step) {
    engine.feed(1);
    const std::size_t expected = expected_total(engine);
    const bool evicted = engine.evict_if_due();
    const std::vector<std::vector<std::size_t>>& lanes = engine.all_positions();
    const std::size_t held =
        std::accumulate(lanes.begin(), lanes.end(), std::size_t{0},
                        [](std::size_t sum, const auto& lane) { return sum + lane.size(); });
    if (GetParam().keeps_exactly) {
      EXPECT_EQ(held, expected) << "step " << step;
    }
    EXPECT_LE(held, expected) << "step " << step;
    EXPECT_EQ(engine.policy.should_evict(), false) << "step " << step << ", evicted " << evicted;
  }
}

// R5: sinks, recent tokens, prompts and what was pinned.
TEST_P(PolicyInvariants, ProtectedTokensStay) {
  const std::vector<kvevict::PositionSpan> pinned = {{6, 8}};
  auto engine = before_first_cut({}, RowsFrom::kQueries, 0, pinned);
  const kvevict::Protection protection = engine.policy.protection();
  const KeepMask& mask = engine.select();
  for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kToyShape.num_kv_heads; ++head) {
      const std::size_t len = mask.seq_len(layer, head);
      for (std::size_t slot = 6; slot < 8; ++slot)
        EXPECT_TRUE(mask.keeps(layer, head, slot));
      // Windows give way to pins where the budget has no room for both: the budget of these is
      // their windows, so the two pins push out the sinks.
      const bool has_room = GetParam().name != "StreamingLLM" &&
                            GetParam().name != "DuoAttention" && GetParam().name != "SimLayerKV";
      const std::size_t recent = has_room ? protection.recent_window : protection.recent_window - 2;
      for (std::size_t i = 0; i < std::min(recent, len); ++i) {
        EXPECT_TRUE(mask.keeps(layer, head, len - 1 - i)) << "recent token " << i;
      }
      for (std::size_t slot = 0; has_room && slot < protection.num_sink_tokens; ++slot) {
        EXPECT_TRUE(mask.keeps(layer, head, slot)) << "sink " << slot;
      }
      for (std::size_t slot = 0; protection.prompt && slot < 20; ++slot) {
        EXPECT_TRUE(mask.keeps(layer, head, slot)) << "prompt token " << slot;
      }
    }
  }
}

// Engines that hold one set of tokens for all layers and heads: every policy serves them with no
// more memory than its own sets take, and the sequence goes on.
TEST_P(PolicyInvariants, OneSetForTheModelTakesNoMoreThanItsOwnSets) {
  const auto held = [](const AnyEngine& engine) {
    const auto& lanes = engine.all_positions();
    return std::accumulate(lanes.begin(), lanes.end(), std::size_t{0},
                           [](std::size_t sum, const auto& lane) { return sum + lane.size(); });
  };
  const Workload load = workload(GetParam());
  AnyEngine shared = GetParam().engine(load.budget);
  AnyEngine alone = GetParam().engine(load.budget);
  kvevict::Projection projection({.scope = kvevict::MaskScope::kModel}, kToyShape);
  shared.prompt(load.prompt_len);
  alone.prompt(load.prompt_len);
  bool alone_evicted = false;
  for (std::size_t step = 0; step < load.num_steps; ++step) {
    if (shared.policy.should_evict()) {
      const KeepMask mask = shared.policy.select(shared.cache.view(), projection);
      EXPECT_EQ(mask.num_lanes(), 1U);
      shared.evict(mask);
    }
    alone_evicted = alone.evict_if_due() || alone_evicted;
    if (GetParam().keeps_exactly) {
      EXPECT_LE(held(shared), held(alone)) << "step " << step;
    }
    shared.feed(1);
    alone.feed(1);
  }
  EXPECT_TRUE(shared.cache_is_intact());
  EXPECT_EQ(shared.policy.counters().evicted > 0, alone_evicted);
}

// R11, O-27: select changes neither the policy nor the cache, and says the same again.
TEST_P(PolicyInvariants, SelectIsConstAndDeterministic) {
  auto engine = before_first_cut();
  const std::vector<std::byte> bytes = engine.cache.memory();
  const auto untouched = engine;
  const auto& constant = engine.policy;
  const auto view = engine.cache.view();
  const KeepMask first = constant.select(view);
  const KeepMask second = constant.select(view);
  EXPECT_EQ(first, second);
  EXPECT_EQ(engine.cache.memory(), bytes);
  // The object that selected twice and the one that never did go on alike.
  auto other = untouched;
  EXPECT_EQ(other.select(), first);
  engine.evict(first);
  other.evict(other.select());
  engine.decode(6);
  other.decode(6);
  EXPECT_EQ(engine.all_positions(), other.all_positions());
  EXPECT_EQ(engine.policy.counters().non_finite, other.policy.counters().non_finite);
}

TEST_P(PolicyInvariants, TwoRunsAreEqual) {
  const Workload load = workload(GetParam());
  AnyEngine a = GetParam().engine(load.budget);
  AnyEngine b = GetParam().engine(load.budget);
  EXPECT_EQ(run(a), run(b));
}

// O-03, R6.
TEST_P(PolicyInvariants, ABudgetOfAllKeepsAll) {
  AnyEngine engine = GetParam().engine(64);
  engine.prompt(20);
  EXPECT_FALSE(engine.policy.should_evict());
  EXPECT_EQ(engine.select().total_evicted(), 0U);
  engine.decode(20);
  EXPECT_EQ(engine.positions().size(), 40U);
  EXPECT_EQ(engine.policy.counters().firings, 0U);
}

// O-01 d.
TEST_P(PolicyInvariants, AnEmptyCacheIsNothingSpecial) {
  AnyEngine engine = GetParam().engine(workload(GetParam()).budget);
  EXPECT_FALSE(engine.policy.should_evict());
  EXPECT_EQ(engine.select().total_count(), 0U);
  engine.evict(engine.select());
  EXPECT_EQ(engine.policy.length(), 0U);
  engine.prompt(0);
  EXPECT_EQ(engine.select().total_count(), 0U);
}

TEST_P(PolicyInvariants, OneTokenIsNothingSpecial) {
  AnyEngine engine = GetParam().engine(workload(GetParam()).budget);
  engine.prompt(1);
  EXPECT_EQ(engine.select().total_evicted(), 0U);
}

// R12: a fork goes its own way; both then do what they would have done alone.
TEST_P(PolicyInvariants, ACopyForksTheSequence) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  engine.evict_if_due();
  engine.decode(5);
  auto fork = engine;
  fork.model.seed = 77;  // another continuation
  auto alone = engine;
  fork.decode(15);
  engine.decode(15);
  alone.decode(15);
  EXPECT_EQ(engine.all_positions(), alone.all_positions());
  EXPECT_EQ(fork.length(), engine.length());
  EXPECT_EQ(engine.policy.counters().evicted, alone.policy.counters().evicted);
}

// O-25: nothing of the request before shows.
TEST_P(PolicyInvariants, ResetIsAsNew) {
  const Workload load = workload(GetParam());
  AnyEngine fresh = GetParam().engine(load.budget);
  const auto expected = run(fresh);
  AnyEngine engine = GetParam().engine(load.budget, {.seed = 99});
  run(engine);
  engine.reset();
  EXPECT_EQ(engine.policy.length(), 0U);
  EXPECT_EQ(engine.policy.counters().firings, 0U);
  engine.model.seed = 1;
  EXPECT_EQ(run(engine), expected);
  EXPECT_EQ(engine.policy.counters().evicted, fresh.policy.counters().evicted);
  EXPECT_EQ(engine.policy.counters().steps, fresh.policy.counters().steps);
}

// O-25: the second prompt without a reset continues the first; a view of the prompt alone does
// not fit and is refused.
TEST_P(PolicyInvariants, ASecondPromptWithoutResetIsNoNewSequence) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  run(engine);
  AnyEngine other = GetParam().engine(load.budget);
  other.prompt(load.prompt_len);
  engine.policy.begin(load.prompt_len);
  EXPECT_TRUE(refuses([&] { engine.policy.end_prefill(other.cache.view()); },
                      {engine.policy.name(), "seq_len", "reset"}));
}

// R18: a prompt in pieces, cut at its end, is a prompt.
TEST_P(PolicyInvariants, ManyChunksAreOneChunk) {
  for (const RowsFrom rows_from : {RowsFrom::kQueries, RowsFrom::kEngine}) {
    const KeepMask expected = before_first_cut({}, rows_from).select();
    for (const std::size_t chunk : {1U, 3U, 7U, 19U, 20U}) {
      EXPECT_EQ(before_first_cut({}, rows_from, chunk).select(), expected) << "chunks of " << chunk;
    }
  }
}

// Several tokens in a step, not cut in between, are as many steps.
TEST_P(PolicyInvariants, SeveralTokensInAStepAreAsManySteps) {
  if (GetParam().samples_steps)
    GTEST_SKIP() << "by definition";
  const Workload load = workload(GetParam());
  const auto mask_with = [&](std::size_t per_step, RowsFrom rows_from) {
    AnyEngine engine = GetParam().engine(load.budget, {}, rows_from);
    engine.prompt(load.prompt_len);
    for (std::size_t fed = 0; fed < 12; fed += per_step)
      engine.feed(per_step);
    return KeepMask(engine.select());
  };
  for (const RowsFrom rows_from : {RowsFrom::kQueries, RowsFrom::kEngine}) {
    const KeepMask expected = mask_with(1, rows_from);
    for (const std::size_t per_step : {2U, 3U, 4U, 6U, 12U}) {
      EXPECT_EQ(mask_with(per_step, rows_from), expected) << per_step << " a step";
    }
  }
}

// What a small budget keeps, a larger one keeps too, where the best stay by scores that do not know
// the budget.
TEST_P(PolicyInvariants, ALargerBudgetKeepsWhatASmallerOneKept) {
  static const std::map<std::string, std::string> others = {
      {"FullKV", "has no budget"},
      {"KVzap", "has no budget"},
      {"DMSKnormThreshold", "leaves less than its budget"},
      {"AhaKV", "scores by the budget"},
      {"Compactor", "scores by the share that goes"},
      {"LagKV", "has partitions of half the budget"},
      {"AdaKV", "rounds between floors and what heads win"},
      {"AdaKVGuarantee", "rounds between floors and what heads win"},
      {"AdaKVKnorm", "rounds between floors and what heads win"},
      {"AdaKVKeyDiff", "rounds between floors and what heads win"},
      {"AdaKVDropKV", "rounds between floors and what heads win"},
      {"NestedKV", "rounds between floors and what heads win"},
      {"CriticalKV", "chooses in two stages"},
      {"CriticalKVL2", "chooses in two stages"},
      {"CriticalAdaKV", "chooses in two stages"},
      {"DefensiveKV", "chooses in two stages"},
      {"DefensiveKVModel", "chooses in two stages"},
      {"AdaptiveRKV", "chooses in two stages"},
      {"ChunkKV", "takes the chunks that fit"},
      {"ChunkKVFilled", "takes the chunks that fit"},
      {"EntropyGatedChunkKV", "takes the chunks that fit"},
      {"KVCrush", "keeps representatives"},
      {"ThinKV", "keeps representatives"},
      {"VaSE", "keeps representatives"},
      {"TwinKVKnorm", "repairs its choice"},
      {"TwinKVSnapKV", "repairs its choice"}};
  const auto other = others.find(GetParam().name);
  if (other != others.end())
    GTEST_SKIP() << other->second;
  const std::size_t middle = workload(GetParam()).budget;
  const auto engine_with = [&](std::size_t budget) {
    return before_first_cut({}, RowsFrom::kQueries, 0, {}, budget);
  };
  if (AnyEngine engine = engine_with(middle); !engine.policy.allocation().lane_budgets.empty())
    GTEST_SKIP() << "rounds the shares of its lanes";
  std::size_t grown = 0;
  KeepMask smaller = engine_with(middle - 2).select();
  for (std::size_t budget = middle - 1; budget <= middle + 3; ++budget) {
    KeepMask larger = engine_with(budget).select();
    ASSERT_EQ(larger.num_lanes(), smaller.num_lanes());
    for (std::size_t lane = 0; lane < smaller.num_lanes(); ++lane) {
      for (std::size_t slot = 0; slot < smaller.lane_len(lane); ++slot) {
        EXPECT_LE(kvevict::detail::has_bit(smaller.words(lane), slot),
                  kvevict::detail::has_bit(larger.words(lane), slot))
            << "budget " << budget << ", lane " << lane << ", slot " << slot;
      }
      grown += larger.lane_count(lane) - smaller.lane_count(lane);
    }
    smaller = std::move(larger);
  }
  EXPECT_GT(grown, 0U);
}

// A KV head that shares neither a set nor a budget with the other does not see what that one
// caches, over all cuts; the other keeps something else, where the policy looks at the cache.
TEST_P(PolicyInvariants, AHeadThatSharesNothingDoesNotSeeTheOther) {
  if (GetParam().name.starts_with("CAKE"))
    GTEST_SKIP() << "the attention of all heads decides how much layers have";
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  AnyEngine strange = GetParam().engine(load.budget, {.first_strange_head = 1});
  if (engine.select().scope() != kvevict::MaskScope::kHead ||
      engine.policy.allocation().competition != kvevict::Competition::kLane)
    GTEST_SKIP() << "heads share a set or a budget";
  engine.prompt(load.prompt_len);
  strange.prompt(load.prompt_len);
  bool other_changed = false;
  for (std::size_t step = 0; step <= load.num_steps; ++step) {
    EXPECT_EQ(strange.evict_if_due(), engine.evict_if_due());
    for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer) {
      ASSERT_EQ(strange.positions(layer, 0), engine.positions(layer, 0)) << step << ' ' << layer;
      other_changed = other_changed || strange.positions(layer, 1) != engine.positions(layer, 1);
    }
    engine.feed(1);
    strange.feed(1);
  }
  const bool looks = engine.policy.required_inputs() != kvevict::Inputs::kNothing;
  // RocketKV pools over more tokens than there are, which makes them all equal.
  EXPECT_EQ(other_changed, looks && GetParam().name != "RocketKV");
}

// O-37: there is memory for 100 rows; what lies behind the live ones, NaN or large numbers, is not
// read.
TEST_P(PolicyInvariants, WhatLiesBehindTheLiveRowsDoesNotCount) {
  const Workload load = workload(GetParam());
  AnyEngine nans = GetParam().engine(load.budget);
  AnyEngine large = GetParam().engine(load.budget);
  const std::size_t row_bytes = (kToyShape.head_dim + kToyShape.value_size()) * sizeof(float);
  std::fill_n(large.cache.data(), layouts::num_rows(kToyShape, 100) * row_bytes, std::byte{0x4E});
  EXPECT_EQ(run(nans), run(large));
  EXPECT_EQ(nans.policy.counters().non_finite, 0U);
  EXPECT_EQ(large.policy.counters().non_finite, 0U);
}

// Rows from the engine and rows that the library computes are the same rows up to rounding, which
// the toy model's numbers leave no near-tie for.
TEST_P(PolicyInvariants, RowsFromTheEngineOrFromQueriesAreTheSame) {
  const auto queries = before_first_cut({}, RowsFrom::kQueries).select();
  const auto rows = before_first_cut({}, RowsFrom::kEngine).select();
  EXPECT_EQ(queries, rows);
}

// A further prompt of the same sequence, in one piece or in many.
TEST_P(PolicyInvariants, ASecondPromptIsDefined) {
  const Workload load = workload(GetParam());
  const auto after_two_prompts = [&](std::size_t chunk) {
    AnyEngine engine = GetParam().engine(load.budget);
    engine.prompt(load.prompt_len);
    engine.evict_if_due();
    engine.decode(3);
    engine.prompt(6, chunk);
    engine.evict_if_due();
    engine.decode(4);
    EXPECT_TRUE(engine.cache_is_intact());
    EXPECT_EQ(engine.length(), load.prompt_len + 13);
    EXPECT_EQ(engine.policy.sequence().prompts().size(), 2U);
    return engine.all_positions();
  };
  const auto expected = after_two_prompts(0);
  EXPECT_EQ(after_two_prompts(2), expected);
  EXPECT_EQ(after_two_prompts(6), expected);
}

// O-26: drafts that were taken back leave the decisions as they were. Sums over attention rows
// and samples of steps keep what the drafts added, as documented; everything else forgets them.
TEST_P(PolicyInvariants, TruncateForgetsTheTokens) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  engine.evict_if_due();
  engine.decode(4);
  auto straight = engine;
  straight.decode(1);
  const auto before = engine.all_positions();

  engine.model.seed = 5;  // drafts differ from what comes in the end
  engine.feed(4);
  engine.truncate(load.prompt_len + 4);
  EXPECT_EQ(engine.all_positions(), before);
  EXPECT_EQ(engine.policy.length(), load.prompt_len + 4);
  EXPECT_EQ(engine.policy.sequence().seq_len(0), engine.positions().size());
  engine.truncate(load.prompt_len + 4);  // again: no-op
  EXPECT_TRUE(refuses([&] { engine.policy.truncate(load.prompt_len + 5); },
                      {engine.policy.name(), "truncate"}));
  engine.model.seed = 1;
  engine.decode(1);
  EXPECT_TRUE(engine.cache_is_intact());
  EXPECT_EQ(engine.positions().size(), straight.positions().size());
  if (!GetParam().samples_steps &&
      (engine.policy.attention_use() == kvevict::AttentionUse::kNone ||
       engine.policy.attention_use() == kvevict::AttentionUse::kWindow)) {
    EXPECT_EQ(engine.all_positions(), straight.all_positions());
  }
}

TEST_P(PolicyInvariants, TruncateToNothingIsANewSequence) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  engine.evict_if_due();
  engine.truncate(0);
  EXPECT_EQ(engine.policy.length(), 0U);
  EXPECT_EQ(engine.select().total_count(), 0U);
  engine.prompt(3);
  if (!GetParam().grows) {
    EXPECT_EQ(engine.select().total_evicted(), 0U);
  }
}

// An engine that keeps one set of tokens for all lanes executes a projection of the mask.
TEST_P(PolicyInvariants, AppliesAMaskThatIsCoarserThanItsOwn) {
  auto engine = before_first_cut();
  const std::size_t len = engine.positions().size();
  std::string lane(len, '1');
  lane.replace(2, 5, "00000");
  engine.evict(
      mask_of(kvevict::MaskScope::kModel, kToyShape.num_layers, kToyShape.num_kv_heads, {lane}));
  EXPECT_EQ(engine.positions(0, 0).size(), len - 5);
  EXPECT_EQ(engine.positions(3, 1), engine.positions(0, 0));
  EXPECT_EQ(engine.policy.sequence().seq_len(0), len - 5);
  EXPECT_EQ(engine.policy.sequence().position(0, 2), 7);
  engine.decode(5);
  EXPECT_TRUE(engine.cache_is_intact());
}

// R4, R19: a token of NaN breaks neither the count nor the other tokens.
TEST_P(PolicyInvariants, ATokenOfNaNDoesNoHarm) {
  const Workload load = workload(GetParam());
  for (const std::size_t nan_position : {5U, 18U, 22U}) {
    AnyEngine engine = GetParam().engine(load.budget, {.seed = 1, .nan_position = nan_position});
    engine.prompt(load.prompt_len);
    std::size_t expected = expected_total(engine);
    if (engine.evict_if_due() && GetParam().keeps_exactly) {
      EXPECT_EQ(engine.policy.counters().kept, expected);
    }
    for (std::size_t step = 0; step < load.num_steps; ++step) {
      engine.feed(1);
      expected = expected_total(engine);
      if (engine.evict_if_due() && GetParam().keeps_exactly) {
        EXPECT_EQ(engine.policy.counters().kept, expected) << "NaN at " << nan_position;
      }
    }
    const bool reads_it = GetParam().counts_non_finite &&
                          engine.policy.required_inputs() != kvevict::Inputs::kNothing;
    const bool in_time = engine.policy.trigger() == kvevict::Trigger::kDecodeSteps
                             ? nan_position == 22
                             : nan_position < 20;
    if (reads_it && in_time) {
      EXPECT_GT(engine.policy.counters().non_finite, 0U) << nan_position;
    }
  }
}

// R7, R10.
TEST_P(PolicyInvariants, RefusesWhatDoesNotFitAndNamesIt) {
  auto engine = before_first_cut();
  const std::size_t len = engine.positions().size();
  const auto wrong = [&](const kvevict::CacheShape& other, std::size_t length) {
    LayoutCache cache = layouts::nhd(other, 100, kvevict::ElementType::kF32);
    for (std::size_t layer = 0; layer < other.num_layers; ++layer) {
      for (std::size_t head = 0; head < other.num_kv_heads; ++head) {
        cache.length(layer, head) = length;
      }
    }
    return cache;
  };
  kvevict::CacheShape shape = kToyShape;
  shape.num_layers = 3;
  LayoutCache too_few_layers = wrong(shape, len);
  EXPECT_TRUE(refuses([&] { static_cast<void>(engine.policy.select(too_few_layers.view())); },
                      {engine.policy.name(), "num_layers", "3"}));
  LayoutCache too_long = wrong(kToyShape, len + 1);
  EXPECT_TRUE(refuses([&] { static_cast<void>(engine.policy.select(too_long.view())); },
                      {engine.policy.name(), "seq_len", std::to_string(len + 1)}));
  LayoutCache one_lane_short = wrong(kToyShape, len);
  one_lane_short.length(3, 1) = len - 1;
  EXPECT_TRUE(refuses([&] { static_cast<void>(engine.policy.select(one_lane_short.view())); },
                      {engine.policy.name(), "seq_len", std::to_string(len - 1)}));

  EXPECT_TRUE(
      refuses([&] { engine.policy.apply(KeepMask()); }, {engine.policy.name(), "KeepMask"}));
  const KeepMask other_length =
      mask_of(kvevict::MaskScope::kModel, kToyShape.num_layers, kToyShape.num_kv_heads, {"101"});
  EXPECT_TRUE(
      refuses([&] { engine.policy.apply(other_length); }, {engine.policy.name(), "seq_len", "3"}));
  KeepMask unfinished;
  unfinished.reset(kvevict::MaskScope::kHead, kToyShape.num_layers, kToyShape.num_kv_heads);
  EXPECT_TRUE(
      refuses([&] { engine.policy.apply(unfinished); }, {engine.policy.name(), "num_lanes", "0"}));
}

TEST_P(PolicyInvariants, RefusesRowsThatDoNotFitAndNamesTheField) {
  AnyEngine engine = before_first_cut();
  const bool in_decode = engine.policy.trigger() == kvevict::Trigger::kDecodeSteps;
  in_decode ? engine.policy.append(1) : engine.policy.begin(4);
  std::size_t layer = 0;
  while (layer < kToyShape.num_layers && engine.policy.wanted_attention_rows(layer) == 0)
    ++layer;
  if (layer == kToyShape.num_layers)
    GTEST_SKIP() << "reads no attention here";
  const std::vector<float> data(1000);
  const std::string name = engine.policy.name();
  const kvevict::AttentionRows rows{data.data(), 4, 4, 200, 50};
  const auto attention = [&](auto change) {
    return [&, change] {
      kvevict::AttentionRows changed = rows;
      change(changed);
      engine.policy.observe_attention(layer, changed);
    };
  };
  using Rows = kvevict::AttentionRows;
  const bool takes_rows = engine.policy.attention_use() != kvevict::AttentionUse::kQueries;
  if (takes_rows) {
    EXPECT_TRUE(refuses(attention([](Rows& r) { r.num_q_heads = 2; }), {name, "num_q_heads", "2"}));
    EXPECT_TRUE(refuses(attention([](Rows& r) { r.num_rows = 0; }), {name, "num_rows", "0"}));
    EXPECT_TRUE(refuses(attention([](Rows& r) { r.row_stride = 1; }), {name, "row_stride", "1"}));
    EXPECT_TRUE(
        refuses(attention([](Rows& r) { r.row_stride = -50; }), {name, "row_stride", "-50"}));
    EXPECT_TRUE(refuses(attention([](Rows& r) { r.head_stride = 0; }), {name, "head_stride", "0"}));
    EXPECT_TRUE(refuses(attention([](Rows& r) { r.data = nullptr; }), {name, "data"}));
  }

  const auto queries = [&](auto change) {
    return [&, change] {
      kvevict::QueryRows changed{data.data(), 4, 4, 4 * 6, 6};
      change(changed);
      engine.policy.observe_queries(layer, changed, engine.cache.view());
    };
  };
  using Queries = kvevict::QueryRows;
  EXPECT_TRUE(refuses(queries([](Queries& q) { q.num_q_heads = 2; }), {name, "num_q_heads", "2"}));
  EXPECT_TRUE(refuses(queries([](Queries& q) { q.row_stride = 5; }), {name, "row_stride", "5"}));
  EXPECT_TRUE(refuses(queries([&](Queries& q) {
                        q.sink_logits = {data.data(), 3};
                      }),
                      {name, "sink_logits", "3"}));
  layer = 9;
  EXPECT_TRUE(refuses(queries([](Queries&) {}), {name, "layer", "9"}));
  if (takes_rows) {
    EXPECT_TRUE(refuses(attention([](Rows&) {}), {name, "layer", "9"}));
  }
}

// "It never saw attention" is visible: layers of a step that wanted rows and got none are counted.
TEST_P(PolicyInvariants, SignalsThatAreMissingAreCounted) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  run(engine);
  EXPECT_EQ(engine.policy.counters().missing_signals, 0U);
  AnyTestPolicy deaf = GetParam().make(load.budget);
  std::size_t wanted = 0;
  const auto step = [&] {
    deaf.append(5);
    for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer)
      wanted += deaf.wanted_attention_rows(layer) > 0 ? 1 : 0;
    wanted += deaf.wants_cache() ? 1 : 0;
  };
  deaf.begin(10);
  step();
  step();
  step();
  deaf.append(5);  // a step is over when the next one comes
  EXPECT_EQ(deaf.counters().missing_signals, wanted);
  const bool uses = deaf.attention_use() != kvevict::AttentionUse::kNone;
  EXPECT_TRUE(!uses || wanted > 0 || GetParam().name == "EpiKVSegmentHS");  // only when it cuts
}

// A view without the rows that a policy reads is refused instead of read.
TEST_P(PolicyInvariants, RefusesAViewWithoutTheRowsItReads) {
  auto engine = before_first_cut();
  const std::vector<std::size_t> lengths(8, engine.positions().size());
  const kvevict::views::ContiguousView empty(kToyShape, {}, {}, lengths);
  const auto call = [&] { static_cast<void>(engine.policy.select(empty)); };
  if (covers(engine.policy.required_inputs(), kvevict::Inputs::kKeys)) {
    EXPECT_TRUE(refuses(call, {engine.policy.name(), "keys"}));
  } else if (covers(engine.policy.required_inputs(), kvevict::Inputs::kValues)) {
    EXPECT_TRUE(refuses(call, {engine.policy.name(), "values"}));
  } else {
    EXPECT_NO_THROW(call());
  }
}

}  // namespace
}  // namespace kvevict_test
