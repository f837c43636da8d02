// The built-in model answers from caches that policies have cut: what is kept, and the memory.
#include "lm/common.hpp"
#include "lm/contestants.hpp"
#include "lm/measure.hpp"
#include "lm/recall_task.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace {

using engine::Sequence;
using engine::Signals;

constexpr std::size_t kPromptLen = 1024;
constexpr std::size_t kTrials = 4;  // 8 questions each

lm::Runtime& runtime() {
  static lm::Runtime loaded({.model = KVEVICT_RECALL_MODEL});
  return loaded;
}

lm::Trial trial(std::size_t seed, std::size_t prompt_len = kPromptLen) {
  return lm::make_trial(runtime().file(), runtime().tokenizer(),
                        {.kind = lm::RecallKind::kBuiltInModel,
                         .prompt_len = prompt_len,
                         .num_facts = 32,
                         .seed = 1000 + seed});
}

/// Share of right answers at a budget of tokens per KV head.
double recall(const std::string& policy, std::size_t budget, Signals signals = Signals::kRows,
              const std::string& fixed = "") {
  std::size_t right = 0;
  std::size_t asked = 0;
  for (std::size_t seed = 0; seed < kTrials; ++seed) {
    const lm::Trial one = trial(seed);
    Sequence sequence = runtime().make_sequence(policy, lm::options_for(policy, budget, fixed));
    engine::read_prompt(runtime().transformer(), one.prompt, sequence, signals);
    const lm::AnswerResult answers = lm::ask(runtime(), one, sequence);
    right += answers.num_right;
    asked += answers.num_questions;
  }
  return static_cast<double>(right) / static_cast<double>(asked);
}

constexpr std::size_t kFifth = kPromptLen / 5;

TEST(Recall, FullCacheAnswers) {
  EXPECT_GE(recall("fullkv", 0), 0.95);
}

// The facts that the prompt's end asks for have its last queries' attention.
TEST(Recall, WindowPoliciesKeepWhatIsAskedForAtAFifth) {
  const double snapkv = recall("snapkv", kFifth);
  const double laprox = recall("laprox", kFifth);
  const double random = recall("random_eviction", kFifth);
  const double streaming = recall("streaming_llm", kFifth);
  RecordProperty("snapkv", std::to_string(snapkv));
  RecordProperty("laprox", std::to_string(laprox));
  RecordProperty("random", std::to_string(random));
  RecordProperty("streaming", std::to_string(streaming));
  EXPECT_GE(snapkv, 0.9);
  EXPECT_GE(laprox, 0.9);
  // A fifth of the facts survives by chance.
  EXPECT_LE(random, 0.5);
  EXPECT_LE(streaming, 0.5);
  EXPECT_GE(snapkv, random + 0.4);
  EXPECT_GE(laprox, streaming + 0.4);
}

// An engine with fused attention loses nothing: rows computed from queries decide alike.
TEST(Recall, QueriesAloneServeAsWellAsRows) {
  EXPECT_GE(recall("snapkv", kFifth, Signals::kQueries), 0.9);
  EXPECT_GE(recall("laprox", kFifth, Signals::kQueries), 0.9);
  EXPECT_GE(recall("h2o", kFifth, Signals::kQueries), 0.8);
}

TEST(Eviction, SignalsFromRowsAndFromQueriesGiveTheSameCache) {
  const lm::Trial one = trial(7, 400);
  for (const lm::Contestant& c : lm::contestants()) {
    if (c.policy == "fullkv" || !c.cuts_prompts)
      continue;
    SCOPED_TRACE(c.label);
    std::vector<std::vector<std::int32_t>> kept;
    for (const Signals signals : {Signals::kRows, Signals::kQueries}) {
      Sequence sequence = runtime().make_sequence(c.policy, lm::options_for(c.policy, 80, c.fixed));
      engine::read_prompt(runtime().transformer(), one.prompt, sequence, signals);
      engine::decode_step(runtime().transformer(), one.questions[0].feed[0], sequence, signals);
      auto& positions = kept.emplace_back();
      for (std::size_t layer = 0; layer < sequence.cache().num_layers(); ++layer) {
        for (std::size_t head = 0; head < sequence.cache().num_kv_heads(); ++head) {
          const engine::KvLane& lane = sequence.cache().lane(layer, head);
          positions.insert(positions.end(), lane.positions.begin(),
                           lane.positions.begin() + static_cast<std::ptrdiff_t>(lane.size()));
        }
      }
    }
    // Two roundings of the same rows may swap a near-tie; the caches agree but for that.
    ASSERT_EQ(kept[0].size(), kept[1].size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < kept[0].size(); ++i)
      different += kept[0][i] != kept[1][i] ? 1 : 0;
    EXPECT_LE(different, kept[0].size() / 50);
  }
}

TEST(Eviction, GivesTheMemoryBack) {
  const lm::Trial one = trial(3);
  Sequence full = runtime().make_sequence("fullkv", "");
  Sequence cut = runtime().make_sequence("snapkv", lm::options_for("snapkv", 102));
  for (Sequence* s : {&full, &cut}) {
    engine::read_prompt(runtime().transformer(), one.prompt, *s, Signals::kRows);
  }
  // A tenth of the rows, and the few spare ones that a lane keeps.
  EXPECT_LT(cut.cache().bytes_held() * 8, full.cache().bytes_held());
  EXPECT_EQ(cut.policy().counters().firings, 1U);
  EXPECT_EQ(cut.policy().counters().kept, 4U * 2 * 102);
}

TEST(Eviction, BudgetHoldsInEveryDecodeStep) {
  const lm::Trial one = trial(4, 300);
  for (const lm::Contestant& c : lm::contestants()) {
    if (c.policy == "fullkv" || !c.cuts_decode)
      continue;
    SCOPED_TRACE(c.label);
    Sequence sequence = runtime().make_sequence(c.policy, lm::options_for(c.policy, 64, c.fixed));
    const std::span<const engine::Token> text(one.prompt);
    engine::read_prompt(runtime().transformer(), text.first(40), sequence, Signals::kRows);
    for (const engine::Token token : text.subspan(40)) {
      engine::decode_step(runtime().transformer(), token, sequence, Signals::kRows);
      ASSERT_LE(sequence.cache().longest_lane(), 64U);
    }
    EXPECT_EQ(sequence.cache().longest_lane(), 64U);
    EXPECT_GT(sequence.policy().counters().firings, 100U);
  }
}

// A prompt that several policies read together is the prompt that each would have read alone.
TEST(Eviction, SharedPromptEqualsOwnPrompt) {
  const lm::Trial one = trial(5, 300);
  for (const char* policy : {"snapkv", "laprox", "h2o", "streaming_llm"}) {
    SCOPED_TRACE(policy);
    const std::string options = lm::options_for(policy, 60);
    Sequence alone = runtime().make_sequence(policy, options);
    Sequence together = runtime().make_sequence(policy, options);
    Sequence other = runtime().make_sequence("snapkv", lm::options_for("snapkv", 100));
    engine::read_prompt(runtime().transformer(), one.prompt, alone, Signals::kRows, 1024);
    engine::Sequence* both[] = {&other, &together};
    engine::read_prompt_together(runtime().transformer(), one.prompt, both, Signals::kRows, 1024);
    for (std::size_t layer = 0; layer < 4; ++layer) {
      for (std::size_t head = 0; head < 2; ++head) {
        const engine::KvLane& a = alone.cache().lane(layer, head);
        const engine::KvLane& b = together.cache().lane(layer, head);
        ASSERT_EQ(a.size(), b.size());
        EXPECT_TRUE(std::equal(a.positions.begin(),
                               a.positions.begin() + static_cast<std::ptrdiff_t>(a.size()),
                               b.positions.begin()));
      }
    }
  }
}

TEST(Errors, BadBudgetsAreNamed) {
  EXPECT_THROW(static_cast<void>(lm::budget_tokens("0", 100)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(lm::budget_tokens("x", 100)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(lm::budget_tokens("120%", 100)), std::invalid_argument);
  EXPECT_EQ(lm::budget_tokens("10%", 1000), 100U);
  EXPECT_EQ(lm::budget_tokens("64", 1000), 64U);
}

}  // namespace
