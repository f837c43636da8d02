#include "kvevict/policies/rocketkv.hpp"

#include "kvevict/policies/snapkv.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict_test {
namespace {

using kvevict::RocketKV;
using kvevict::RocketKVOptions;
using kvevict::SnapKV;

constexpr kvevict::CacheShape kModel{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

// S = 8192, T = 512: c = 16, alpha = .2 + .06 * 4 = .44, cap = 8192 / 16^.44 = 2418.7; c2 = 2418 /
// 512 = 4.7227, pages of min(4, 3) = 3, 128 * 3 / 4.7227 = 81.3 channels.
TEST(RocketSplit, OfALongPrompt) {
  const kvevict::RocketSplit split = kvevict::rocket_split(8192, 512, 0, 128);
  EXPECT_EQ(split.prompt_budget, 2418U);
  EXPECT_EQ(split.top_tokens, 256U);
  EXPECT_EQ(split.page_len, 3U);
  EXPECT_EQ(split.num_channels, 81U);
  EXPECT_EQ(kvevict::rocket_split(8192, 512, 18, 128).prompt_budget, 2400U);
}

TEST(RocketSplit, NothingToSplit) {
  const kvevict::RocketSplit split = kvevict::rocket_split(512, 512, 0, 128);
  EXPECT_EQ(split.prompt_budget, 512U);
  EXPECT_EQ(split.page_len, 1U);
  EXPECT_EQ(split.num_channels, 128U);
  EXPECT_EQ(kvevict::rocket_split(0, 512, 0, 128).prompt_budget, 0U);
  EXPECT_EQ(kvevict::rocket_split(100, 0, 0, 128).prompt_budget, 0U);
  EXPECT_EQ(kvevict::rocket_split(100, 512, 60, 128).prompt_budget, 40U);
}

template <class P>
struct Prompt {
  P policy;
  WindowCache cache;

  Prompt(const typename P::Options& options, std::size_t len)
      : policy(options, kModel), cache(kModel, 100) {
    Random random(7);
    cache.fill(random);
    feed_prompt(policy, cache, len, WindowQueries(kModel, 4, random), 7);
  }
  kvevict::KeepMask mask() { return policy.select(cache.view()); }
};

// S = 64, T = 4: c = 16, cap = 64 / 16^.44 = 18.9.
TEST(RocketKV, BudgetFollowsFromTheLength) {
  Prompt<RocketKV> rocket({.budget = 4, .observation_window = 4, .pooling = {.kernel_size = 1}},
                          64);
  EXPECT_TRUE(rocket.policy.should_evict());
  Prompt<SnapKV> snapkv({.budget = 18, .observation_window = 4, .pooling = {.kernel_size = 1}}, 64);
  // A sum over the group ranks as its mean.
  EXPECT_EQ(rocket.mask(), snapkv.mask());
}

TEST(RocketKV, PromptsThatFitWithTheirAnswerStay) {
  for (const std::size_t len : {0U, 1U, 20U}) {
    Prompt<RocketKV> rocket({.budget = 30, .max_new_tokens = 10, .observation_window = 4}, len);
    EXPECT_FALSE(rocket.policy.should_evict()) << len;
    EXPECT_EQ(rocket.mask().total_evicted(), 0U);
  }
  // S = 31: cap = 31 / (31 / 30)^.2 = 30.8, less 10.
  Prompt<RocketKV> rocket({.budget = 30, .max_new_tokens = 10, .observation_window = 4}, 21);
  EXPECT_EQ(rocket.mask().total_evicted(), 4U);
  // The window stays whatever the answer takes.
  Prompt<RocketKV> small({.budget = 4, .max_new_tokens = 40, .observation_window = 4}, 24);
  EXPECT_EQ(small.mask().total_count(), 4U * 4U);
}

TEST(RocketKV, MayBeToldThePromptsBudget) {
  Prompt<RocketKV> rocket({.budget = 12, .split = false, .observation_window = 4}, 64);
  EXPECT_EQ(rocket.mask().total_count(), 4U * 12U);
  EXPECT_TRUE(
      refuses([] { RocketKV({.budget = 3, .split = false, .observation_window = 4}, kModel); },
              {"RocketKV", "budget = 3", "window"}));
  EXPECT_TRUE(refuses([] { RocketKV({.budget = 0}, kModel); }, {"RocketKV", "budget = 0"}));
}

}  // namespace
}  // namespace kvevict_test
