#include "kvevict/policies/curdkv.hpp"

#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

struct Token {
  float key;
  float value;
};
/// A cache that holds `tokens`, and a policy that knows it.
struct Session {
  Session(CurDKVOptions options, const std::vector<Token>& tokens)
      : policy(options, kOneHead), cache(kOneHead, tokens.size()) {
    for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
      *cache.key(0, 0, slot) = tokens[slot].key;
      *cache.value(0, 0, slot) = tokens[slot].value;
    }
    policy.append(tokens.size());
    cache.append(tokens.size());
  }
  std::vector<float> scores() { return scores_of(policy, cache); }
  Slots kept() { return kept_slots(policy.select(cache.view())); }

  CurDKV policy;
  WindowCache cache;
};

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6F) << "slot " << i;
}

// Blocks of 2, squares K 1 9 | 4 4 | 1, V 4 4 | 1 3 | 2: shares K .1 .9 | .5 .5 | 1 and V .5 .5 |
// .25 .75 | 1; products .05 .45 .125 .375 1, which sum to 2. The short block weighs more.
const std::vector<Token> kTokens = {
    {1, 2}, {-3, 2}, {2, 1}, {-2, std::sqrt(3.0F)}, {1, std::sqrt(2.0F)}};

TEST(CurDKV, LeveragesAreSharesOfABlock) {
  const auto scores = [](CurLeverage leverage, std::size_t block_len) {
    return Session({.budget = 4, .leverage = leverage, .block_len = block_len}, kTokens).scores();
  };
  expect_near(scores(CurLeverage::kProduct, 2), {.025F, .225F, .0625F, .1875F, .5F});
  expect_near(scores(CurLeverage::kKeys, 2), {.1F / 3, .9F / 3, .5F / 3, .5F / 3, 1 / 3.F});
  expect_near(scores(CurLeverage::kValues, 2), {.5F / 3, .5F / 3, .25F / 3, .75F / 3, 1 / 3.F});
  expect_near(scores(CurLeverage::kMean, 2), {.1F, .7F / 3, .125F, .625F / 3, 1 / 3.F});
  // No blocks: squares over their sums, 19 and 14; their mean over 33.
  expect_near(scores(CurLeverage::kKeys, 0), {1 / 19.F, 9 / 19.F, 4 / 19.F, 4 / 19.F, 1 / 19.F});
  expect_near(scores(CurLeverage::kValues, 0), {4 / 14.F, 4 / 14.F, 1 / 14.F, 3 / 14.F, 2 / 14.F});
  expect_near(scores(CurLeverage::kMean, 0), {5 / 33.F, 13 / 33.F, 5 / 33.F, 7 / 33.F, 3 / 33.F});
}

TEST(CurDKV, SinksStayWithTheBest) {
  EXPECT_EQ(Session({.budget = 2, .num_sink_tokens = 1, .block_len = 2}, kTokens).kept(),
            (Slots{0, 4}));
  EXPECT_EQ(Session({.budget = 2, .num_sink_tokens = 0, .block_len = 2}, kTokens).kept(),
            (Slots{1, 4}));
  EXPECT_EQ(Session({.budget = 5}, kTokens).kept().size(), 5U);
}

// policies.md 4.5: 0/0 is 0.
TEST(CurDKV, ABlockOfZerosIsWorthNothing) {
  Session session({.budget = 1, .num_sink_tokens = 0, .block_len = 2},
                  {{0, 0}, {0, 0}, {1, 1}, {0, 1}});
  expect_near(session.scores(), {0, 0, 1, 0});
  expect_near(Session({.budget = 4}, {{0, 0}}).scores(), {0});
}

// A NaN is no part of its block's sum; padding is in no block (rules R4, R9).
TEST(CurDKV, NaNAndPaddingTakeNothingFromOthers) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Session session({.budget = 2, .num_sink_tokens = 0, .block_len = 2},
                  {{kNaN, kNaN}, {1, 1}, {3, 1}, {kNaN, 1}, {1, 1}});
  session.cache.valid() = {0, 1, 1, 1, 1};
  // Blocks (1, 2) and (3, 4): .1 * .5, .9 * .5 and NaN, 1 * .5, over a sum of 1.
  const std::vector<float> scores = session.scores();
  EXPECT_EQ(scores[0], 0.0F);
  EXPECT_NEAR(scores[1], .05F, 1e-6F);
  EXPECT_NEAR(scores[2], .45F, 1e-6F);
  EXPECT_TRUE(std::isnan(scores[3]));
  EXPECT_NEAR(scores[4], .5F, 1e-6F);
  EXPECT_EQ(session.kept(), (Slots{2, 4}));
}

}  // namespace
