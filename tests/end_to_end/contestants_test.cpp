// Who is compared, and whether each policy of the catalogue runs in the engine as its entry says.
#include "lm/contestants.hpp"

#include "lm/common.hpp"
#include "lm/compare.hpp"
#include "lm/control.hpp"
#include "lm/output_error.hpp"
#include "lm/recall_task.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using engine::Sequence;
using engine::Token;

lm::Runtime& runtime() {
  static lm::Runtime one({.model = KVEVICT_RECALL_MODEL});
  return one;
}

std::vector<Token> tokens(std::size_t count) {
  std::vector<Token> prompt = lm::make_trial(runtime().file(), runtime().tokenizer(),
                                             {.kind = lm::RecallKind::kBuiltInModel,
                                              .prompt_len = count + 20,
                                              .num_facts = 16,
                                              .seed = 3})
                                  .prompt;
  prompt.resize(count);
  return prompt;
}

std::vector<std::string> labels(const lm::Lineup& lineup) {
  std::vector<std::string> result;
  for (const lm::Contestant& c : lineup.contestants)
    result.push_back(c.label);
  return result;
}

TEST(Lineup, HasTheControlsAndWhatIsAskedFor) {
  EXPECT_EQ(labels(lm::lineup_of("snapkv, tova(budget=5,scope=model) + caote,inertiakv-lazy4")),
            (std::vector<std::string>{"FullKV", "Random", "SnapKV",
                                      "tova(budget=5,scope=model) + caote", "InertiaKV-Lazy4"}));
  EXPECT_EQ(labels(lm::lineup_of("default")).size(), lm::contestants().size());
  EXPECT_EQ(labels(lm::lineup_of("random,FullKV,default")).size(), lm::contestants().size());
  EXPECT_THROW(lm::lineup_of("snapkv,,h2o"), std::invalid_argument);
}

// A composition cuts when the policy that it starts from does.
TEST(Lineup, CompositionTakesPartWhereItsPolicyDoes) {
  const lm::Lineup lineup = lm::lineup_of("snapkv + caote,epikv(recent_window=8),tova + caote");
  const auto& c = lineup.contestants;
  EXPECT_TRUE(c[2].cuts_prompts && !c[2].cuts_decode);
  EXPECT_TRUE(!c[3].cuts_prompts && c[3].cuts_decode);
  EXPECT_TRUE(c[4].cuts_prompts && c[4].cuts_decode);
}

TEST(Lineup, EveryPolicyOfTheCatalogueRunsOrSaysWhatItNeeds) {
  const lm::Lineup lineup = lm::lineup_of("all");
  EXPECT_EQ(lineup.contestants.size() + lineup.left_out.size(), engine::policy_names().size());
  EXPECT_NE(std::find(lineup.left_out.begin(), lineup.left_out.end(),
                      "HeadKV: needs retrieval scores of the heads (head_scores)"),
            lineup.left_out.end());
  for (const lm::PolicyEntry& entry : lm::detail::policy_entries()) {
    const std::vector<std::string> names = engine::policy_names();
    EXPECT_NE(std::find(names.begin(), names.end(), entry.policy), names.end()) << entry.policy;
  }
}

TEST(OptionsFor, AreThoseOfThePolicyWhateverItsSpelling) {
  EXPECT_EQ(lm::options_for("H2O", 11), "heavy=5,recent=6");
  EXPECT_EQ(lm::options_for("full_kv", 11), "");
  EXPECT_EQ(lm::options_for("Random-Eviction", 40), "budget=40,num_sink_tokens=4,recent_window=20");
  // 100 / 16 is a block of 6, of which 16 fit.
  EXPECT_EQ(lm::options_for("block_eviction", 100),
            "budget=96,block_size=6,num_sink_tokens=6,recent_window=6");
  EXPECT_EQ(lm::options_for("knorm", 7), "budget=7");
  // What is protected shrinks with the budget: half of it here, 10 tokens at the most.
  EXPECT_EQ(lm::options_for("scissorhands", 9), "budget=9,drop=1,recent_window=4");
}

TEST(OptionsFor, FitBudgetsFromSixteenTokensOn) {
  for (const lm::Contestant& c : lm::lineup_of("all").contestants) {
    for (const std::size_t budget : {16, 37, 250, 5000}) {
      EXPECT_NO_THROW((void)runtime().make_sequence(c.policy, lm::options_for(c.policy, budget)))
          << c.label << " " << budget;
    }
  }
}

// The last one of a key holds, and is the only one.
TEST(OptionsFor, WhatTheUserWroteComesLast) {
  EXPECT_EQ(lm::options_for("snapkv(observation_window=8) + caote(raw=true)", 100, "budget=9"),
            "observation_window=8,budget=9");
  EXPECT_EQ(lm::options_for("tova + ada(floor=0.1)", 100), "budget=100");
}

// Tokens go at a prompt's end (or in the first step behind it), or while decoding. What is left is
// the budget, whatever the policy calls it.
TEST(Catalogue, CutsWhereItsEntrySays) {
  const std::vector<Token> text = tokens(160);
  const std::span<const Token> all(text);
  constexpr std::size_t kBudget = 32;
  for (const lm::Contestant& c : lm::lineup_of("all").contestants) {
    // A share of the attention, or lazy layers, decide how much goes; here nothing may.
    if (c.label == "FullKV" || c.label == "FastGen" || c.label == "SimLayerKV")
      continue;
    SCOPED_TRACE(c.label);
    const std::string options = lm::options_for(c.policy, kBudget);
    Sequence prompt = runtime().make_sequence(c.policy, options);
    engine::read_prompt(runtime().transformer(), all, prompt);
    engine::decode_step(runtime().transformer(), text[0], prompt);
    // Where the prompt stays, the one token behind it goes.
    const std::size_t num_lanes = prompt.cache().num_layers() * prompt.cache().num_kv_heads();
    EXPECT_EQ(prompt.policy().counters().evicted > num_lanes, c.cuts_prompts);

    Sequence decode = runtime().make_sequence(c.policy, options);
    engine::read_prompt(runtime().transformer(), all.first(20), decode);
    for (const Token token : all.subspan(20, 60))
      engine::decode_step(runtime().transformer(), token, decode);
    EXPECT_EQ(decode.policy().counters().evicted > 0, c.cuts_decode);
    EXPECT_EQ(decode.policy().counters().missing_signals, 0U);
    EXPECT_EQ(decode.policy().counters().non_finite, 0U);
    if (!c.cuts_decode || c.label == "LagKV")  // which has no budget in all
      continue;
    std::size_t held = 0;
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const std::size_t heads = decode.cache().num_kv_heads();
      held += decode.cache().lane(lane / heads, lane % heads).size();
    }
    // Blocks of 2: one is being written and one waits for it.
    const bool in_blocks =
        c.label == "AdaptiveRKV" || c.label == "BlockEviction" || c.label == "KVCrush";
    EXPECT_LE(held, num_lanes * (kBudget + (in_blocks ? 3 : 0)));
    EXPECT_GE(held, num_lanes * kBudget / 2);
  }
}

lm::Control control_of(const std::string& policy, std::size_t budget) {
  return lm::control_of(runtime().make_policy(policy, lm::options_for(policy, budget)), budget,
                        1000)
      .value();
}

// What the policies' papers protect, at a tenth of 1000 tokens.
TEST(Control, ProtectsWhatThePolicyDoes) {
  const lm::Control snapkv = control_of("snapkv", 100);
  EXPECT_EQ(snapkv.budget, 100U);
  EXPECT_EQ(snapkv.protection.num_sink_tokens, 0U);
  EXPECT_EQ(snapkv.protection.recent_window, 32U);
  EXPECT_TRUE(snapkv.protection.after_prompt);
  EXPECT_EQ(snapkv.scope, kvevict::MaskScope::kHead);

  EXPECT_EQ(control_of("h2o", 100).protection.recent_window, 50U);
  // A share of the prompt that is read: 7 % of 1000 tokens.
  EXPECT_EQ(control_of("h2o(heavy=3%,recent=7%)", 100).protection.recent_window, 70U);
  EXPECT_EQ(control_of("chunkkv", 100).scope, kvevict::MaskScope::kLayer);
  EXPECT_EQ(control_of("inertiakv", 100).scope, kvevict::MaskScope::kModel);
  EXPECT_TRUE(control_of("epikv", 2000).protection.prompt);
  EXPECT_FALSE(control_of("snapkv + caote", 100).protection.prompt);
}

TEST(Control, IsNoneWhereNothingIsLeftToChance) {
  const auto of = [](const std::string& options) {
    return lm::control_of(runtime().make_policy("streaming_llm", options), 100, 1000);
  };
  EXPECT_FALSE(of("num_sink_tokens=4,recent_window=96").has_value());
  EXPECT_FALSE(of("num_sink_tokens=100,recent_window=0").has_value());
  EXPECT_TRUE(of("num_sink_tokens=4,recent_window=95").has_value());
  // A prompt that stays whole and fills the budget.
  const kvevict::AnyPolicy epikv = runtime().make_policy("epikv", "budget=100");
  EXPECT_FALSE(lm::control_of(epikv, 100, 100).has_value());
  EXPECT_TRUE(lm::control_of(epikv, 100, 99).has_value());
}

TEST(Control, KeepsTheProtectedAndDrawsTheRest) {
  const std::vector<Token> text = tokens(160);
  const auto kept = [&](kvevict::MaskScope scope, std::uint64_t seed) {
    const lm::Control control{20, {.num_sink_tokens = 3, .recent_window = 6}, scope};
    Sequence sequence = runtime().make_sequence(
        kvevict::AnyPolicy(lm::RandomControl({control, seed}, runtime().shape())));
    engine::read_prompt(runtime().transformer(), text, sequence);
    std::vector<std::vector<std::int32_t>> lanes;
    const engine::KvCache& cache = sequence.cache();
    for (std::size_t layer = 0; layer < cache.num_layers(); ++layer) {
      for (std::size_t head = 0; head < cache.num_kv_heads(); ++head) {
        const engine::KvLane& lane = cache.lane(layer, head);
        lanes.emplace_back(lane.positions.begin(),
                           lane.positions.begin() + static_cast<std::ptrdiff_t>(lane.size()));
      }
    }
    return lanes;
  };
  const auto lanes = kept(kvevict::MaskScope::kLayer, 1);
  for (const auto& lane : lanes) {
    ASSERT_EQ(lane.size(), 20U);
    EXPECT_EQ(lane[2], 2);
    EXPECT_EQ(lane[14], 154);
  }
  // Two KV heads share a draw, the next layer has one of its own; another seed, another draw.
  EXPECT_EQ(lanes[0], lanes[1]);
  EXPECT_NE(lanes[0], lanes[2]);
  EXPECT_NE(lanes, kept(kvevict::MaskScope::kLayer, 2));
  EXPECT_NE(kept(kvevict::MaskScope::kHead, 1)[0], kept(kvevict::MaskScope::kHead, 1)[1]);
}

// SnapKV and AdaKV protect the same; CAKE cuts what is decoded, too.
TEST(Control, IsSharedByThoseThatShareEverything) {
  const lm::CompareOptions options{.budgets = {"100", "50"}};
  const lm::Lineup lineup = lm::lineup_of("snapkv,streaming_llm,adakv,cake,fastgen");
  std::vector<lm::detail::Run> runs =
      lm::detail::runs(lineup, options, 1000, &lm::Contestant::cuts_prompts);
  lm::detail::add_controls(runtime(), 1000, runs);
  // The full cache and six at two budgets; then SnapKV's two controls and CAKE's two.
  ASSERT_EQ(runs.size(), 13U + 4U);
  std::vector<std::size_t> controls;
  for (const lm::detail::Run& run : runs)
    controls.push_back(run.control_run.value_or(0));
  EXPECT_EQ(controls,
            (std::vector<std::size_t>{0, 0, 0, 13, 14, 0, 0, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(runs[14].tokens, 50U);
}

// The query of each of the last 16 tokens of the prompt, whatever else wants queries.
TEST(PromptOutputError, IsThatOfTheMaskAndNoneWhereNothingIsCut) {
  const std::vector<Token> text = tokens(300);
  Sequence full = runtime().make_sequence("fullkv", "");
  Sequence snap = runtime().make_sequence("snapkv", "budget=100,observation_window=16");
  Sequence less = runtime().make_sequence("snapkv", "budget=40,observation_window=16");
  Sequence random = runtime().make_sequence("random_eviction", "budget=100");
  Sequence tri = runtime().make_sequence("triattention", lm::options_for("triattention", 100));
  Sequence* const all[] = {&full, &snap, &less, &random, &tri};
  lm::PromptOutputError error(full.view().shape(), 5);
  engine::read_prompt_together(runtime().transformer(), text, all, engine::Signals::kRows, 128,
                               &error);
  EXPECT_FALSE(error.relative(0).has_value());
  ASSERT_TRUE(error.relative(1).has_value());
  EXPECT_GT(*error.relative(1), 0.0);
  EXPECT_GT(*error.relative(2), *error.relative(1));
  EXPECT_GT(*error.relative(3), *error.relative(1));

  // The same from a watcher that wants its queries alone.
  Sequence again = runtime().make_sequence("snapkv", "budget=100,observation_window=16");
  Sequence* const one[] = {&again};
  lm::PromptOutputError alone(full.view().shape(), 1);
  engine::read_prompt_together(runtime().transformer(), text, one, engine::Signals::kRows, 512,
                               &alone);
  EXPECT_NEAR(*alone.relative(0), *error.relative(1), 1e-3);
}

}  // namespace
