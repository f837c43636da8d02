// Calls that are missing, too many or of the wrong shape: a clear error or a counted, defined
// outcome, never a silent no-op and never a read out of bounds.
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/epikv_key_value.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <gtest/gtest.h>

#include <concepts>
#include <cstddef>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 4};

struct Cache {
  std::vector<float> data = std::vector<float>(2 * 64 * 4, 0.5F);
  [[nodiscard]] views::ContiguousView view(std::size_t seq_len) {
    const auto tensor = views::Tensor::nhd(data.data(), ElementType::kF32, 64, 1, 4);
    return {kShape, tensor, tensor, seq_len};
  }
};

AttentionRows rows(const std::vector<float>& data, std::size_t num_rows) {
  return {.data = data.data(),
          .num_q_heads = 2,
          .num_rows = num_rows,
          .head_stride = static_cast<std::ptrdiff_t>(num_rows * 64),
          .row_stride = 64};
}

/// Scores of the first lane.
template <class P>
std::vector<float> scores_in(const P& policy, const views::ContiguousView& view) {
  Scratch scratch;
  const ViewRef ref(view);
  std::vector<float> scores(policy.sequence().seq_len(0));
  policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, 0, scores);
  return scores;
}

// 0.25 would become 0 tokens and -1 all of them.
TEST(Misuse, ABudgetIsMadeOfAWholeNumberOrSaysWhatItIs) {
  static_assert(std::constructible_from<Budget, int>);
  static_assert(std::constructible_from<Budget, std::size_t>);
  static_assert(!std::constructible_from<Budget, double>);
  static_assert(!std::constructible_from<Budget, float>);
  EXPECT_THROW(static_cast<void>(Budget(-1)), InvalidArgument);
}

TEST(Misuse, WindowsThatAddUpPastTheLargestNumberKeepAll) {
  Cache cache;
  StreamingLLM policy(
      {.num_sink_tokens = 4, .recent_window = std::numeric_limits<std::size_t>::max()}, kShape);
  policy.append(20);
  EXPECT_FALSE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view(20)).count(0, 0), 20U);
}

TEST(Misuse, AppendBeyondThePromptIsAnError) {
  SnapKV policy({.budget = 16, .observation_window = 8}, kShape);
  policy.begin(40);
  policy.append(30);
  EXPECT_THROW(policy.append(11), InvalidArgument);
  EXPECT_NO_THROW(policy.append(10));
}

TEST(Misuse, EndOfAPromptThatWasNotBegunIsAnError) {
  Cache cache;
  SnapKV policy({.budget = 16, .observation_window = 8}, kShape);
  policy.append(20);
  EXPECT_THROW(policy.end_prefill(cache.view(20)), InvalidArgument);
  policy.reset();
  policy.begin(20);
  policy.end_prefill(cache.view(20));
  EXPECT_THROW(policy.end_prefill(cache.view(20)), InvalidArgument);
}

TEST(Misuse, PositionsEndWithAnError) {
  StreamingLLM policy({}, kShape);
  EXPECT_THROW(policy.begin(std::size_t{1} << 32U), InvalidArgument);
  EXPECT_THROW(policy.append(std::size_t{1} << 31U), InvalidArgument);
}

// Attention that was wanted and never came leaves scores of 0; the counter says so.
TEST(Misuse, MissingAttentionIsCounted) {
  Cache cache;
  const std::vector<float> data(2 * 64 * 64, 0.01F);
  H2O policy({.heavy = 4, .recent = 4}, kShape);
  policy.begin(20);
  policy.observe_attention(0, rows(data, 20));  // layer 1 is left out
  policy.end_prefill(cache.view(20));
  EXPECT_EQ(policy.counters().missing_signals, 1U);
  policy.append(1);
  policy.append(1);  // the step between saw neither layer
  EXPECT_EQ(policy.counters().missing_signals, 3U);
  policy.reset();
  EXPECT_EQ(policy.counters().missing_signals, 0U);
}

TEST(Misuse, ALayerThatIsHandedOverTwiceCountsOnce) {
  Cache cache;
  std::vector<float> first(2 * 20 * 64, 0.0F);
  std::vector<float> second(2 * 20 * 64, 0.0F);
  for (std::size_t row = 0; row < 2 * 20; ++row) {
    first[row * 64 + 3] = 0.5F;
    second[row * 64 + 7] = 1.0F;
  }
  H2O policy({.heavy = 1, .recent = 4}, kShape);
  policy.begin(20);
  policy.observe_attention(0, rows(first, 20));
  policy.observe_attention(0, rows(second, 20));
  policy.end_prefill(cache.view(20));
  const KeepMask& mask = policy.select(cache.view(20));
  EXPECT_TRUE(mask.keeps(0, 0, 3));
  EXPECT_FALSE(mask.keeps(0, 0, 7));
}

// After apply the step's tokens may be gone, so there is nothing left to observe.
TEST(Misuse, SignalsAfterTheCutOfTheirStepAreIgnored) {
  Cache cache;
  const std::vector<float> data(2 * 64 * 64, 0.01F);
  H2O h2o({.heavy = 2, .recent = 2}, kShape);
  h2o.append(10);
  h2o.apply(h2o.select(cache.view(10)));
  EXPECT_EQ(h2o.wanted_attention_rows(0), 0U);
  EXPECT_NO_THROW(h2o.observe_attention(0, rows(data, 10)));

  EpiKV epikv({.budget = 4}, kShape);
  epikv.append(10);
  epikv.apply(epikv.select(cache.view(10)));
  EXPECT_NO_THROW(epikv.observe_hidden(
      1, {.data = data.data(), .num_rows = 10, .hidden_size = 8, .row_stride_bytes = 32}));
}

TEST(Misuse, ShapesOfRowsAndQueriesAreChecked) {
  Cache cache;
  const std::vector<float> data(2 * 64 * 64, 0.01F);
  H2O policy({.heavy = 4, .recent = 4}, kShape);
  policy.begin(20);
  AttentionRows bad = rows(data, 20);
  bad.data = nullptr;
  EXPECT_THROW(policy.observe_attention(0, bad), InvalidArgument);
  bad = rows(data, 20);
  bad.head_stride = 0;
  EXPECT_THROW(policy.observe_attention(0, bad), InvalidArgument);
  bad = rows(data, 20);
  bad.row_stride = -64;
  EXPECT_THROW(policy.observe_attention(0, bad), InvalidArgument);

  QueryRows queries{
      .data = data.data(), .num_q_heads = 2, .num_rows = 20, .head_stride = 80, .row_stride = 4};
  const std::vector<float> one_sink = {0.0F};
  QueryRows wrong = queries;
  wrong.sink_logits = one_sink;
  EXPECT_THROW(policy.observe_queries(0, wrong, cache.view(20)), InvalidArgument);
  wrong = queries;
  wrong.row_stride = 0;
  EXPECT_THROW(policy.observe_queries(0, wrong, cache.view(20)), InvalidArgument);
  // Rows that lie in one another: a stride of less than a row, or of the other order.
  wrong = queries;
  wrong.head_stride = 2;
  EXPECT_THROW(policy.observe_queries(0, wrong, cache.view(20)), InvalidArgument);
  wrong = queries;
  wrong.head_stride = 76;
  EXPECT_THROW(policy.observe_queries(0, wrong, cache.view(20)), InvalidArgument);
  bad = rows(data, 20);
  bad.head_stride = 64;
  EXPECT_THROW(policy.observe_attention(0, bad), InvalidArgument);
  // [tokens, heads, head_dim] is as good as [heads, tokens, head_dim].
  wrong = queries;
  wrong.head_stride = 4;
  wrong.row_stride = 8;
  EXPECT_NO_THROW(policy.observe_queries(0, wrong, cache.view(20)));
  EXPECT_NO_THROW(policy.observe_queries(1, queries, cache.view(20)));
}

// What is wrong, and what it should have been.
TEST(Misuse, ALengthThatDoesNotFitIsSaidWithThePlaceAndTheOneThatIsExpected) {
  Cache cache;
  SnapKV policy({.budget = 16, .observation_window = 8}, kShape);
  policy.begin(20);
  try {
    policy.end_prefill(cache.view(19));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "SnapKV: view seq_len = 19 must be 20, the slots that the policy knows of layer "
                 "0, KV head 0 (append, apply, truncate or reset missing?)");
  }
  try {
    SnapKV({.budget = 16, .observation_window = 17}, kShape);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "SnapKV: budget = 16 must be at least 17: num_sink_tokens and recent_window, an "
                 "observation "
                 "window included");
  }
}

// Rows of two floats where the policy was made for four: nothing is read.
TEST(Misuse, QueriesAgainstACacheOfAnotherShapeAreAnError) {
  Cache cache;
  const std::vector<float> data(2 * 64 * 4, 0.01F);
  const QueryRows queries{
      .data = data.data(), .num_q_heads = 2, .num_rows = 8, .head_stride = 32, .row_stride = 4};
  SnapKV policy({.budget = 16, .observation_window = 8}, kShape);
  policy.begin(20);
  CacheShape narrow = kShape;
  narrow.head_dim = 2;
  const auto tensor = views::Tensor::nhd(cache.data.data(), ElementType::kF32, 64, 1, 2);
  EXPECT_THROW(
      policy.observe_queries(0, queries, views::ContiguousView(narrow, tensor, tensor, 20)),
      InvalidArgument);
}

// The second head's lane has a wrong length: nothing of the layer may count, so the corrected call
// leaves what a single call leaves.
TEST(Misuse, ALayerThatIsRefusedCountsNothing) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};
  std::vector<float> data(2 * 64 * 4);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<float>(i % 7) * 0.25F;
  const auto tensor = views::Tensor::nhd(data.data(), ElementType::kF32, 64, 2, 4);
  const std::vector<std::size_t> uneven = {10, 9};
  const QueryRows queries{
      .data = data.data(), .num_q_heads = 2, .num_rows = 10, .head_stride = 40, .row_stride = 4};
  const auto sums = [&](bool retry) {
    H2O policy({.heavy = 2, .recent = 2}, kTwo);
    policy.begin(10);
    if (retry) {
      EXPECT_THROW(
          policy.observe_queries(0, queries, views::ContiguousView(kTwo, tensor, tensor, uneven)),
          InvalidArgument);
    }
    const views::ContiguousView view(kTwo, tensor, tensor, 10);
    policy.observe_queries(0, queries, view);
    policy.end_prefill(view);
    return scores_in(policy, view);
  };
  EXPECT_EQ(sums(true), sums(false));
}

// A rollback to where the sequence is does nothing, inside a prompt too.
TEST(Misuse, TruncateToTheSameLengthKeepsThePromptOpen) {
  Cache cache;
  const PositionSpan pinned[] = {{38, 40}};
  SnapKV policy({.budget = 8, .observation_window = 4}, kShape);
  policy.begin(40, pinned);
  policy.append(20);
  policy.truncate(20);
  policy.append(20);
  EXPECT_EQ(policy.wanted_attention_rows(0), 4U);
  policy.end_prefill(cache.view(40));
  const KeepMask& mask = policy.select(cache.view(40));
  EXPECT_EQ(mask.count(0, 0), 8U);
  EXPECT_TRUE(mask.keeps(0, 0, 38));
}

// A chunk that is taken back is to be fed again; the prompt is as long as it was announced.
TEST(Misuse, TruncateInsideAPromptTakesTokensBackAndLeavesThePrompt) {
  Cache cache;
  SnapKV policy({.budget = 8, .observation_window = 4}, kShape);
  policy.begin(40);
  policy.append(20);
  policy.truncate(12);
  EXPECT_EQ(policy.sequence().pending_prompt(), 28U);
  EXPECT_THROW(policy.append(29), InvalidArgument);
  policy.append(28);
  policy.end_prefill(cache.view(40));
  EXPECT_EQ(policy.select(cache.view(40)).count(0, 0), 8U);
  // Back before its begin, the prompt is gone.
  policy.begin(10);
  policy.append(4);
  policy.truncate(40);
  EXPECT_EQ(policy.sequence().pending_prompt(), 0U);
  EXPECT_THROW(policy.end_prefill(cache.view(40)), InvalidArgument);
}

// The last chunk too: as long as end_prefill has not come, the prompt is as long as it was
// announced.
TEST(Misuse, TruncateTakesBackTheLastChunkOfAPrompt) {
  Cache cache;
  SnapKV policy({.budget = 8, .observation_window = 4}, kShape);
  policy.begin(32);
  policy.append(16);
  policy.append(16);
  policy.truncate(16);
  EXPECT_EQ(policy.sequence().pending_prompt(), 16U);
  policy.append(16);
  EXPECT_EQ(policy.wanted_attention_rows(0), 4U);
  EXPECT_EQ(policy.sequence().prompt().last, 32);
  policy.end_prefill(cache.view(32));
  EXPECT_EQ(policy.select(cache.view(32)).count(0, 0), 8U);
  // Once it is complete, taking tokens back shortens it: an edit.
  policy.truncate(20);
  EXPECT_EQ(policy.sequence().pending_prompt(), 0U);
  EXPECT_EQ(policy.sequence().prompt().last, 20);
}

// One chunk too early: an error, after which the prompt goes on as if nothing had been.
TEST(Misuse, EndOfAPromptThatIsNotCompleteChangesNothing) {
  Cache cache;
  SnapKV policy({.budget = 8, .observation_window = 4}, kShape);
  policy.begin(32);
  policy.append(16);
  EXPECT_THROW(policy.end_prefill(cache.view(16)), InvalidArgument);
  EXPECT_EQ(policy.length(), 16U);
  policy.append(16);
  policy.end_prefill(cache.view(32));
  EXPECT_EQ(policy.select(cache.view(32)).count(0, 0), 8U);
}

// A share of what has come so far would cut deeper the smaller the chunks are.
TEST(Misuse, AShareDoesNotCutInsideAPrompt) {
  Cache cache;
  const auto kept = [&](std::size_t chunk) {
    RandomEviction policy({.budget = Budget::keep_ratio(0.25)}, kShape);
    policy.begin(40);
    std::size_t len = 0;
    for (std::size_t fed = 0; fed < 40; fed += chunk) {
      policy.append(chunk);
      len += chunk;
      if (policy.should_evict()) {
        const KeepMask mask = policy.select(cache.view(len));
        len = mask.count(0, 0);
        policy.apply(mask);
      }
    }
    std::vector<Position> positions;
    for (std::size_t slot = 0; slot < len; ++slot)
      positions.push_back(policy.sequence().position(0, slot));
    return positions;
  };
  EXPECT_EQ(kept(40).size(), 10U);
  EXPECT_EQ(kept(10), kept(40));
}

// Value norms that never came: the step has no score, and the counter says so.
TEST(Misuse, AMissingLookAtTheCacheIsCounted) {
  const std::vector<float> data(2 * 64, 0.01F);
  InertiaKVValueNorm policy({.budget = 16}, kShape);
  policy.append(1);
  policy.observe_attention(0, rows(data, 1));
  policy.observe_attention(1, rows(data, 1));
  policy.append(1);
  EXPECT_EQ(policy.counters().missing_signals, 1U);
}

// The rolling statistics would hold each value twice. A view that is refused was no look.
TEST(Misuse, ACacheThatIsHandedOverTwiceCountsOnce) {
  Cache cache;
  const auto scores = [&](bool twice) {
    EpiKVKey policy({.budget = 32, .recent_window = 1, .window = 4}, kShape);
    for (std::size_t len = 1; len <= 6; ++len) {
      for (std::size_t i = 0; i < 4; ++i)
        cache.data[(len - 1) * 4 + i] = static_cast<float>(len * i % 5);
      policy.append(1);
      if (twice) {
        EXPECT_THROW(policy.observe_cache(cache.view(len + 1)), InvalidArgument);
        policy.observe_cache(cache.view(len));
      }
      policy.observe_cache(cache.view(len));
    }
    EXPECT_EQ(policy.counters().missing_signals, 0U);
    return scores_in(policy, cache.view(6));
  };
  EXPECT_EQ(scores(true), scores(false));
}

TEST(Misuse, ACacheIsWantedUntilItWasHandedOver) {
  Cache cache;
  EpiKVKey policy({.budget = 32, .recent_window = 1, .window = 4}, kShape);
  EXPECT_TRUE(policy.wants_cache());
  policy.begin(3);
  policy.observe_cache(cache.view(3));
  EXPECT_FALSE(policy.wants_cache());
  policy.end_prefill(cache.view(3));
  EXPECT_FALSE(policy.wants_cache());
  policy.append(1);
  EXPECT_TRUE(policy.wants_cache());
  policy.observe_cache(cache.view(4));
  policy.begin(2);  // in one piece: the next call appends it
  EXPECT_TRUE(policy.wants_cache());
  policy.observe_cache(cache.view(6));
  EXPECT_FALSE(policy.wants_cache());
  policy.reset();
  EXPECT_TRUE(policy.wants_cache());
  EXPECT_EQ(policy.counters().missing_signals, 0U);
}

// Without a stride the rows lie side by side; one that makes rows overlap would score them alike.
TEST(Misuse, ShapesOfHiddenRowsAreChecked) {
  const std::vector<float> hidden = {0, 1, 3, 2, 5, 4, 1, 1};  // four rows of two
  const auto scores = [&](std::ptrdiff_t stride) {
    EpiKVRaw policy({.budget = 16, .recent_window = 1, .layers_a = {0}, .layers_b = {1}}, kShape);
    policy.append(4);
    policy.observe_hidden(0, {.data = hidden.data(), .num_rows = 4, .hidden_size = 2});
    policy.observe_hidden(
        1, {.data = hidden.data(), .num_rows = 4, .hidden_size = 2, .row_stride_bytes = stride});
    const auto given = policy.method().scores();
    return std::vector<float>(given.begin(), given.end());
  };
  EXPECT_EQ(scores(0), scores(2 * sizeof(float)));
  EXPECT_EQ(scores(0), (std::vector<float>(4)));  // the same rows in both layers
  EXPECT_THROW(scores(sizeof(float)), InvalidArgument);
  EXPECT_THROW(scores(-8), InvalidArgument);
  EpiKVRaw policy({.budget = 16, .recent_window = 1}, kShape);
  policy.append(1);
  EXPECT_THROW(policy.observe_hidden(0, {.data = hidden.data(), .num_rows = 1}), InvalidArgument);
  const auto row = HiddenRows{.data = hidden.data(), .num_rows = 4, .hidden_size = 2}.row(3);
  EXPECT_EQ(row, reinterpret_cast<const std::byte*>(hidden.data() + 6));
}

// Rule R2: min(0, n). Who asks for it gets it, the newest token included.
TEST(Misuse, ABudgetOfNothingKeepsNothing) {
  Cache cache;
  RandomEviction policy({.budget = 0}, kShape);
  policy.append(5);
  ASSERT_TRUE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view(5)).count(0, 0), 0U);
}

TEST(Misuse, RollbackBufferHasALimit) {
  EXPECT_THROW(
      EpiKV({.budget = 64, .max_rollback = std::numeric_limits<std::size_t>::max()}, kShape),
      InvalidArgument);
}

// A window that the share has no room for is cut short, and that is reported.
TEST(Misuse, AWindowThatDoesNotFitInAShareIsReported) {
  Cache cache;
  RandomEviction policy({.budget = Budget::keep_ratio(0.1), .protection = {.recent_window = 32}},
                        kShape);
  policy.begin(40);
  policy.end_prefill(cache.view(40));
  const KeepMask mask = policy.select(cache.view(40));
  EXPECT_EQ(mask.count(0, 0), 4U);
  policy.apply(mask);
  EXPECT_EQ(policy.counters().budget_not_reached, 1U);
}

}  // namespace
