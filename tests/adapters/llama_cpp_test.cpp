#include "kvevict/adapters/llama_cpp.hpp"

#include "adapters/fake_llama.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/policies/triattention.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvevict;
using namespace kvevict_test;
using llama_cpp::EngineError;
using llama_cpp::Hook;
using llama_cpp::Storage;
using Engine = llama_cpp::Engine<FakeHost>;
template <class P>
using Session = llama_cpp::Session<P, FakeHost>;
using llama_cpp::Token;
using Tokens = std::vector<Token>;
using Runs = std::vector<std::pair<Position, Position>>;
using Calls = std::vector<FakeLlama::Call>;

Tokens numbered(std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<llama_cpp::Token>(i);
  return tokens;
}

/// A fake, its hook, and the engine over both.
struct Fixture {
  explicit Fixture(const FakeLlama::Options& options = {})
      : llama(options, hook), engine(FakeHost{&llama}, hook) {
    llama.calls.clear();
    llama.removals.clear();
    llama.attended.clear();
    llama.num_wanted = 0;
  }
  Hook hook;
  FakeLlama llama;
  Engine engine;
};

StreamingLLM streaming(const Engine& engine, std::size_t sinks, std::size_t recent) {
  return StreamingLLM({.num_sink_tokens = sinks, .recent_window = recent}, engine.shape());
}

/// The tokens that the cache holds, oldest first, by the adapter's map and the engine's cells.
template <class S>
Tokens live_tokens(const S& session, const FakeLlama& llama) {
  Tokens tokens;
  for (std::size_t slot = 0; slot < session.num_live(); ++slot) {
    const FakeLlama::Cell& cell = llama.cells[static_cast<std::size_t>(session.cells()[slot])];
    EXPECT_EQ(cell.position, session.positions()[slot]) << "slot " << slot;
    tokens.push_back(cell.token);
  }
  return tokens;
}

TEST(LlamaCppEngine, LearnsTheCacheFromItsFirstDecode) {
  Fixture f;
  EXPECT_EQ(f.engine.shape(),
            (CacheShape{.num_layers = 4, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4}));
  EXPECT_EQ(f.llama.num_used(), 0U) << "the probe is cleared away";
}

// As a warm-up leaves it.
TEST(LlamaCppEngine, TakesAContextThatHoldsTokens) {
  Hook hook;
  FakeLlama llama({}, hook);
  const Tokens tokens = numbered(8);
  llama.decode(tokens, 0, 0, true);
  const Engine engine(FakeHost{&llama}, hook);
  EXPECT_EQ(llama.num_used(), 0U);
}

TEST(LlamaCppEngine, FindsTheCacheBehindAConvertedCopy) {
  Fixture f({.converts_keys = true});
  EXPECT_EQ(f.engine.layer(3).layer, 3U);
}

TEST(LlamaCppEngine, RefusesWithASentence) {
  const auto refused = [](const FakeLlama::Options& options, std::string_view part) {
    return refuses([&] { Fixture f(options); }, {"llama_cpp::Engine", part});
  };
  EXPECT_TRUE(refused({.has_hook = false}, "attention nodes = 0 must be one for each layer, 4"));
  EXPECT_TRUE(refused({.refusal = "recurrent models"}, "recurrent models"));
  EXPECT_TRUE(refused({.on_host = false}, "layer = 0 must have its cache in host memory"));
  EXPECT_TRUE(refused({.storage = Storage::kOther}, "layer = 0 must store K and V as"));
  EXPECT_TRUE(refused({.max_bias = 8.0F}, "ALiBi"));
  EXPECT_TRUE(refused({.latent = true}, "layer = 0 must have a cache of V: models with latent"));
  EXPECT_TRUE(refused({.result = -3}, "llama_decode = -3"));
}

// Base 100 and two pairs: frequencies 1 and 100^(-1/2).
TEST(LlamaCppEngine, ReadsTheRotaryEmbeddingFromTheGraph) {
  Fixture f({.has_rope = true});
  EXPECT_EQ(f.engine.rotary().pairing, RotaryPairing::kInterleaved);
  EXPECT_DOUBLE_EQ(f.engine.rotary().attention_scaling, 1.0);
  ASSERT_EQ(f.engine.rotary().num_pairs(), 2U);
  EXPECT_DOUBLE_EQ(f.engine.rotary().inv_freq[0], 1.0);
  EXPECT_DOUBLE_EQ(f.engine.rotary().inv_freq[1], 0.1);
  Fixture halves({.has_rope = true, .rope_params = FakeLlama::rope_parameters(2)});
  EXPECT_EQ(halves.engine.rotary().pairing, RotaryPairing::kHalf);
}

// Linear scaling halves every frequency; factors divide them one by one: base 100 gives 1 / 2 and
// 0.1 / 4 where the fake, which knows nothing of either, would be caught.
TEST(LlamaCppEngine, ReadsScaledFrequencies) {
  Fixture linear(
      {.has_rope = true, .rope_params = FakeLlama::rope_parameters(0, 0.5F), .turns_by = 0.5});
  EXPECT_DOUBLE_EQ(linear.engine.rotary().inv_freq[1], 0.05);
  Fixture factors({.has_rope = true, .rope_factors = {4.0F, 4.0F}, .turns_by = 0.25});
  EXPECT_DOUBLE_EQ(factors.engine.rotary().inv_freq[0], 0.25);
  EXPECT_DOUBLE_EQ(factors.engine.rotary().inv_freq[1], 0.025);
}

// YaRN at a quarter of the frequencies, trained on 8 positions, turns 1 and 0.0625 over them:
// channels 4 ln(8 / 2 pi) / 2 ln 100 = 0.10 and 4 ln(8 / 0.0625 / 2 pi) / 2 ln 100 = 1.31, so the
// ramp goes from 0 to 2. Pair 0 keeps its frequency, pair 1 lies in the middle:
// 0.1 (0.5 / 4 + 0.5). Scaling 1 + 0.1 ln 4.
TEST(LlamaCppEngine, ReadsYarn) {
  FakeTensor rope;
  rope.op = FakeGgml::kRope;
  const auto params = FakeLlama::rope_parameters(2, 0.25F, 1.0F, 1.0F, 8);
  std::copy(params.begin(), params.end(), rope.op_params.begin());
  rope.set_param(9, 1.0F);
  rope.set_param(10, 0.0625F);
  const auto reading = llama_cpp::nodes::read_rope<FakeGgml>(rope);
  EXPECT_EQ(reading.problem, "");
  EXPECT_DOUBLE_EQ(reading.rotary.inv_freq[0], 1.0);
  EXPECT_NEAR(reading.rotary.inv_freq[1], 0.0625, 1e-12);
  EXPECT_NEAR(reading.rotary.attention_scaling, 1.1386294, 1e-7);
}

// Other policies may run; those that ask for it get a sentence.
TEST(LlamaCppEngine, SaysWhyTheRotaryEmbeddingIsNotKnown) {
  const auto refused = [](const FakeLlama::Options& options, std::string_view part) {
    Fixture f(options);
    EXPECT_FALSE(f.engine.has_rotary());
    return refuses([&] { static_cast<void>(f.engine.rotary()); }, {"llama_cpp::Engine", part});
  };
  EXPECT_TRUE(refused({}, "as a rotary embedding left them"));
  EXPECT_TRUE(refused({.has_rope = true, .multiplies_queries = true}, "is K quantised?"));
  EXPECT_TRUE(refused({.has_rope = true, .rope_params = FakeLlama::rope_parameters(8)}, "M-RoPE"));
  EXPECT_TRUE(refused({.storage = Storage::kBF16, .has_rope = true}, "K cannot be moved"));
  EXPECT_TRUE(refused({.can_shift = false, .has_rope = true}, "K cannot be moved"));
  EXPECT_TRUE(refused({.has_rope = true, .turns_by = 1.01}, "not what its parameters say"));
  EXPECT_TRUE(refused({.has_rope = true, .attention_scaling = 1.1}, "not what its parameters say"));
}

TEST(LlamaCppHook, SaysNothingOfGraphsThatNobodyListensTo) {
  Fixture f;
  f.llama.warm_up();
  EXPECT_TRUE(f.llama.attended.empty());
}

// The whole prompt goes in calls of at most one ubatch; only the very last token has logits.
TEST(LlamaCppSession, NeverExceedsABatch) {
  Fixture f({.max_batch = 8, .max_ubatch = 16});
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(20));
  session.decode(7);
  EXPECT_EQ(f.llama.calls, (Calls{{0, 8, false}, {8, 8, false}, {16, 4, true}, {20, 1, true}}));
}

// 20 tokens by 8 would leave 4 for the last call, fewer than the window of 6.
TEST(LlamaCppSession, KeepsTheObservationWindowInOneCall) {
  Fixture f({.max_ubatch = 8});
  Session<SnapKV> session(f.engine,
                          SnapKV({.budget = 10, .observation_window = 6}, f.engine.shape()),
                          {.last_call = 6});
  session.prompt(numbered(20));
  EXPECT_EQ(f.llama.calls, (Calls{{0, 8, false}, {8, 6, false}, {14, 6, true}}));
  EXPECT_EQ(f.llama.attended, (std::vector<std::size_t>{0, 1, 2, 3})) << "in the last call alone";
  EXPECT_EQ(session.num_live(), 10U);
  EXPECT_EQ(session.policy().counters().missing_signals, 0U);
}

TEST(LlamaCppSession, AsksForNothingThatThePolicyDoesNotRead) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 6));
  session.prompt(numbered(20));
  EXPECT_TRUE(f.llama.attended.empty());
}

// The engine's graph stops behind every node that is wanted, and its threads with it, which costs
// much on a busy machine: nothing is wanted that is not read, and a single layer is one stop.
TEST(LlamaCppSession, StopsTheGraphOnlyWhereAPolicyReads) {
  const auto stops = [](auto make, const llama_cpp::SessionOptions& options) {
    Fixture f;
    auto policy = make(f.engine.shape());
    Session<decltype(policy)> session(f.engine, policy, options);
    session.prompt(numbered(20));
    std::vector<std::size_t> wanted;
    for (Token token = 20; token < 24; ++token) {
      f.llama.num_wanted = 0;
      session.decode(token);
      wanted.push_back(f.llama.num_wanted);
    }
    return wanted;
  };
  const auto each_step = [](std::size_t count) { return std::vector<std::size_t>(4, count); };
  const auto tova = [](const CacheShape& shape) { return TOVA({.budget = 50}, shape); };
  const auto snapkv = [](const CacheShape& shape) { return SnapKV({.budget = 50}, shape); };
  const auto lazy = [](const CacheShape& shape) {
    return InertiaKV({.budget = 50, .refresh_interval = 4}, shape);
  };
  const auto score_free = [](const CacheShape& shape) {
    return InertiaKV({.budget = 50, .score_free = true}, shape);
  };
  EXPECT_EQ(stops(snapkv, {}), each_step(0)) << "it reads prompts alone";
  EXPECT_EQ(stops(tova, {}), each_step(4));
  EXPECT_EQ(stops(lazy, {}), (std::vector<std::size_t>{4, 0, 0, 0}));
  EXPECT_EQ(stops(score_free, {}), (std::vector<std::size_t>{4, 0, 0, 0})) << "behind the prompt";
  EXPECT_EQ(stops(tova, {.granularity = {.lane_reduce = ScoreReduce::kSum, .layers = {2}},
                         .skip_layers_without_say = true}),
            each_step(1));
}

// Attention nodes have no names of their own ("node_21"): the cache behind K says the layer.
TEST(LlamaCppEngine, KnowsLayersOfNodesWithoutNames) {
  FakeTensor q;
  FakeTensor cache;
  cache.set_name("cache_k_l", 2);
  cache.nb[1] = 32;
  FakeTensor values = cache;
  values.set_name("cache_v_l", 2);
  FakeTensor k;
  k.view_src = &cache;
  FakeTensor v;
  v.view_src = &values;
  FakeTensor node;
  node.op = FakeGgml::kFlashAttention;
  node.set_name("node_", 0);
  node.src = {&q, &k, &v};
  EXPECT_EQ(llama_cpp::nodes::read_attention<FakeGgml>(node)->layer, 2U);
  EXPECT_TRUE(llama_cpp::nodes::read_attention<FakeGgml>(node)->queries.sink_logits.empty());
  FakeTensor sinks;
  float logits[] = {0.5F};
  sinks.data = logits;
  node.src[4] = &sinks;
  node.set_param(0, 0.125F);
  node.set_param(2, 30.0F);
  const auto queries = llama_cpp::nodes::read_attention<FakeGgml>(node)->queries;
  EXPECT_EQ(queries.scale, 0.125F);
  EXPECT_EQ(queries.soft_cap, 30.0F);
  EXPECT_EQ(queries.sink_logits.data(), logits);
  EXPECT_EQ(queries.sink_logits.size(), 1U) << "one for each query head";
  cache.set_name("cache_k_m", 2);
  EXPECT_FALSE(llama_cpp::nodes::read_attention<FakeGgml>(node)) << "not a cache that is known";
}

TEST(LlamaCppSession, LeavesLayersWithoutASayAloneOnRequest) {
  Fixture f;
  Session<SnapKV> session(f.engine,
                          SnapKV({.budget = 10, .observation_window = 6}, f.engine.shape()),
                          {.skip_layers_without_say = true});
  session.prompt(numbered(20));
  EXPECT_EQ(f.llama.attended, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(session.num_live(), 10U);
}

// Sinks 0, 1 and the last 3 of 12 stay: [2, 9) is one removal. Of 14 then, 9 and 10 are another
// one, and the gap before them costs nothing.
TEST(LlamaCppSession, RemovesARunAtOnce) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3), {.compact = false});
  session.prompt(numbered(12));
  EXPECT_EQ(f.llama.removals, (Runs{{2, 9}}));
  session.prompt(Tokens{12, 13});
  EXPECT_EQ(f.llama.removals, (Runs{{2, 9}, {9, 11}}));
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 11, 12, 13}));
  EXPECT_EQ(session.counters().evicted, 9U);
}

// Freed cells are filled first, so the order of the cells is not that of the text; the policy sees
// the text's.
TEST(LlamaCppSession, FollowsTokensIntoFreedCells) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3), {.compact = false});
  session.prompt(numbered(12));
  session.decode(50);
  session.decode(51);
  const auto cells = session.cells();
  EXPECT_EQ(std::vector<std::int32_t>(cells.begin(), cells.end()),
            (std::vector<std::int32_t>{0, 1, 11, 2, 3}));
  const Tokens tokens = live_tokens(session, f.llama);
  EXPECT_EQ(tokens, (Tokens{0, 1, 11, 50, 51}));
  const auto view = session.view();
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const Lane lane = view.lane(layer, 1);
    ASSERT_EQ(lane.seq_len, 5U);
    for (std::size_t slot = 0; slot < 5; ++slot) {
      float row[4];
      std::memcpy(row, lane.keys.row(slot), sizeof(row));
      for (std::size_t c = 0; c < 4; ++c)
        EXPECT_EQ(row[c], FakeLlama::key(tokens[slot], layer, 1, c));
    }
  }
}

// One needle and one comma, and room for one of them: the lower layers shout for the comma.
TEST(LlamaCppSession, LayersWithASayDecide) {
  const auto kept = [](const Granularity& granularity) {
    Fixture f;
    Session<SnapKV> session(
        f.engine,
        SnapKV({.budget = 5, .observation_window = 4, .pooling = {.kernel_size = 1}},
               f.engine.shape()),
        {.granularity = granularity});
    Tokens prompt = numbered(20);
    prompt[5] = FakeLlama::kComma;
    prompt[9] = FakeLlama::kNeedle;
    session.prompt(prompt);
    EXPECT_EQ(session.num_live(), 5U);
    return live_tokens(session, f.llama)[0];
  };
  EXPECT_EQ(kept({.lane_reduce = ScoreReduce::kSum}), FakeLlama::kNeedle);
  EXPECT_EQ(kept({.lane_reduce = ScoreReduce::kSum, .layers = {0, 1, 2, 3}}), FakeLlama::kComma);
  EXPECT_EQ(kept({.lane_reduce = ScoreReduce::kSum, .layers = {3}}), FakeLlama::kNeedle);
}

// Keys are read after the call, and stay what attention saw of them.
TEST(LlamaCppSession, ServesPoliciesThatReadKeys) {
  Fixture f;
  Session<Knorm> session(f.engine, Knorm({.budget = 12, .recent_window = 1}, f.engine.shape()));
  Tokens prompt = numbered(20);
  prompt[9] = FakeLlama::kNeedle;  // a long key
  session.prompt(prompt);
  const Tokens tokens = live_tokens(session, f.llama);
  EXPECT_EQ(tokens.size(), 12U);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), FakeLlama::kNeedle), 0);
}

TEST(LlamaCppSession, ReadsTheLastRowOfEachStep) {
  Fixture f;
  // The newest stays as the engine has it anyway: beside the needle all keys score alike here.
  Session<TOVA> session(f.engine, TOVA({.budget = 8, .protect_newest = true}, f.engine.shape()));
  Tokens prompt = numbered(20);
  prompt[3] = FakeLlama::kNeedle;
  session.prompt(prompt);
  for (llama_cpp::Token token = 30; token < 40; ++token)
    session.decode(token);
  EXPECT_EQ(session.num_live(), 8U);
  const Tokens tokens = live_tokens(session, f.llama);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), FakeLlama::kNeedle), 1);
  EXPECT_EQ(session.policy().counters().missing_signals, 0U);
}

// A random policy without protection would sooner or later evict the newest token, behind which
// the engine takes no other.
TEST(LlamaCppSession, NeverEvictsTheNewestToken) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Fixture f;
    Session<RandomEviction> session(
        f.engine, RandomEviction({.budget = 4, .seed = seed, .shared = true}, f.engine.shape()));
    session.prompt(numbered(20));
    for (llama_cpp::Token token = 20; token < 60; ++token) {
      session.decode(token);
      EXPECT_EQ(live_tokens(session, f.llama).back(), token);
      EXPECT_LE(session.num_live(), 5U);
    }
  }
}

// 30 cells and a prompt of 100: chunks with eviction between them, though the policy does not know
// of the cache's size and would have waited.
TEST(LlamaCppSession, ReadsPromptsThatAreLongerThanTheCache) {
  Fixture f({.num_cells = 30, .max_ubatch = 16});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 18));
  session.prompt(numbered(100));
  EXPECT_EQ(session.num_live(), 20U);
  EXPECT_EQ(session.counters().forced, 0U) << "it cuts between the calls by itself";
  EXPECT_EQ(live_tokens(session, f.llama).back(), 99);
  EXPECT_LE(f.llama.num_used(), 30U);
}

// It has no scores before the prompt's end; the cut that the cache's size forces goes by nothing,
// but what comes after it is scored. Calls of 16, 16, 16, 16, 16, 15 and 4 tokens, before all of
// which but the first and the last 30 cells are too few.
TEST(LlamaCppSession, CutsLongPromptsForPoliciesThatWaitForTheEnd) {
  Fixture f({.num_cells = 30, .max_ubatch = 16});
  Session<SnapKV> session(
      f.engine,
      SnapKV({.budget = 8, .observation_window = 4, .pooling = {.kernel_size = 1}},
             f.engine.shape()),
      {.last_call = 4});
  Tokens prompt = numbered(99);
  prompt[90] = FakeLlama::kNeedle;
  session.prompt(prompt);
  EXPECT_EQ(session.counters().forced, 5U);
  const Tokens tokens = live_tokens(session, f.llama);
  EXPECT_EQ(tokens.size(), 8U);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), FakeLlama::kNeedle), 1);
  EXPECT_EQ(tokens.back(), 98);
}

TEST(LlamaCppSession, EvictsAndRetriesWhenTheEngineIsFull) {
  Fixture f({.num_cells = 30});
  Session<FullKV> other(f.engine, FullKV({}, f.engine.shape()), {}, 1);
  other.prompt(numbered(10));
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 4), {.cut_interval = 1000});
  session.prompt(numbered(6));
  for (llama_cpp::Token token = 6; token < 30; ++token)
    session.decode(token);
  EXPECT_EQ(session.counters().full, 1U) << "20 cells are left to it";
  EXPECT_EQ(session.counters().forced, 1U);
  EXPECT_EQ(live_tokens(session, f.llama).back(), 29);
}

TEST(LlamaCppSession, SaysSoWhenNothingComesFree) {
  Fixture f({.num_cells = 16});
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(16));
  EXPECT_THROW(session.decode(16), EngineError);
  EXPECT_EQ(session.num_live(), 16U);
  EXPECT_EQ(session.policy().length(), 16U) << "the policy has not heard of the token";
}

TEST(LlamaCppSession, ReportsOtherReturnCodes) {
  Fixture f;
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(4));
  f.llama.options.result = -3;
  EXPECT_THROW(session.decode(4), EngineError);
  session.decode(4);
  EXPECT_EQ(live_tokens(session, f.llama), numbered(5));
}

// The engine takes no gap and no position twice.
TEST(LlamaCppSession, SaysWhyASequenceThatOthersChangedStops) {
  Fixture f;
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(4));
  const Token token = 4;
  f.llama.decode({&token, 1}, 4, 0, true);
  try {
    session.decode(5);
    ADD_FAILURE() << "position 4 is taken";
  } catch (const EngineError& error) {
    EXPECT_NE(std::string(error.what()).find("outside of its session"), std::string::npos);
  }
}

// An empty sequence may begin anywhere, so the engine would not mind.
TEST(LlamaCppSession, SaysSoWhenTheMemoryWasCleared) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 0, 3), {.compact = false});
  session.prompt(numbered(12));  // in cells 9 to 11 what stays: cell 0 would be a new one
  f.llama.clear();
  EXPECT_THROW(session.decode(12), EngineError);
  EXPECT_EQ(f.llama.num_used(), 0U) << "nothing was written";
  session.reset();
  session.prompt(numbered(3));
  EXPECT_EQ(live_tokens(session, f.llama), numbered(3));
}

// A call that was stopped in its middle has written its tokens: they go again, here and there.
TEST(LlamaCppSession, TakesBackWhatAFailedCallWrote) {
  Fixture f;
  Session<TOVA> session(f.engine, TOVA({.budget = 20}, f.engine.shape()));
  session.prompt(numbered(4));
  f.llama.options.late_result = 2;
  EXPECT_THROW(session.decode(4), EngineError);
  EXPECT_EQ(live_tokens(session, f.llama), numbered(4));
  EXPECT_EQ(f.llama.num_used(), 4U);
  EXPECT_EQ(session.policy().length(), 4U);
  session.decode(4);
  EXPECT_EQ(live_tokens(session, f.llama), numbered(5));
}

// Calls of 8, 8 and 4 tokens behind a prompt of 4, of which each fails once: the same tokens fed
// again end as if nothing had happened, and what was pinned stays, in the place of the sinks.
TEST(LlamaCppSession, FeedsTheRestOfAPromptBehindAnError) {
  const std::vector<PositionSpan> pinned{{6, 8}};
  const Tokens tokens = numbered(24);
  const auto first = std::span(tokens).first(4);
  const auto prompt = std::span(tokens).subspan(4);
  for (std::size_t failing = 0; failing < 3; ++failing) {
    Fixture f({.max_ubatch = 8});
    Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
    session.prompt(first);
    session.begin_prompt(20, pinned);
    session.feed(prompt.first(8 * failing));
    f.llama.options.late_result = 2;
    EXPECT_THROW(session.feed(prompt.subspan(8 * failing)), EngineError);
    EXPECT_EQ(session.policy().length(), 4 + 8 * failing);
    session.feed(std::span(tokens).subspan(session.policy().length()));
    session.end_prompt();
    EXPECT_EQ(live_tokens(session, f.llama), (Tokens{6, 7, 21, 22, 23})) << failing;
  }
}

// Failed in its first call or a later one, or for want of cells before anything was written: the
// next prompt stands in its place.
TEST(LlamaCppSession, GivesUpAPromptBehindAnError) {
  const auto go_on = [](auto fail) {
    Fixture f({.num_cells = 32, .max_ubatch = 8});
    Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
    session.prompt(numbered(4));
    fail(f, session);
    session.truncate(4);
    session.decode(50);
    session.prompt(Tokens{51, 52});
    EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 2, 3, 50, 51, 52}));
    EXPECT_EQ(session.policy().length(), 7U);
  };
  go_on([](Fixture& f, Session<FullKV>& session) {
    f.llama.options.late_result = 2;
    EXPECT_THROW(session.prompt(numbered(20)), EngineError);
  });
  go_on([](Fixture& f, Session<FullKV>& session) {
    f.llama.options.result = -3;
    EXPECT_THROW(session.prompt(numbered(20)), EngineError);
  });
  go_on([](Fixture& /*f*/, Session<FullKV>& session) {
    EXPECT_THROW(session.prompt(numbered(40)), EngineError);
  });
}

// Cells are read from the first ubatch of a call, so there must be no other.
TEST(LlamaCppSession, SaysSoWhenACallIsSplit) {
  Fixture f({.splits_by = 8});
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(8));
  const Tokens more = numbered(9);
  try {
    session.feed(more);
    ADD_FAILURE() << "the ninth is in a cell that nobody heard of";
  } catch (const EngineError& error) {
    EXPECT_NE(std::string(error.what()).find("write 9 cells and wrote 8"), std::string::npos);
  }
  EXPECT_EQ(live_tokens(session, f.llama), numbered(8));
  EXPECT_EQ(f.llama.num_used(), 8U);
}

// The next token is not where it belongs behind cells that were renumbered: nor are they.
TEST(LlamaCppSession, SaysSoWhenAStateGoesToOtherCells) {
  Fixture f({.state_skips = 1});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(40));
  ASSERT_EQ(session.counters().compactions, 1U);
  EXPECT_THROW(session.decode(40), EngineError);
}

TEST(LlamaCppSession, ReportsARefusedRemoval) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  f.llama.options.refuses_removal = true;
  EXPECT_THROW(session.prompt(numbered(12)), EngineError);
}

// 5 of 40 cells live and one of them is the last: they move to the front in the order of their
// cells, and the next token goes right behind them.
TEST(LlamaCppSession, CompactsByTheStateRoundTrip) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(40));
  EXPECT_EQ(session.counters().compactions, 1U);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 37, 38, 39}));
  EXPECT_EQ(*std::max_element(session.cells().begin(), session.cells().end()), 4);
  for (llama_cpp::Token token = 40; token < 60; ++token)
    session.decode(token);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 57, 58, 59}));
}

// A fork may take the cell behind those of a sequence that was compacted while it was alone.
TEST(LlamaCppSession, AForkMayTakeTheCellBehindACompactedSequence) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(40));
  ASSERT_EQ(session.counters().compactions, 1U);
  auto fork = session.fork(1);
  fork.decode(77);
  session.decode(40);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 38, 39, 40}));
  EXPECT_EQ(live_tokens(fork, f.llama), (Tokens{0, 1, 38, 39, 77}));
}

TEST(LlamaCppSession, DoesNotCompactCellsThatOthersShare) {
  Fixture f;
  Session<FullKV> other(f.engine, FullKV({}, f.engine.shape()), {}, 1);
  other.prompt(numbered(3));
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(40));
  EXPECT_FALSE(session.compact());
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 37, 38, 39}));
  EXPECT_EQ(live_tokens(other, f.llama), numbered(3));
}

// Without kv_unified each sequence has cells of its own, numbered through.
TEST(LlamaCppSession, KnowsCellsOfASecondStream) {
  Fixture f({.num_cells = 64, .num_streams = 2});
  Session<FullKV> first(f.engine, FullKV({}, f.engine.shape()), {}, 0);
  Session<StreamingLLM> second(f.engine, streaming(f.engine, 2, 3), {}, 1);
  first.prompt(numbered(8));
  second.prompt(numbered(20));
  second.decode(20);
  EXPECT_EQ(second.counters().compactions, 1U);
  EXPECT_EQ(live_tokens(second, f.llama), (Tokens{0, 1, 18, 19, 20}));
  EXPECT_GE(*std::min_element(second.cells().begin(), second.cells().end()), 32);
  EXPECT_TRUE(refuses([&] { static_cast<void>(first.fork(1)); }, {"kv_unified"}));
}

TEST(LlamaCppSession, ForksShareAPrefix) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(10));
  {
    Session<StreamingLLM> fork = session.fork(1);
    EXPECT_EQ(f.llama.num_used(), 10U);
    fork.decode(77);  // and 2 goes, here alone
    session.decode(66);
    session.decode(67);
    EXPECT_EQ(live_tokens(fork, f.llama), (Tokens{0, 1, 3, 4, 5, 6, 7, 8, 9, 77}));
    EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 4, 5, 6, 7, 8, 9, 66, 67}));
    EXPECT_EQ(f.llama.num_used(), 9U + 1U + 2U) << "2 is free, 3 is not";
    fork.reset();
  }
  EXPECT_EQ(f.llama.num_used(), 10U);
}

// The newest cell of the fork lies behind the compacted ones; nothing of it is left in the way when
// the fork is gone, though nobody said reset.
TEST(LlamaCppSession, ASessionThatGoesTakesItsTokensWithIt) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(40));
  ASSERT_EQ(session.counters().compactions, 1U);
  {
    auto fork = session.fork(1);
    fork.decode(77);
  }
  session.decode(40);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 38, 39, 40}));
  EXPECT_EQ(f.llama.num_used(), 5U);
}

TEST(LlamaCppSession, FollowsASessionThatWasNotReset) {
  Fixture f;
  {
    Session<FullKV> first(f.engine, FullKV({}, f.engine.shape()));
    first.prompt(numbered(4));
  }
  // With all options given, nothing is asked of the engine before.
  Session<FullKV> second(f.engine, FullKV({}, f.engine.shape()), {.max_distance = 100});
  second.prompt(numbered(3));
  EXPECT_EQ(live_tokens(second, f.llama), numbered(3));
  EXPECT_EQ(f.llama.num_used(), 3U);
}

// As where llama_free stands at the end of main, and the session in it.
TEST(LlamaCppSession, TouchesNoContextWhenItGoes) {
  Fixture f;
  {
    Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
    session.prompt(numbered(4));
    f.llama.removals.clear();
  }
  EXPECT_TRUE(f.llama.removals.empty());
}

TEST(LlamaCppSession, RefusesSequencesOfOtherSessions) {
  Fixture f;
  Session<FullKV> first(f.engine, FullKV({}, f.engine.shape()));
  Session<FullKV> second(f.engine, FullKV({}, f.engine.shape()), {}, 1);
  first.prompt(numbered(4));
  second.prompt(Tokens{7, 8});
  const std::initializer_list<std::string_view> parts = {"llama_cpp::Session", "sequence = 1",
                                                         "another session"};
  EXPECT_TRUE(refuses([&] { static_cast<void>(first.fork(1)); }, parts));
  EXPECT_TRUE(refuses([&] { Session<FullKV> third(f.engine, FullKV({}, f.engine.shape()), {}, 1); },
                      parts));
  EXPECT_TRUE(refuses([&] { static_cast<void>(first.fork(0)); }, {"sequence = 0"}));
  EXPECT_EQ(live_tokens(second, f.llama), (Tokens{7, 8})) << "nothing has changed";
  Fixture streams({.num_streams = 2});
  Session<FullKV> here(streams.engine, FullKV({}, streams.engine.shape()));
  Session<FullKV> there(streams.engine, FullKV({}, streams.engine.shape()), {}, 1);
  here.prompt(numbered(4));
  there.prompt(numbered(3));
  EXPECT_TRUE(refuses([&] { auto moved = here.hand_over(streams.engine, 1); }, parts));
  EXPECT_TRUE(refuses([&] { auto moved = here.hand_over(streams.engine, 0); }, {"sequence = 0"}));
  EXPECT_EQ(live_tokens(here, streams.llama), numbered(4));
  EXPECT_EQ(live_tokens(there, streams.llama), numbered(3));
}

TEST(LlamaCppSession, RefusesToShareThePromptOfAnotherContext) {
  Fixture f;
  Fixture elsewhere;
  Session<FullKV> base(elsewhere.engine, FullKV({}, elsewhere.engine.shape()), {}, 1);
  base.begin_prompt(4);
  base.feed(numbered(4));
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.begin_prompt(6);
  EXPECT_TRUE(refuses([&] { session.share_prompt(base); }, {"share_prompt", "another engine"}));
}

// What a program did there before goes.
TEST(LlamaCppSession, ForksIntoAnEmptySequence) {
  Fixture f;
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(4));
  const Tokens others{50, 51};
  f.llama.decode(others, 0, 1, true);
  auto fork = session.fork(1);
  EXPECT_EQ(f.llama.num_used(), 4U);
  fork.decode(77);
  EXPECT_EQ(live_tokens(fork, f.llama), (Tokens{0, 1, 2, 3, 77}));
}

// The prompt's start is read once; what the end looks at decides as if the policy had read it all.
TEST(LlamaCppSession, SharesAPromptBetweenPolicies) {
  Fixture f;
  Tokens prompt = numbered(20);
  prompt[9] = FakeLlama::kNeedle;
  Session<FullKV> base(f.engine, FullKV({}, f.engine.shape()));
  base.begin_prompt(14);
  base.feed(std::span(prompt).first(14));
  Session<SnapKV> session(
      f.engine,
      SnapKV({.budget = 5, .observation_window = 4, .pooling = {.kernel_size = 1}},
             f.engine.shape()),
      {}, 1);
  session.begin_prompt(20);
  session.share_prompt(base);
  session.feed(std::span(prompt).subspan(14));
  session.end_prompt();
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{FakeLlama::kNeedle, 16, 17, 18, 19}));
  EXPECT_EQ(base.num_live(), 14U);
  EXPECT_EQ(f.llama.num_used(), 18U);
}

TEST(LlamaCppSession, TruncatesAndGoesOn) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 6));
  session.prompt(numbered(12));
  session.truncate(10);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 6, 7, 8, 9}));
  session.decode(55);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 6, 7, 8, 9, 55}));
  session.truncate(4);  // in a gap: the engine goes on behind what is left
  session.decode(56);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 56}));
  session.reset();
  EXPECT_EQ(f.llama.num_used(), 0U);
  session.prompt(numbered(3));
  EXPECT_EQ(live_tokens(session, f.llama), numbered(3));
}

// Sinks that fall behind by more than 20 positions are moved up, and the text goes on as before.
TEST(LlamaCppSession, MovesTheOldBlockUp) {
  Fixture f({.trained_context = 40});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(12));
  for (llama_cpp::Token token = 12; token < 90; ++token) {
    session.decode(token);
    EXPECT_LE(session.positions().back() - session.positions().front(), 20);
  }
  EXPECT_GT(session.counters().shifts, 0U);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 82, 83, 84, 85, 86, 87, 88, 89}));
}

// The engine turns moved keys in its next call; a state that is written out before has them
// unturned, which the fake would say. A short second prompt is one call, behind which the old block
// is too far away and the cut compacts.
TEST(LlamaCppSession, WritesNoStateWhileKeysAreToBeTurned) {
  Fixture f({.trained_context = 40});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(18));
  session.prompt(numbered(15));
  session.decode(50);
  session.decode(51);
  EXPECT_EQ(session.counters().compactions, 1U);
  EXPECT_GT(session.counters().shifts, 0U);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 9, 10, 11, 12, 13, 14, 50, 51}));
  EXPECT_EQ(session.positions().back(), 34);
}

TEST(LlamaCppSession, HandsOverBehindATruncationIntoAGap) {
  Fixture large;
  Fixture small({.num_cells = 16});
  Session<StreamingLLM> session(large.engine, streaming(large.engine, 2, 6));
  session.prompt(numbered(12));
  session.truncate(5);
  Session<StreamingLLM> moved = session.hand_over(small.engine);
  moved.decode(55);
  EXPECT_EQ(live_tokens(moved, small.llama), (Tokens{0, 1, 55}));
  EXPECT_EQ(moved.positions()[2], 5) << "the text's";
}

// Of 12 tokens 0, 1 and the last 3 stay. Both truncations end in the gap behind 1, the second with
// nothing more to forget.
TEST(LlamaCppSession, TruncatesTwiceIntoTheSameGap) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(12));
  session.truncate(7);
  session.truncate(5);
  session.decode(55);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 55}));
  EXPECT_EQ(session.positions()[2], 5);
}

// A prompt may not start from what is left of a text: where it goes on would not be known.
TEST(LlamaCppSession, StartsFromNothingThatWasTruncatedIntoAGap) {
  Fixture f;
  llama_cpp::SavedCache saved;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(12));
  session.truncate(7);  // 0 and 1 at their first positions, and 5 tokens that are gone
  session.save(saved);
  session.reset();
  session.begin_prompt(12);
  EXPECT_TRUE(
      refuses([&] { session.load_prompt(saved); }, {"length of the prompt = 7", "2: none"}));
}

// Keys of other types than f16 and f32, or of M-RoPE: what falls behind stays there.
TEST(LlamaCppSession, MovesNothingUpThatCannotBeTurned) {
  EXPECT_TRUE(Fixture({.storage = Storage::kF16}).engine.can_shift());
  EXPECT_FALSE(Fixture({.storage = Storage::kBF16}).engine.can_shift());
  EXPECT_FALSE(Fixture({.storage = Storage::kQ8_0}).engine.can_shift());
  Fixture f({.trained_context = 40, .can_shift = false});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(12));
  for (Token token = 12; token < 60; ++token)
    session.decode(token);
  EXPECT_EQ(session.counters().shifts, 0U);
  EXPECT_EQ(session.positions().front(), 0);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 52, 53, 54, 55, 56, 57, 58, 59}));
}

// 2 and 3 are gone, so the engine goes on behind 1, and the policy's positions are the text's.
TEST(LlamaCppSession, GoesOnBehindAGapWhereNothingCanBeMoved) {
  Fixture f({.storage = Storage::kBF16});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 6));
  session.prompt(numbered(12));
  session.truncate(5);
  session.decode(55);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 55}));
  EXPECT_EQ(session.positions()[2], 2);
  EXPECT_EQ(session.policy().length(), 6U);
}

// The graph that turns keys runs inside the next llama_decode, and its nodes are asked for too.
TEST(LlamaCppSession, WantsNothingOfTheGraphThatMovesABlock) {
  Fixture f({.trained_context = 40});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(12));
  for (Token token = 12; token < 60; ++token)
    session.decode(token);
  EXPECT_GT(session.counters().shifts, 0U);
  EXPECT_EQ(f.llama.num_wanted, 0U);
}

// A cell has one position: moving it up for one sequence would move it for the other.
TEST(LlamaCppSession, MovesNothingUpThatOthersShare) {
  Fixture f({.trained_context = 40});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 8));
  session.prompt(numbered(12));
  auto fork = session.fork(1);
  for (llama_cpp::Token token = 12; token < 60; ++token)
    session.decode(token);
  fork.decode(99);
  EXPECT_EQ(session.counters().shifts, 0U);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 52, 53, 54, 55, 56, 57, 58, 59}));
  EXPECT_EQ(live_tokens(fork, f.llama), (Tokens{0, 1, 5, 6, 7, 8, 9, 10, 11, 99}));
}

/// Throws out of the engine's callback.
struct Thrower final : llama_cpp::Listener {
  void on_cells(std::span<const std::int64_t> /*cells*/) override {}
  bool wants_attention(const llama_cpp::AttentionNode& /*node*/) override { return true; }
  void on_attention(const llama_cpp::AttentionNode& /*node*/) override {
    throw std::runtime_error("from a listener");
  }
  bool wants_hidden(std::size_t /*layer*/) override { return false; }
  void on_hidden(std::size_t /*layer*/, const HiddenRows& /*rows*/) override {}
};

TEST(LlamaCppHook, CarriesExceptionsAroundTheEngine) {
  Fixture f;
  Thrower thrower;
  const Tokens token{1};
  EXPECT_THROW(f.hook.listen(thrower, [&] { return f.llama.decode(token, 0, 0, true); }),
               std::runtime_error);
  EXPECT_EQ(f.llama.attended.size(), 1U) << "and nothing is asked for after it";
}

/// Counts rows of hidden states by layer.
struct HiddenCounter final : llama_cpp::Listener {
  void on_cells(std::span<const std::int64_t> /*cells*/) override {}
  bool wants_attention(const llama_cpp::AttentionNode& /*node*/) override { return false; }
  void on_attention(const llama_cpp::AttentionNode& /*node*/) override {}
  bool wants_hidden(std::size_t layer) override { return layer >= 2; }
  void on_hidden(std::size_t layer, const HiddenRows& rows) override {
    seen.emplace_back(layer, rows.num_rows);
    EXPECT_EQ(rows.hidden_size, FakeLlama::kHidden);
  }
  std::vector<std::pair<std::size_t, std::size_t>> seen;
};

// The last layer only has rows that lead to logits: one, or none at all.
TEST(LlamaCppHook, PassesHiddenStatesThatAreThere) {
  Fixture f;
  HiddenCounter counter;
  const Tokens tokens = numbered(3);
  f.hook.listen(counter, [&] { return f.llama.decode(tokens, 0, 0, false); });
  f.hook.listen(counter, [&] { return f.llama.decode(tokens, 3, 0, true); });
  EXPECT_EQ(counter.seen,
            (std::vector<std::pair<std::size_t, std::size_t>>{{2, 3}, {2, 3}, {3, 1}}));
}

// EpiKV would run with nothing to go by.
TEST(LlamaCppSession, RefusesPoliciesThatReadHiddenStatesWhereThereAreNone) {
  const auto run = [](const FakeLlama::Options& options) {
    Fixture f(options);
    Session<FullKV>(f.engine, FullKV({}, f.engine.shape())).prompt(numbered(4));
    Session<EpiKV> session(f.engine, EpiKV({.budget = 20}, f.engine.shape()));
    session.prompt(numbered(8));
    EXPECT_EQ(session.policy().counters().missing_signals, 0U);
  };
  const auto parts = {std::string_view("llama_cpp::Session"), std::string_view("l_out-<layer>")};
  EXPECT_NO_THROW(run({}));
  EXPECT_TRUE(refuses([&] { run({.names_hidden = false}); }, parts));
  EXPECT_TRUE(refuses([&] { run({.hidden_on_host = false}); }, parts)) << "on a device";
}

// A pointer into a device's memory is not to be read.
TEST(LlamaCppHook, AsksForNoHiddenStatesOnADevice) {
  Fixture f({.hidden_on_host = false});
  HiddenCounter counter;
  const Tokens tokens = numbered(3);
  f.hook.listen(counter, [&] { return f.llama.decode(tokens, 0, 0, true); });
  EXPECT_TRUE(counter.seen.empty());
}

/// A cache of one layer in blocks of 8 bits: KV head h of cell c holds (c + h) * i / 8.
struct Q8Cache {
  Q8Cache() {
    for (std::size_t cell = 0; cell < 3; ++cell) {
      for (std::size_t head = 0; head < 2; ++head) {
        std::byte* block = bytes + cell * 68 + head * 34;
        const std::uint16_t eighth = 0x3000;  // 2^-3
        std::memcpy(block, &eighth, sizeof(eighth));
        for (std::size_t i = 0; i < 32; ++i)
          block[2 + i] = static_cast<std::byte>((cell + head) * i);
      }
    }
    node.shape = {.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 32};
    node.keys = {bytes, 68, 34, Storage::kQ8_0};
    node.values = node.keys;
  }
  [[nodiscard]] const CacheShape& shape() const noexcept { return node.shape; }
  [[nodiscard]] const llama_cpp::AttentionNode& layer(std::size_t /*layer*/) const noexcept {
    return node;
  }
  std::byte bytes[3 * 68] = {};
  llama_cpp::AttentionNode node;
};

TEST(LlamaCppCacheView, ReadsQuantisedRows) {
  const Q8Cache cache;
  const std::vector<std::int32_t> cells{2, 0};
  const llama_cpp::CacheView<Q8Cache> view(cache, cells);
  const Rows keys = view.lane(0, 1).keys;
  ASSERT_EQ(keys.type, ElementType::kQ8_0);
  EXPECT_TRUE(keys.row_is_contiguous());
  float row[32];
  kernels::best().widen(keys.row(0), keys.type, 32, row);
  EXPECT_EQ(row[31], 3.0F * 31.0F / 8.0F);
  kernels::best().widen(keys.row(1), keys.type, 32, row);
  EXPECT_EQ(row[31], 31.0F / 8.0F);
}

/// Never cuts texts as short as those here.
TriAttention tri_attention(const Engine& engine) {
  return TriAttention({.budget = 1000, .rotary = engine.rotary()}, engine.shape());
}

// Whatever their positions, queries are turned back to what the fake made of every token:
// (2, head, 1, 0), with bands of lengths sqrt(4 + head^2) and 1.
TEST(LlamaCppSession, GathersStatisticsOfQueriesTurnedBack) {
  Fixture f({.max_ubatch = 16, .has_rope = true});
  Session<TriAttention> session(f.engine, tri_attention(f.engine));
  session.prompt(numbered(40));
  session.decode(40);
  const QueryStatistics& statistics = gathered_statistics(session.policy());
  for (std::size_t head = 0; head < 4; ++head) {
    EXPECT_EQ(statistics.count(3, head), 41U);
    const auto expected = FakeLlama::rope_query(head);
    for (std::size_t c = 0; c < 4; ++c)
      EXPECT_NEAR(statistics.mean(3, head)[c], static_cast<double>(expected[c]), 1e-5);
    EXPECT_NEAR(statistics.band_lengths(3, head)[0], std::sqrt(4.0 + double(head * head)), 1e-5);
    EXPECT_NEAR(statistics.band_lengths(3, head)[1], 1.0, 1e-5);
  }
}

// Tokens 2 to 5 are gone when the text is cut to 5 tokens: the engine would go on at position 2,
// behind the two it holds, and queries be turned back by 3 too many.
TEST(LlamaCppSession, GoesOnAtThePositionOfTheText) {
  Fixture f({.has_rope = true});
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 6));
  session.prompt(numbered(12));
  session.truncate(5);
  session.decode(55);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 55}));
  EXPECT_EQ(session.positions()[2], 5);
  EXPECT_EQ(session.positions()[1], 4) << "as far behind as the engine would have it";
  session.truncate(2);  // nothing of them is left in the way
  session.decode(56);
  EXPECT_EQ(session.positions().back(), 2);
}

TEST(LlamaCppSession, BeginsAnEmptyCacheWhereTheTextIs) {
  Fixture f;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 0, 4));
  session.prompt(numbered(12));
  session.truncate(6);
  EXPECT_EQ(session.num_live(), 0U);
  session.decode(6);
  EXPECT_EQ(session.positions()[0], 6);
}

// The prompt is read once and read in for each policy, into cells of its own.
TEST(LlamaCppSession, LoadsAPromptThatWasSaved) {
  Fixture f;
  Tokens prompt = numbered(20);
  prompt[9] = FakeLlama::kNeedle;
  llama_cpp::SavedCache saved;
  {
    Session<FullKV> base(f.engine, FullKV({}, f.engine.shape()));
    base.begin_prompt(14);
    base.feed(std::span(prompt).first(14));
    base.save(saved);
    base.reset();
  }
  for (std::size_t window = 3; window <= 4; ++window) {
    f.llama.calls.clear();
    Session<SnapKV> session(
        f.engine, SnapKV({.budget = 5, .observation_window = window, .pooling = {.kernel_size = 1}},
                         f.engine.shape()));
    session.begin_prompt(20);
    session.load_prompt(saved);
    session.feed(std::span(prompt).subspan(14));
    session.end_prompt();
    EXPECT_EQ(f.llama.calls, (Calls{{14, 6, true}}));
    const Tokens live = live_tokens(session, f.llama);
    EXPECT_EQ(live.size(), 5U);
    EXPECT_EQ(std::count(live.begin(), live.end(), FakeLlama::kNeedle), 1);
    session.reset();
  }
}

// What is evicted before anything is decoded leaves holes in cells that were just read in.
TEST(LlamaCppSession, CutsAPromptThatWasLoaded) {
  Fixture f;
  llama_cpp::SavedCache saved;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3), {.compact = false});
  session.begin_prompt(12);
  session.feed(numbered(12));
  session.save(saved);
  session.reset();
  session.begin_prompt(12);
  session.load_prompt(saved);
  session.end_prompt();
  session.decode(12);
  EXPECT_EQ(live_tokens(session, f.llama), (Tokens{0, 1, 10, 11, 12}));
  EXPECT_EQ(session.cells()[4], 2) << "a freed cell";
}

// A policy that followed the prompt elsewhere knows it already.
TEST(LlamaCppSession, GoesOnWithAPolicyThatFollowedThePrompt) {
  Fixture f;
  llama_cpp::SavedCache saved;
  // The newest stays as the engine has it anyway: beside the needle all keys score alike here.
  TOVA policy({.budget = 6, .protect_newest = true}, f.engine.shape());
  Tokens prompt = numbered(20);
  prompt[9] = FakeLlama::kNeedle;
  {
    Session<TOVA> base(f.engine, policy);
    base.begin_prompt(20);
    base.feed(prompt);
    base.save(saved);
    policy = base.policy();
    base.reset();
  }
  f.llama.calls.clear();
  Session<TOVA> session(f.engine, policy);
  session.load_prompt(saved);
  session.end_prompt();
  const Tokens live = live_tokens(session, f.llama);
  EXPECT_EQ(live.size(), 6U);
  EXPECT_EQ(std::count(live.begin(), live.end(), FakeLlama::kNeedle), 1);
  EXPECT_TRUE(f.llama.calls.empty());
  EXPECT_EQ(session.policy().length(), 20U);
}

TEST(LlamaCppSession, RefusesAPolicyThatFollowedAnotherPrompt) {
  Fixture f;
  llama_cpp::SavedCache saved;
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(4));
  session.save(saved);
  session.reset();
  session.policy().begin(3);
  session.policy().append(3);
  EXPECT_TRUE(refuses([&] { session.load_prompt(saved); }, {"policy().length() = 3"}));
}

TEST(LlamaCppSession, LoadsOnlyWholePromptsIntoCellsOfItsOwn) {
  Fixture f;
  llama_cpp::SavedCache saved;
  Session<StreamingLLM> session(f.engine, streaming(f.engine, 2, 3));
  session.prompt(numbered(12));
  session.save(saved);
  EXPECT_EQ(saved.positions, (std::vector<Position>{0, 1, 9, 10, 11}));
  session.reset();
  session.begin_prompt(12);
  EXPECT_TRUE(
      refuses([&] { session.load_prompt(saved); }, {"length of the prompt = 12", "evicted"}));
  session.reset();
  session.prompt(numbered(4));
  session.save(saved);
  Session<FullKV> other(f.engine, FullKV({}, f.engine.shape()), {}, 1);
  EXPECT_TRUE(refuses([&] { other.load_prompt(saved); }, {"num_sessions() = 2"}));
}

// 5 tokens of a context with 64 cells go on in one with 8: a number of bytes that is as much less.
TEST(LlamaCppSession, HandsOverToASmallerContext) {
  Fixture large;
  Fixture small({.num_cells = 8});
  EXPECT_EQ(large.engine.bytes_per_cell(), 4U * 2U * 2U * 4U * sizeof(float));
  EXPECT_EQ(large.engine.cache_bytes(), 64U * large.engine.bytes_per_cell());
  EXPECT_EQ(small.engine.cache_bytes(), 8U * large.engine.bytes_per_cell());
  Session<StreamingLLM> session(large.engine, streaming(large.engine, 2, 3), {.compact = false});
  session.prompt(numbered(40));
  session.decode(40);  // into a freed cell: the order of cells is not that of the text
  Session<StreamingLLM> moved = session.hand_over(small.engine);
  EXPECT_EQ(session.num_live(), 0U);
  EXPECT_EQ(session.policy().length(), 0U);
  EXPECT_EQ(large.llama.num_used(), 0U);
  EXPECT_EQ(live_tokens(moved, small.llama), (Tokens{0, 1, 38, 39, 40}));
  EXPECT_EQ(moved.policy().length(), 41U);
  EXPECT_EQ(moved.counters().evicted, 36U);
  for (llama_cpp::Token token = 41; token < 60; ++token)
    moved.decode(token);
  EXPECT_EQ(live_tokens(moved, small.llama), (Tokens{0, 1, 57, 58, 59}));
}

TEST(LlamaCppSession, HandsOverOnlyWhereItCanGoOn) {
  Fixture large;
  Session<StreamingLLM> session(large.engine, streaming(large.engine, 2, 6));
  session.prompt(numbered(40));
  Fixture small({.num_cells = 8});
  EXPECT_TRUE(refuses([&] { auto moved = session.hand_over(small.engine); },
                      {"num_live() = 8", "evict before"}));
  Fixture converted({.storage = Storage::kF16});
  EXPECT_TRUE(
      refuses([&] { auto moved = session.hand_over(converted.engine); }, {"layer = 0", "type_k"}));
  Fixture used;
  Session<FullKV> other(used.engine, FullKV({}, used.engine.shape()));
  EXPECT_TRUE(
      refuses([&] { auto moved = session.hand_over(used.engine, 1); }, {"num_sessions() = 1"}));
  EXPECT_EQ(session.num_live(), 8U) << "nothing has changed";
  session.decode(40);
}

// The engine would abort the process.
TEST(LlamaCppSession, RefusesSequencesThatDoNotExist) {
  Fixture f({.max_sequences = 2});
  const auto make = [&](llama_cpp::SequenceId sequence) {
    Session<FullKV>(f.engine, FullKV({}, f.engine.shape()), {}, sequence);
  };
  EXPECT_NO_THROW(make(1));
  EXPECT_TRUE(refuses([&] { make(2); }, {"sequence = 2 must be less than n_seq_max, 2"}));
  EXPECT_TRUE(refuses([&] { make(-1); }, {"sequence = -1"}));
  Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()));
  session.prompt(numbered(4));
  EXPECT_TRUE(refuses([&] { static_cast<void>(session.fork(2)); }, {"sequence = 2"}));
  EXPECT_EQ(live_tokens(session, f.llama), numbered(4));
  Fixture small;
  EXPECT_TRUE(
      refuses([&] { static_cast<void>(session.hand_over(small.engine, 4)); }, {"sequence = 4"}));
}

TEST(LlamaCppSession, RefusesWhatTheEngineCannotGive) {
  Fixture f;
  EXPECT_TRUE(refuses(
      [&] {
        Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()),
                                {.granularity = {.layers = {4}}});
      },
      {"layers = 4", "num_layers"}));
  EXPECT_TRUE(refuses(
      [&] { Session<FullKV> session(f.engine, FullKV({}, f.engine.shape()), {.cut_interval = 0}); },
      {"llama_cpp::Session", "cut_interval = 0"}));
  EXPECT_TRUE(refuses(
      [&] {
        Session<ExternalScores> session(f.engine, ExternalScores({.budget = 4}, f.engine.shape()));
      },
      {"llama_cpp::Session", "required_inputs"}));
}

}  // namespace
