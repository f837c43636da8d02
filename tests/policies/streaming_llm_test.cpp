#include "kvevict/policies/streaming_llm.hpp"

#include "kvevict/core/rerotation.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::StreamingLLM;
using kvevict::StreamingLLMOptions;
using Positions = std::vector<std::size_t>;

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 3};

TestEngine<StreamingLLM> make_engine(const StreamingLLMOptions& options) {
  return {StreamingLLM(options, kShape), layouts::nhd(kShape, 64, kvevict::ElementType::kF32)};
}

// O-20: two sinks and four recent tokens of ten, of six, of seven; the window holds the newest.
TEST(StreamingLLM, KeepsSinksAndTheNewest) {
  const auto kept_of = [](std::size_t n, std::size_t chunk) {
    auto engine = make_engine({.num_sink_tokens = 2, .recent_window = 4});
    engine.prompt(n, chunk);
    engine.evict_if_due();
    return engine.positions();
  };
  for (const std::size_t chunk : {0U, 1U}) {
    EXPECT_EQ(kept_of(10, chunk), (Positions{0, 1, 6, 7, 8, 9}));
    EXPECT_EQ(kept_of(6, chunk), range(0, 6));
    EXPECT_EQ(kept_of(7, chunk), (Positions{0, 1, 3, 4, 5, 6}));
  }
}

// O-20: cutting after every single token ends in the same place.
TEST(StreamingLLM, OneByOneIsAllAtOnce) {
  auto engine = make_engine({.num_sink_tokens = 2, .recent_window = 4});
  engine.decode(10);
  EXPECT_EQ(engine.positions(), (Positions{0, 1, 6, 7, 8, 9}));
}

// O-28: four tokens in one call count as four.
TEST(StreamingLLM, SeveralTokensInOneCall) {
  auto one_call = make_engine({.num_sink_tokens = 2, .recent_window = 6});
  one_call.feed(8);
  one_call.evict_if_due();
  one_call.decode(1, 4);
  EXPECT_EQ(one_call.positions(), (Positions{0, 1, 6, 7, 8, 9, 10, 11}));
  auto singles = make_engine({.num_sink_tokens = 2, .recent_window = 6});
  singles.decode(12);
  EXPECT_EQ(singles.positions(), one_call.positions());
}

// O-02 a: without a window the sinks are all that stays, a new token included.
TEST(StreamingLLM, AWindowOfZero) {
  auto engine = make_engine({.num_sink_tokens = 4, .recent_window = 0});
  engine.feed(10);
  engine.evict_if_due();
  EXPECT_EQ(engine.positions(), range(0, 4));
  engine.decode(3);
  EXPECT_EQ(engine.positions(), range(0, 4));
}

TEST(StreamingLLM, WithoutSinksItIsASlidingWindow) {
  auto engine = make_engine({.num_sink_tokens = 0, .recent_window = 5});
  engine.decode(12);
  EXPECT_EQ(engine.positions(), range(7, 12));
}

// One set of tokens for all layers and heads, which every engine can execute.
TEST(StreamingLLM, SpeaksForTheWholeModel) {
  auto engine = make_engine({.num_sink_tokens = 1, .recent_window = 2});
  engine.feed(5);
  EXPECT_EQ(engine.select().scope(), kvevict::MaskScope::kModel);
  EXPECT_EQ(engine.select().num_lanes(), 1U);
  EXPECT_EQ(engine.select().total_count(), 12U);
  engine.evict_if_due();
  EXPECT_EQ(engine.positions(1, 1), (Positions{0, 3, 4}));
  EXPECT_TRUE(engine.cache_is_intact());
}

// O-36: what an engine needs that counts positions inside the cache.
TEST(StreamingLLM, ReRotationMap) {
  auto engine = make_engine({.num_sink_tokens = 1, .recent_window = 3});
  engine.feed(10);
  std::vector<kvevict::Position> shifts;
  kvevict::for_each_rerotation(engine.policy.sequence(), engine.select(), 0,
                               [&](const kvevict::Rerotation& r) { shifts.push_back(r.shift); });
  EXPECT_EQ(shifts, (std::vector<kvevict::Position>{0, -6, -6, -6}));
  engine.evict_if_due();
  engine.decode(1);
  EXPECT_EQ(engine.positions(), (Positions{0, 8, 9, 10}));
}

TEST(StreamingLLM, NeedsNothingFromTheEngine) {
  static_assert(StreamingLLM::kRequiredInputs == kvevict::Inputs::kNothing);
  static_assert(kvevict::is_flash_attention_compatible<StreamingLLM>);
  const StreamingLLM policy({}, kShape);
  EXPECT_EQ(policy.wanted_attention_rows(0), 0U);
  EXPECT_FALSE(policy.wants_hidden(0));
  EXPECT_FALSE(policy.wants_cache());
}

TEST(StreamingLLM, RefusesToKeepNothing) {
  EXPECT_TRUE(refuses([] { StreamingLLM({.num_sink_tokens = 0, .recent_window = 0}, kShape); },
                      {"StreamingLLM", "recent_window", "0"}));
}

}  // namespace
}  // namespace kvevict_test
