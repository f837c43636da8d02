#include "kvevict/policies/epikv_key_value.hpp"

#include "kvevict/views/paged_view.hpp"
#include "support/epikv_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::EpiKVCache;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Appends a token whose key has the variance `key` and whose value has the variance `value`.
template <class P>
void feed(P& policy, EpiKVCache& cache, float key, float value, bool observed = true) {
  policy.append(1);
  cache.append(1);
  // The sample variance of (0, x) is x^2 / 2.
  cache.key(0, 0, cache.seq_len() - 1)[1] = std::sqrt(2.0F * key);
  cache.value(0, 0, cache.seq_len() - 1)[1] = std::sqrt(2.0F * value);
  if (observed)
    policy.observe_cache(cache.view());
}

template <class P>
std::vector<float> scores_of(const P& policy) {
  return {policy.method().scores().begin(), policy.method().scores().end()};
}

TEST(EpiKVKeyValue, ScoresARollingMeanOfTheNewTokensVariance) {
  EpiKVKey keys({.budget = 8, .window = 2}, kShape);
  EpiKVValue values({.budget = 8, .window = 2}, kShape);
  EpiKVCache key_cache(kShape, 8);
  EpiKVCache value_cache(kShape, 8);
  keys.begin(1);
  feed(keys, key_cache, 50, 50);  // the prompt enters no window
  values.begin(1);
  feed(values, value_cache, 50, 50);
  for (const float variance : {2.0F, 8.0F, 18.0F}) {
    feed(keys, key_cache, variance, 0);
    feed(values, value_cache, 0, variance);
  }
  EXPECT_EQ(scores_of(keys), (std::vector<float>{kNone, 2, 5, 13}));
  EXPECT_EQ(scores_of(values), (std::vector<float>{kNone, 2, 5, 13}));
}

TEST(EpiKVKeyValue, DeclareWhatTheyRead) {
  static_assert(EpiKVKey::kRequiredInputs == Inputs::kKeys);
  static_assert(EpiKVValue::kRequiredInputs == Inputs::kValues);
  static_assert(EpiKVKey::kAttentionUse == AttentionUse::kNone);
  EXPECT_EQ(EpiKVKey::kName, "EpiKVKey");
  EXPECT_EQ(EpiKVValue::kName, "EpiKVValue");
}

TEST(EpiKVKeyValue, SeveralTokensAStepScoreOneByOne) {
  EpiKVKey single({.budget = 8, .window = 3}, kShape);
  EpiKVKey together({.budget = 8, .window = 3}, kShape);
  EpiKVCache single_cache(kShape, 8);
  EpiKVCache together_cache(kShape, 8);
  together.append(4);
  together_cache.append(4);
  for (std::size_t t = 0; t < 4; ++t) {
    const auto x = static_cast<float>(t * t + 1);
    feed(single, single_cache, x * x / 2, 0);
    together_cache.key(0, 0, t)[1] = x;
  }
  together.observe_cache(together_cache.view());
  EXPECT_EQ(scores_of(single), scores_of(together));
}

TEST(EpiKVKeyValue, NonFiniteKeyScoresZeroAndIsCounted) {
  EpiKVKey policy({.budget = 8}, kShape);
  EpiKVCache cache(kShape, 8);
  feed(policy, cache, 2, 0);
  feed(policy, cache, std::numeric_limits<float>::infinity(), 0);
  feed(policy, cache, 8, 0);
  EXPECT_EQ(scores_of(policy), (std::vector<float>{2, 0, 5}));
  EXPECT_EQ(policy.counters().non_finite, 1U);
}

TEST(EpiKVKeyValue, ScoresStayWhenTheCacheIsCut) {
  EpiKVKey policy({.budget = 3, .recent_window = 1, .window = 1}, kShape);
  EpiKVCache cache(kShape, 8);
  for (const float variance : {2.0F, 8.0F, 0.5F, 4.5F})
    feed(policy, cache, variance, 0);
  ASSERT_TRUE(policy.should_evict());
  const KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(cache.evict(mask), (std::vector<std::size_t>{2}));
  policy.apply(mask);
  EXPECT_EQ(scores_of(policy), (std::vector<float>{2, 8, 4.5F}));
}

TEST(EpiKVKeyValue, RollbackWithinTheReserveLeavesNoTrace) {
  EpiKVKey straight({.budget = 64, .window = 4}, kShape);
  EpiKVKey drafted({.budget = 64, .window = 4}, kShape);
  EpiKVCache straight_cache(kShape, 64);
  EpiKVCache drafted_cache(kShape, 64);
  for (std::size_t t = 0; t < 20; ++t) {
    const auto variance = static_cast<float>((t * 7) % 5);
    feed(straight, straight_cache, variance, 0);
    feed(drafted, drafted_cache, variance, 0);
    for (std::size_t i = 0; i < 16; ++i)
      feed(drafted, drafted_cache, 1000, 0);
    drafted.truncate(t + 1);
    drafted_cache.truncate(t + 1);
  }
  EXPECT_EQ(scores_of(straight), scores_of(drafted));
}

// Slots are used again: the next token's key is written where the evicted one was. The view lists
// the memory of every token that ever was; only the newest one is read.
TEST(EpiKVKeyValue, HeapFormWorksWhereNothingMoves) {
  const EpiKVKey::Options options{.budget = 12, .recent_window = 3, .window = 2};
  EpiKVKey masks(options, kShape);
  EpiKVCache cache(kShape, 16);
  EpiKVKey scorer(options, kShape);
  StreamingTopK heap = scorer.method().streaming();
  std::vector<float> keys(13 * 2);   // a slot more than the budget
  std::vector<std::int32_t> memory;  // of each token
  std::vector<std::int32_t> unused;
  for (std::int32_t slot = 12; slot >= 0; --slot)
    unused.push_back(slot);
  const auto reuse = [&](float variance) {
    memory.push_back(unused.back());
    unused.pop_back();
    keys[2 * static_cast<std::size_t>(memory.back()) + 1] = std::sqrt(2.0F * variance);
    scorer.append(1);
    const auto pool = views::PagePool::nhd(keys.data(), ElementType::kF32, 13, 1, 1, 2);
    scorer.observe_cache(views::PagedView(kShape, pool, pool, 1, memory, memory.size()));
  };
  for (std::size_t t = 0; t < 200; ++t) {
    const auto variance = static_cast<float>(t * 37 % 11);
    feed(masks, cache, variance, 0);
    reuse(variance);
    heap.push(scorer.method().scores().back());
    std::vector<std::size_t> gone;
    if (masks.should_evict()) {
      const KeepMask& mask = masks.select(cache.view());
      gone = cache.evict(mask);
      masks.apply(mask);
    }
    std::vector<std::size_t> popped;
    while (const std::optional<Position> position = heap.pop()) {
      popped.push_back(static_cast<std::size_t>(*position));
      unused.push_back(memory[popped.back()]);
    }
    ASSERT_EQ(popped, gone) << t;
  }
}

TEST(EpiKVKeyValue, TokenThatWasNotObservedGoesFirst) {
  EpiKVKey policy({.budget = 2, .recent_window = 0}, kShape);
  EpiKVCache cache(kShape, 8);
  feed(policy, cache, 1, 0);
  feed(policy, cache, 9, 0, false);
  feed(policy, cache, 0, 0);
  EXPECT_EQ(cache.evict(policy.select(cache.view())), (std::vector<std::size_t>{1}));
}

}  // namespace
}  // namespace kvevict
