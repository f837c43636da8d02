#include "kvevict/policies/lazy_lanes.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::DuoAttention;
using kvevict::DuoAttentionOptions;
using kvevict::Position;
using kvevict::SimLayerKV;

constexpr kvevict::CacheShape kModel{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};
constexpr kvevict::CacheShape kTwoLayers{
    .num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

DuoAttentionOptions duo(std::vector<double> scores, double ratio) {
  return {.head_scores = std::move(scores),
          .streaming_ratio = ratio,
          .num_sink_tokens = 1,
          .recent_window = 2};
}

// The two lowest gates of four: lanes 1 and 2.
TEST(DuoAttention, HeadsOfLowGatesStream) {
  RowSession<DuoAttention> session(duo({.9, .1, .2, .8}, .5), kModel);
  session.prompt(6);
  EXPECT_TRUE(session.cut());
  const std::vector<Position> all = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(session.kept(0), all);
  EXPECT_EQ(session.kept(1), (std::vector<Position>{0, 4, 5}));
  EXPECT_EQ(session.kept(2), (std::vector<Position>{0, 4, 5}));
  EXPECT_EQ(session.kept(3), all);
  // The windows move on.
  session.append(1);
  EXPECT_TRUE(session.cut());
  EXPECT_EQ(session.kept(1), (std::vector<Position>{0, 5, 6}));
  EXPECT_EQ(session.kept(0).size(), 7U);
}

// round(4 ratio), halves to even; of equal gates the later stream; a gate that is NaN does first.
TEST(DuoAttention, CountsAndTies) {
  const auto streaming = [](std::vector<double> scores, double ratio) {
    RowSession<DuoAttention> session(duo(std::move(scores), ratio), kModel);
    session.prompt(6);
    session.cut();
    std::vector<int> lanes;
    for (std::size_t lane = 0; lane < 4; ++lane)
      lanes.push_back(session.kept(lane).size() == 3 ? 1 : 0);
    return lanes;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(streaming({1, 1, 1, 1}, 0), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(streaming({1, 1, 1, 1}, .125), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(streaming({1, 1, 1, 1}, .375), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(streaming({nan, 1, 1, 1}, .25), (std::vector<int>{1, 0, 0, 0}));
  EXPECT_EQ(streaming({1, 2, 3, 4}, 1), (std::vector<int>{1, 1, 1, 1}));
}

TEST(DuoAttention, PromptsThatFitStay) {
  for (const std::size_t len : {0U, 1U, 3U}) {
    RowSession<DuoAttention> session(duo({.9, .1, .2, .8}, 1), kModel);
    session.prompt(len);
    EXPECT_FALSE(session.cut()) << len;
  }
  DuoAttentionOptions prompts_only = duo({.9, .1, .2, .8}, 1);
  prompts_only.only_at_prefill_end = true;
  RowSession<DuoAttention> session(prompts_only, kModel);
  session.prompt(4);
  EXPECT_TRUE(session.cut());
  session.append(5);
  EXPECT_FALSE(session.cut());
  EXPECT_EQ(session.kept(), (std::vector<Position>{0, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(DuoAttention, RefusesWhatCannotBe) {
  EXPECT_TRUE(
      refuses([] { DuoAttention({}, kModel); }, {"DuoAttention", "head_scores.size() = 0"}));
  EXPECT_TRUE(refuses(
      [] {
        DuoAttention(duo({1, 2, 3, 4}, 1.5), kModel);
      },
      {"DuoAttention", "streaming_ratio = 1.5"}));
  EXPECT_TRUE(refuses(
      [] {
        DuoAttention({.head_scores = {1, 2, 3, 4}, .num_sink_tokens = 0, .recent_window = 0},
                     kModel);
      },
      {"DuoAttention", "recent_window = 0"}));
}

/// Two layers, one row of eight tokens each; ends are 1 and 2 tokens.
RowSession<SimLayerKV> sim(double threshold, const std::vector<float>& first,
                           const std::vector<float>& second) {
  RowSession<SimLayerKV> session(
      {.lazy_threshold = threshold, .num_initial = 1, .recent_window = 2, .num_last = 1},
      kTwoLayers);
  const std::size_t len = first.size();
  session.policy.begin(len);
  session.append(len);
  session.rows(0, {{first}});
  session.rows(1, {{second}});
  session.policy.end_prefill(session.cache.view());
  return session;
}

// The newest column is cut off: layer 0 has .5 + .125 + .25 = .875 on its ends, layer 1 has .375.
// A lazy layer keeps one token and 2 - 1.
TEST(SimLayerKV, LayersThatLookAtTheirEndsAreLazy) {
  const std::vector<float> lazy = {.5F, 0, 0, 0, 0, .125F, .25F, .125F};
  const std::vector<float> busy = {.25F, .25F, 0, .25F, 0, .125F, 0, .125F};
  auto session = sim(.8, lazy, busy);
  const auto& method = session.policy.method();
  EXPECT_DOUBLE_EQ(method.allocator().mass(session.policy.sequence(), method.parts().signal(), 0),
                   .875);
  EXPECT_DOUBLE_EQ(method.allocator().mass(session.policy.sequence(), method.parts().signal(), 1),
                   .375);
  EXPECT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (std::vector<Position>{0, 7}));
  EXPECT_EQ(session.kept(1).size(), 8U);
  // What is decoded stays in both.
  session.append(2);
  EXPECT_FALSE(session.cut());
  // Strictly above.
  EXPECT_FALSE(sim(.875, lazy, busy).cut());
  EXPECT_TRUE(sim(0, lazy, busy).cut());
}

// Only prompts of more than 1 + 2 + 1 tokens are cut.
TEST(SimLayerKV, ShortPromptsStay) {
  EXPECT_FALSE(sim(0, {.25F, .25F, .25F, .25F}, {1, 0, 0, 0}).cut());
  EXPECT_TRUE(sim(0, {.25F, .25F, .25F, .125F, .125F}, {1, 0, 0, 0, 0}).cut());
  RowSession<SimLayerKV> session({}, kTwoLayers);
  session.prompt(0);
  EXPECT_FALSE(session.cut());
}

// R9: the first tokens are the first valid slots.
TEST(SimLayerKV, PaddingIsNotInitial) {
  RowSession<SimLayerKV> session(
      {.lazy_threshold = .7, .num_initial = 1, .recent_window = 2, .num_last = 1}, kTwoLayers);
  session.cache.valid() = {0, 0, 1, 1, 1, 1, 1, 1};
  session.policy.begin(8);
  session.append(8);
  session.rows(0, {{{0, 0, .75F, 0, 0, 0, 0, .25F}}});
  session.rows(1, {{{0, 0, 0, .75F, 0, 0, 0, .25F}}});
  session.policy.end_prefill(session.cache.view());
  EXPECT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (std::vector<Position>{2, 7}));
  EXPECT_EQ(session.kept(1), (std::vector<Position>{2, 3, 4, 5, 6, 7}));
}

TEST(SimLayerKV, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { SimLayerKV({.num_last = 0}, kModel); }, {"SimLayerKV", "num_last = 0"}));
  EXPECT_TRUE(refuses([] { SimLayerKV({.recent_window = 1, .num_last = 2}, kModel); },
                      {"SimLayerKV", "recent_window = 1"}));
  EXPECT_TRUE(refuses([] { SimLayerKV({.lazy_threshold = -1}, kModel); },
                      {"SimLayerKV", "lazy_threshold = -1"}));
}

}  // namespace
}  // namespace kvevict_test
