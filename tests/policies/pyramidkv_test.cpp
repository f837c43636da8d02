#include "kvevict/policies/pyramidkv.hpp"

#include "kvevict/policies/snapkv.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::PyramidKV;
using kvevict::SnapKV;

constexpr kvevict::CacheShape kShape{
    .num_layers = 4, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

/// A prompt of `len` random tokens with the queries of its last four.
template <class P>
struct Prompt {
  P policy;
  WindowCache cache;

  Prompt(const typename P::Options& options, std::size_t len)
      : policy(options, kShape), cache(kShape, 64) {
    Random random(3);
    cache.fill(random);
    feed_prompt(policy, cache, len, WindowQueries(kShape, 4, random), 7);
  }
};

// b = 8, beta 4: 14, 10, 6, 2 beside the window of 4.
TEST(PyramidKV, BudgetsFallOverTheLayers) {
  Prompt<PyramidKV> prompt({.budget = 12, .observation_window = 4, .beta = 4}, 40);
  EXPECT_TRUE(prompt.policy.should_evict());
  cut(prompt.policy, prompt.cache);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    for (std::size_t head = 0; head < 2; ++head)
      EXPECT_EQ(prompt.policy.sequence().seq_len(layer, head), 18 - 4 * layer);
  }
  EXPECT_FALSE(prompt.policy.should_evict());
  // What is decoded stays.
  prompt.policy.append(3);
  EXPECT_FALSE(prompt.policy.should_evict());
}

// Where there is no pyramid, n < 2b, the mask is SnapKV's; and so it is in every layer for the
// budget that the layer has.
TEST(PyramidKV, IsSnapKVWithOtherBudgets) {
  Prompt<PyramidKV> flat({.budget = 12, .observation_window = 4, .beta = 4}, 15);
  Prompt<SnapKV> snapkv({.budget = 12, .observation_window = 4}, 15);
  EXPECT_EQ(flat.policy.select(flat.cache.view()), snapkv.policy.select(snapkv.cache.view()));

  Prompt<PyramidKV> pyramid({.budget = 12, .observation_window = 4, .beta = 4}, 40);
  const kvevict::KeepMask mask = pyramid.policy.select(pyramid.cache.view());
  for (std::size_t layer = 0; layer < 4; ++layer) {
    Prompt<SnapKV> same({.budget = 18 - 4 * layer, .observation_window = 4}, 40);
    const kvevict::KeepMask& expected = same.policy.select(same.cache.view());
    for (std::size_t slot = 0; slot < 40; ++slot)
      EXPECT_EQ(mask.keeps(layer, 1, slot), expected.keeps(layer, 1, slot)) << slot;
  }
}

TEST(PyramidKV, PromptsThatFitStay) {
  for (const std::size_t len : {0U, 1U, 4U, 5U, 12U}) {
    Prompt<PyramidKV> prompt({.budget = 12, .observation_window = 4, .beta = 4}, len);
    EXPECT_FALSE(prompt.policy.should_evict()) << len;
    EXPECT_EQ(prompt.policy.select(prompt.cache.view()).total_evicted(), 0U) << len;
  }
  Prompt<PyramidKV> prompt({.budget = 12, .observation_window = 4, .beta = 4}, 13);
  EXPECT_EQ(prompt.policy.select(prompt.cache.view()).total_evicted(), 8U);
}

// Padding counts nowhere: 5 slots of 21 hold no token, 16 tokens make 16, 13, 11, 8 (hi = 12).
TEST(PyramidKV, PaddingHasNoBudget) {
  PyramidKV policy({.budget = 12, .observation_window = 4, .beta = 4}, kShape);
  WindowCache cache(kShape, 64);
  Random random(3);
  cache.fill(random);
  cache.valid().assign(21, 1);
  for (std::size_t slot = 0; slot < 5; ++slot)
    cache.valid()[slot] = 0;
  feed_prompt(policy, cache, 21, WindowQueries(kShape, 4, random), 21);
  const kvevict::KeepMask& mask = policy.select(cache.view());
  EXPECT_EQ(mask.count(0, 0), 16U);
  EXPECT_EQ(mask.count(1, 0), 13U);
  EXPECT_EQ(mask.count(2, 0), 11U);
  EXPECT_EQ(mask.count(3, 0), 8U);
  for (std::size_t slot = 0; slot < 5; ++slot)
    EXPECT_FALSE(mask.keeps(0, 0, slot));
}

TEST(PyramidKV, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { PyramidKV({.budget = 7, .observation_window = 8}, kShape); },
                      {"PyramidKV", "budget = 7", "window"}));
  EXPECT_TRUE(
      refuses([] { PyramidKV({.official_rounding = true, .kvpress_budgets = true}, kShape); },
              {"PyramidKV", "kvpress_budgets = 1"}));
  EXPECT_TRUE(refuses([] { PyramidKV({.beta = 0.5}, kShape); }, {"PyramidKV", "beta = 0.5"}));
  EXPECT_TRUE(refuses([] { PyramidKV({.observation_window = 0}, kShape); },
                      {"PyramidKV", "observation_window = 0"}));
  EXPECT_TRUE(refuses([] { PyramidKV({.pooling = {.kernel_size = 4}}, kShape); },
                      {"PyramidKV", "pooling.kernel_size = 4"}));
}

}  // namespace
}  // namespace kvevict_test
