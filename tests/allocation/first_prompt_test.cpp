#include "kvevict/allocation/first_prompt.hpp"

#include <gtest/gtest.h>

#include <cstddef>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

struct Prompts {
  Sequence sequence{"test", kShape, MaskScope::kModel};
  FirstPrompt first;

  void begin(std::size_t count) {
    sequence.begin(count, {});
    first.begin(sequence);
    sequence.append(count);
  }
  [[nodiscard]] std::size_t tokens(const Budget& budget) const {
    return first.frozen(budget, sequence).tokens_of(1000);
  }
};

TEST(FirstPrompt, FreezesAShare) {
  Prompts prompts;
  prompts.begin(50);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 5U);
  prompts.sequence.append(500);
  prompts.begin(500);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 5U);
}

TEST(FirstPrompt, LeavesNumbersOfTokensAsTheyAre) {
  Prompts prompts;
  prompts.begin(50);
  EXPECT_EQ(prompts.tokens(Budget::tokens(77)), 77U);
  EXPECT_TRUE(prompts.first.frozen(Budget::total(77), prompts.sequence).is_total());
}

TEST(FirstPrompt, WithoutAPromptTheShareIsOneOfAllTokens) {
  Prompts prompts;
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 100U);  // nothing is known: still a share
  prompts.sequence.append(40);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 4U);
  prompts.begin(0);  // no tokens, no prompt
  prompts.sequence.append(40);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 8U);
}

TEST(FirstPrompt, IsForgottenWithTheWholeSequence) {
  Prompts prompts;
  prompts.begin(50);
  prompts.sequence.truncate(20);
  prompts.first.truncate(prompts.sequence);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 5U);
  prompts.sequence.truncate(0);
  prompts.first.truncate(prompts.sequence);
  prompts.begin(80);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 8U);
  prompts.sequence.reset();
  prompts.first.reset();
  prompts.begin(30);
  EXPECT_EQ(prompts.tokens(Budget::keep_ratio(0.1)), 3U);
}

}  // namespace
}  // namespace kvevict
