// The commands of kvevict_lm as functions: what they feed to the model.
#include "lm/commands.hpp"

#include "engine/gguf_builder.hpp"
#include "engine/tiny_model.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using engine::Token;
using engine_test::GgufBuilder;
using engine_test::TinyModel;

constexpr Token kBos = 256;

// A tiny model file whose tokens are the 256 bytes and one special token.
GgufBuilder byte_model(bool adds_bos) {
  TinyModel model;
  model.vocabulary_size = 257;
  model.fill(1);
  std::vector<std::string> tokens;
  for (const char32_t code : engine::detail::byte_alphabet()) {
    tokens.emplace_back();
    engine::detail::append_utf8(code, tokens.back());
  }
  tokens.emplace_back("<s>");
  std::vector<std::int32_t> types(256, 1);
  types.push_back(3);
  GgufBuilder builder = model.builder();
  builder.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", "gpt2")
      .texts("tokenizer.ggml.tokens", tokens)
      .texts("tokenizer.ggml.merges", {})
      .numbers("tokenizer.ggml.token_type", types)
      .number("tokenizer.ggml.bos_token_id", kBos)
      .flag("tokenizer.ggml.add_bos_token", adds_bos);
  return builder;
}

// A file or folder of the test's own, gone at its end.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("kvevict_" + std::to_string(std::random_device()()))) {
    std::filesystem::create_directory(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

class Bos : public testing::TestWithParam<bool> {
 protected:
  Bos() {
    const std::vector<std::byte> bytes = byte_model(GetParam()).bytes();
    common_.model =
        folder_.write("model.gguf", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    common_.json = folder_.file("result.json");
  }
  [[nodiscard]] std::size_t num_bos() const { return GetParam() ? 1 : 0; }
  [[nodiscard]] nlohmann::json result() const {
    return nlohmann::json::parse(lm::read_text(common_.json));
  }

  TemporaryFolder folder_;
  lm::Common common_;
};

TEST_P(Bos, StartsWhatGenerateReads) {
  lm::run_generate(common_, {.prompt = "hello", .max_new_tokens = 1});
  EXPECT_EQ(result()["prompt_tokens"], 5 + num_bos());
}

TEST_P(Bos, StartsWhatPerplexityReads) {
  lm::run_perplexity(common_, {.file = folder_.write("text.txt", "twenty characters ..")});
  // The first 16 tokens are read, the next is fed, and every one after it is predicted.
  EXPECT_EQ(result()["tokens"], 20 + num_bos() - 17);
}

TEST_P(Bos, StartsWhatCompareReads) {
  const lm::Runtime runtime(common_);
  const std::vector<Token> text = lm::prose_story(runtime, 30).tokens;
  ASSERT_EQ(text.size(), 31U);
  EXPECT_EQ(text[0] == kBos, GetParam());
  EXPECT_EQ(runtime.tokenizer().decode({&text[num_bos()], 12}), "The harbour ");
}

TEST_P(Bos, StartsRecallPromptsAndCountsInTheirLength) {
  const lm::Runtime runtime(common_);
  for (const std::size_t length : {700U, 1000U, 2000U}) {
    const lm::Trial trial = lm::make_trial(
        runtime.file(), runtime.tokenizer(),
        {.kind = lm::RecallKind::kWord, .prompt_len = length, .depth = 0.5, .seed = length});
    EXPECT_EQ(trial.prompt[0] == kBos, GetParam());
    EXPECT_LE(trial.prompt.size() + 1, length);
    EXPECT_GE(trial.prompt.size() + 100, length);
  }
}

INSTANTIATE_TEST_SUITE_P(AsTheFileAsks, Bos, testing::Bool());

// A share of a prompt of eight tokens would be no cache at all.
TEST(Budget, OfWritingWithoutEndIsAShareOfTheTrainedContext) {
  EXPECT_EQ(lm::shared_tokens(8, 200, 8192), 208U);
  const std::size_t budget = lm::budget_tokens("10%", lm::shared_tokens(8, 0, 8192));
  EXPECT_EQ(budget, 819U);
  EXPECT_EQ(lm::options_for("streaming_llm", budget), "num_sink_tokens=4,recent_window=815");
}

// The name stands before its value and the question mark before the name; the facts come first.
TEST(Story, OfTheBuiltInModelAsksForEveryFact) {
  const lm::Runtime runtime({.model = KVEVICT_RECALL_MODEL});
  for (const std::size_t length : {60U, 256U}) {
    const lm::Story story = lm::facts_story(runtime, length, 5);
    ASSERT_EQ(story.tokens.size(), length + 1);
    ASSERT_EQ(story.counts.size(), length + 1);
    EXPECT_EQ(std::count(story.counts.begin(), story.counts.end(), true), length == 60 ? 9 : 32);
    EXPECT_TRUE(story.counts.back());
    const Token query = runtime.tokenizer().encode(" ?")[0];
    const auto& tokens = story.tokens;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!story.counts[i])
        continue;
      EXPECT_EQ(tokens[i - 2], query);
      const auto fact =
          std::search(tokens.begin(), tokens.end(), tokens.begin() + std::ptrdiff_t(i) - 1,
                      tokens.begin() + std::ptrdiff_t(i) + 1);
      EXPECT_LT(fact - tokens.begin(), std::ptrdiff_t(length + 1 - 3 * 8));
    }
  }
}

// Sentences that come twice before others have come once would be facts of their own.
TEST(RecallTask, FillerRepeatsNothingBeforeAllWasSaid) {
  TemporaryFolder folder;
  const std::vector<std::byte> bytes = byte_model(false).bytes();
  const lm::Runtime runtime(
      {.model = folder.write("model.gguf",
                             {reinterpret_cast<const char*>(bytes.data()), bytes.size()})});
  const lm::Trial trial =
      lm::make_trial(runtime.file(), runtime.tokenizer(),
                     {.kind = lm::RecallKind::kWord, .prompt_len = 4000, .seed = 3});
  const std::string text = runtime.tokenizer().decode(trial.prompt);
  std::size_t least = text.size();
  std::size_t most = 0;
  for (const std::string_view sentence : lm::kFiller) {
    std::size_t count = 0;
    for (std::size_t at = text.find(sentence); at != std::string::npos;
         at = text.find(sentence, at + 1)) {
      ++count;
    }
    least = std::min(least, count);
    most = std::max(most, count);
  }
  EXPECT_GE(least, 1U);
  EXPECT_LE(most, least + 1);
}

}  // namespace
