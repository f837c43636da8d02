#include "kvevict/policies/tova.hpp"

#include "support/row_session.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvevict {
namespace {

using kvevict_test::HeadRows;
using kvevict_test::RowSession;
using Positions = std::vector<Position>;

constexpr CacheShape kTwoQueryHeads{
    .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kTwoKvHeads{
    .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};

// Means .1, .5, .15, .25 of the two heads' last rows; the rows before do not count.
const HeadRows kRows = {{{.2F, .4F, .1F, .3F}}, {{.0F, .6F, .2F, .2F}}};

TEST(TOVA, KeepsWhatTheNewestTokenAttendsTo) {
  for (const CacheShape& shape : {kTwoQueryHeads, kTwoKvHeads}) {
    RowSession<TOVA> session(TOVAOptions{.budget = 2}, shape);
    session.append(3);
    session.rows(0, {{{0, 0, 1}}, {{0, 0, 1}}});
    session.append(1);
    session.rows(0, kRows);
    EXPECT_EQ(kvevict_test::scores_of(session.policy, session.cache),
              (std::vector<float>{.1F, .5F, .15F, .25F}));
    ASSERT_TRUE(session.cut());
    EXPECT_EQ(session.kept(), (Positions{1, 3}));
  }
}

// With room for one the newest token (.25) goes, unless it is protected.
TEST(TOVA, ProtectsNothingUnlessTold) {
  for (const bool protect : {false, true}) {
    RowSession<TOVA> session(TOVAOptions{.budget = 1, .protect_newest = protect}, kTwoQueryHeads);
    session.append(4);
    session.rows(0, kRows);
    session.cut();
    EXPECT_EQ(session.kept(), (protect ? Positions{3} : Positions{1}));
  }
}

// Of a prompt only the last row is wanted; a cut does not carry its scores into the next step.
TEST(TOVA, ScoresLastOneStep) {
  RowSession<TOVA> session(TOVAOptions{.budget = 2}, kTwoQueryHeads);
  session.policy.begin(4);
  session.append(4);
  EXPECT_EQ(session.policy.wanted_attention_rows(0), 1U);
  session.rows(0, kRows);
  session.policy.end_prefill(session.cache.view());
  session.cut();
  session.step({{{{.1F, .2F, .7F}}, {{.1F, .4F, .5F}}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{3, 4}));
}

TEST(TOVA, LayersGoTheirOwnWays) {
  constexpr CacheShape shape{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
  RowSession<TOVA> session(TOVAOptions{.budget = 1}, shape);
  session.append(2);
  session.rows(0, {{{.9F, .1F}}});
  session.rows(1, {{{.1F, .9F}}});
  session.cut();
  EXPECT_EQ(session.kept(0), (Positions{0}));
  EXPECT_EQ(session.kept(1), (Positions{1}));
}

}  // namespace
}  // namespace kvevict
