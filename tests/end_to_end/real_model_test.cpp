// SmolLM2, where its file is at hand (KVEVICT_MODEL): what a real model still finds in a cache of
// which a quarter is left.
#include "lm/common.hpp"
#include "lm/contestants.hpp"
#include "lm/measure.hpp"
#include "lm/recall_task.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

// The words that the full cache recalls are recalled from a quarter of it by those who look at
// attention; a random quarter with the same sinks and recent tokens has lost them. The memory is
// given back.
TEST(RealModel, FindsAWordInAQuarterOfTheCache) {
  const char* const model = std::getenv("KVEVICT_MODEL");
  if (model == nullptr)
    GTEST_SKIP() << "KVEVICT_MODEL names no model";
  constexpr std::size_t kTrials = 3;
  constexpr std::size_t kPromptLen = 400;
  const std::vector<std::string> policies = {"fullkv", "random_eviction", "snapkv", "laprox"};
  lm::Runtime runtime({.model = model});
  std::map<std::string, std::size_t> num_right;
  std::map<std::string, std::size_t> bytes;
  for (std::size_t t = 0; t < kTrials; ++t) {
    const lm::Trial trial = lm::make_trial(runtime.file(), runtime.tokenizer(),
                                           {.kind = lm::RecallKind::kWord,
                                            .prompt_len = kPromptLen,
                                            .depth = 0.25 + 0.25 * static_cast<double>(t),
                                            .seed = t});
    std::vector<std::unique_ptr<engine::Sequence>> sequences;
    std::vector<engine::Sequence*> pointers;
    for (const std::string& policy : policies) {
      sequences.push_back(std::make_unique<engine::Sequence>(runtime.make_sequence(
          policy, policy == "fullkv" ? "" : lm::options_for(policy, kPromptLen / 4))));
      pointers.push_back(sequences.back().get());
    }
    engine::read_prompt_together(runtime.transformer(), trial.prompt, pointers, runtime.signals());
    for (std::size_t i = 0; i < policies.size(); ++i) {
      bytes[policies[i]] += sequences[i]->cache().bytes_held();
      num_right[policies[i]] += lm::ask(runtime, trial, *sequences[i]).num_right;
    }
  }
  EXPECT_EQ(num_right["fullkv"], kTrials);
  EXPECT_EQ(num_right["snapkv"], kTrials);
  EXPECT_EQ(num_right["laprox"], kTrials);
  EXPECT_LE(num_right["random_eviction"], kTrials - 2);
  for (const char* policy : {"snapkv", "laprox", "random_eviction"})
    EXPECT_LT(3 * bytes[policy], bytes["fullkv"]) << policy;
}

}  // namespace
