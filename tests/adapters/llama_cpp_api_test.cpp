// First, in the place of llama.h.
#include "adapters/fake_llama_api.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

// What a program that includes llama.h writes and gets.
namespace {

using kvevict_test::FakeLlama;
using kvevict_test::refuses;

std::vector<std::int32_t> numbered(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

/// In the place of a sampler.
std::int32_t next_token(llama_context* context, std::int32_t end) {
  const auto count = static_cast<std::int32_t>(context->llama.calls.size());
  return count < 24 ? count : end;
}

// The block of the README, line by line (check_readme.cmake); what it works on stands around it.
TEST(LlamaCppApi, ReadmeBlockRuns) {
  llama_model the_model;
  llama_model* model = &the_model;
  std::vector<std::int32_t> tokens = numbered(300);
  tokens[150] = FakeLlama::kNeedle;
  const std::int32_t end_of_text = -1;

  kvevict::llama_cpp::Hook hook;  // outlives the context, and never moves
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 1024;  // cells: what the policy keeps and the longest prompt, or part of one
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.cb_eval = kvevict::llama_cpp::eval_callback;
  params.cb_eval_user_data = &hook;
  llama_context* context = llama_init_from_model(model, params);

  kvevict::llama_cpp::Engine engine(kvevict::llama_cpp::Context(context), hook);
  kvevict::SnapKV policy({.budget = 100, .observation_window = 32}, engine.shape());
  kvevict::llama_cpp::SessionOptions options;
  options.granularity.layers = {2, 3};  // who decides what stays; by default the upper half
  kvevict::llama_cpp::Session session(engine, policy, options);
  session.prompt(tokens);  // in as many calls of llama_decode as it takes, and cut at its end
  std::int32_t token = next_token(context, end_of_text);  // from llama_get_logits_ith(context, -1)
  while (token != end_of_text) {
    session.decode(token);
    token = next_token(context, end_of_text);
  }

  // The engine's look at the model and the prompt are two calls, so 22 tokens follow.
  EXPECT_EQ(session.num_live(), 100U + 22);
  EXPECT_EQ(session.counters().evicted, 200U);
  EXPECT_EQ(session.counters().compactions, 1U);
  llama_free(context);
}

// n_batch is cut down to n_ctx without a word, and more than it aborts the process: the context is
// asked, not the parameters.
TEST(LlamaCppApi, AsksTheContextForItsBatch) {
  llama_model model;
  kvevict::llama_cpp::Hook hook;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 64;
  params.n_batch = 2048;
  params.n_ubatch = 2048;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.cb_eval = kvevict::llama_cpp::eval_callback;
  params.cb_eval_user_data = &hook;
  llama_context* context = llama_init_from_model(&model, params);
  {
    kvevict::llama_cpp::Engine engine(kvevict::llama_cpp::Context(context), hook);
    EXPECT_EQ(engine.max_tokens(), 64U);
    kvevict::llama_cpp::Session session(
        engine, kvevict::StreamingLLM({.num_sink_tokens = 2, .recent_window = 30}, engine.shape()));
    session.prompt(numbered(200));  // the fake would say so
    EXPECT_EQ(session.num_live(), 32U);
    EXPECT_EQ(context->llama.calls[1].count, 64U) << "behind the engine's look at the model";
  }
  llama_free(context);
}

TEST(LlamaCppApi, RefusesModelsByTheirKind) {
  const auto refused = [](llama_model model, const char* part) {
    kvevict::llama_cpp::Hook hook;
    llama_context* context = llama_init_from_model(&model, llama_context_default_params());
    const auto result = refuses(
        [&] { kvevict::llama_cpp::Engine engine(kvevict::llama_cpp::Context(context), hook); },
        {"llama_cpp::Engine", part});
    llama_free(context);
    return result;
  };
  EXPECT_TRUE(refused({.is_recurrent = true}, "recurrent models"));
  EXPECT_TRUE(refused({.is_hybrid = true}, "hybrid models"));
  EXPECT_TRUE(refused({.n_swa = 512}, "sliding windows"));
  EXPECT_TRUE(refused({}, "is cb_eval set to this hook, flash attention on"));
}

}  // namespace
