#include "engine/eviction.hpp"

#include "engine/policies.hpp"
#include "engine/tiny_model.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using engine::Sequence;
using engine::Signals;
using engine::Token;
using engine::Transformer;
using engine_test::TinyModel;

Transformer tiny_transformer() {
  TinyModel model;
  model.fill(1);
  return model.transformer(1);
}

std::vector<Token> some_tokens(std::size_t count) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>(i * 5 % 13));
  return tokens;
}

Sequence sequence_of(const Transformer& transformer, const std::string& policy,
                     const std::string& options) {
  kvevict::ModelInfo info;
  info.shape = engine::cache_shape(transformer.model().config());
  return {transformer, engine::make_policy(policy, options, info)};
}

// A lane that moves holds its old and its new memory at once, so the peak shows every move.
TEST(Eviction, NoLaneMovesWhileOneTokenComesAndOneGoes) {
  Transformer transformer = tiny_transformer();
  for (const std::size_t budget : {8U, 20U, 100U}) {
    SCOPED_TRACE(budget);
    Sequence sequence =
        sequence_of(transformer, "streaming_llm",
                    "num_sink_tokens=4,recent_window=" + std::to_string(budget - 4));
    engine::read_prompt(transformer, some_tokens(2 * budget), sequence);
    engine::decode_step(transformer, 1, sequence);
    const std::size_t held = sequence.cache().bytes_held();
    sequence.cache().reset_peak();
    for (int step = 0; step < 60; ++step) {
      engine::decode_step(transformer, static_cast<Token>(step % 13), sequence);
      ASSERT_EQ(sequence.cache().longest_lane(), budget);
      ASSERT_EQ(sequence.cache().peak_bytes(), held);
    }
    EXPECT_EQ(sequence.policy().counters().evicted, 4 * (budget + 61));
  }
}

TEST(Eviction, ABadTokenChangesNeitherCacheNorPolicy) {
  Transformer transformer = tiny_transformer();
  const std::string options = "num_sink_tokens=2,recent_window=8";
  Sequence sequence = sequence_of(transformer, "streaming_llm", options);
  Sequence undisturbed = sequence_of(transformer, "streaming_llm", options);
  const std::vector<Token> prompt = some_tokens(20);
  // A bad prompt starts nothing, even if its bad token is in a later chunk.
  std::vector<Token> bad_prompt = prompt;
  bad_prompt.back() = 13;
  EXPECT_THROW(engine::read_prompt(transformer, bad_prompt, sequence, Signals::kRows, 8),
               std::invalid_argument);
  EXPECT_THROW(engine::read_prompt(transformer, {}, sequence), std::invalid_argument);
  EXPECT_EQ(sequence.cache().longest_lane(), 0U);
  Sequence* const one = &sequence;
  EXPECT_THROW(engine::read_prompt_together(transformer, bad_prompt, {&one, 1}, Signals::kRows, 8),
               std::invalid_argument);
  EXPECT_THROW(engine::read_prompt_together(transformer, {}, {&one, 1}), std::invalid_argument);

  for (Sequence* s : {&sequence, &undisturbed})
    engine::read_prompt(transformer, prompt, *s, Signals::kRows, 8);
  for (const Token bad : {-1, 13, 1 << 30}) {
    EXPECT_THROW(engine::decode_step(transformer, bad, sequence), std::invalid_argument);
  }
  EXPECT_EQ(sequence.cache().next_position(), undisturbed.cache().next_position());
  // A policy that had counted a token of those above would not fit the cache now.
  for (const Token token : {3, 1, 4}) {
    const engine::Matrix expected = engine::decode_step(transformer, token, undisturbed);
    EXPECT_EQ(engine::Matrix(engine::decode_step(transformer, token, sequence)), expected);
  }
  EXPECT_EQ(sequence.policy().counters().evicted, undisturbed.policy().counters().evicted);
}

}  // namespace
