#include "kvevict/policies/scissorhands.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::BelowUniformCount;
using kvevict::CacheShape;
using kvevict::Position;
using kvevict::ScissorHands;
using kvevict::ScissorHandsOptions;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

ScissorHandsOptions plain(std::size_t budget, std::size_t drop) {
  return {.budget = budget, .drop = drop, .history = 8, .recent_window = 0};
}

// Rows (.7 .1 .1 .1), (.1 .3 .5 .1), (.2 .3 .4 .1) against 1/4: below 2, 1, 1 and 3 times.
TEST(ScissorHands, CountsRowsBelowAnEvenShare) {
  BelowUniformCount signal("test", kOneHead, 3);
  kvevict::Sequence sequence("test", kOneHead, kvevict::MaskScope::kHead);
  sequence.append(4);
  std::apply([](auto& bits) { bits.append(4); }, signal.state());
  const std::vector<std::vector<float>> rows = {
      {.7F, .1F, .1F, .1F}, {.1F, .3F, .5F, .1F}, {.2F, .3F, .4F, .1F}};
  for (std::size_t t = 0; t < rows.size(); ++t) {
    signal.observe_rows({.group_size = 1,
                         .num_rows = 1,
                         .first_visible = 4,
                         .first_position = t,
                         .data = rows[t].data()},
                        sequence, kvevict::kernels::best());
  }
  WindowCache cache(kOneHead, 4);
  cache.append(4);
  const auto view = cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, sequence, kvevict::kernels::best(), scratch};
  kvevict::LaneScores scores(input, 0);
  signal.score(input, scores);
  EXPECT_EQ(std::vector<float>(scores.array(0).begin(), scores.array(0).end()),
            (std::vector<float>{-2, -1, -1, -3}));
}

// Rows of a prompt of four, even shares 1, 1/2, 1/3 and 1/4. Below them: slot 0 never, slot 1 in
// the third row, slot 2 in the fourth, slot 3 in the fourth, its only one.
RowSession<ScissorHands> session_of(const ScissorHandsOptions& options) {
  RowSession<ScissorHands> session(options, kOneHead);
  session.policy.begin(4);
  session.append(4);
  const HeadRows all = {{{1}, {.5F, .5F}, {.4F, .2F, .4F}, {.5F, .3F, .1F, .1F}}};
  HeadRows rows(1);
  const std::size_t wanted = session.policy.wanted_attention_rows(0);
  rows[0].assign(all[0].end() - static_cast<std::ptrdiff_t>(wanted), all[0].end());
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}
TEST(ScissorHands, DropsSeveralAtOnceAndStartsOver) {
  auto session = session_of(plain(3, 2));
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, -1, -1, -1}));
  ASSERT_TRUE(session.cut());  // 4 > 3: two go, of the equal ones the later
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 0}));
  session.step({{{{.2F, .4F, .4F}}}});
  EXPECT_FALSE(session.cut());
  session.step({{{{.7F, .1F, .1F, .1F}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{-1, -1, -1, -1}));
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
}
TEST(ScissorHands, RecentTokensStay) {
  ScissorHandsOptions options = plain(3, 2);
  options.recent_window = 2;
  auto session = session_of(options);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{2, 3}));
}
// The history is two rows long: the one before is forgotten.
TEST(ScissorHands, OldRowsLeaveTheHistory) {
  ScissorHandsOptions options = plain(8, 2);
  options.history = 2;
  auto session = session_of(options);
  session.step({{{{.6F, .1F, .1F, .1F, .1F}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, -1, -2, -2, -1}));
  session.step({{{{.1F, .3F, .3F, .1F, .1F, .1F}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{-1, -1, -1, -2, -2, -1}));
  // A draft that is taken back leaves nothing, and its row's predecessor is gone.
  session.truncate(5);
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, -1, -1, -1, -1}));
}
// More rows than a word has bits.
TEST(ScissorHands, LongHistories) {
  ScissorHandsOptions options = plain(300, 2);
  options.history = 100;
  RowSession<ScissorHands> session(options, kOneHead, 300);
  session.prompt(1);
  for (std::size_t step = 0; step < 150; ++step) {
    std::vector<float> row(step + 2, 0.0F);
    row[step % 2] = 1;
    session.step({{{row}}});
  }
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_EQ(scores[0], -50);
  EXPECT_EQ(scores[1], -50);
  EXPECT_EQ(scores[2], -100);
  EXPECT_EQ(scores[150], -1);
}

// A prompt far above the budget is cut as deep as a cache that just exceeds it.
TEST(ScissorHands, CutsToTheSameLength) {
  for (std::size_t len = 0; len <= 12; ++len) {
    RowSession<ScissorHands> session(plain(5, 2), kOneHead);
    session.prompt(len);
    EXPECT_EQ(session.cut(), len > 5);
    EXPECT_EQ(session.kept().size(), len > 5 ? 4 : len);
  }
  RowSession<ScissorHands> half({.budget = 6, .recent_window = 0}, kOneHead);
  half.prompt(7);
  half.cut();
  EXPECT_EQ(half.kept().size(), 4U);
}

// Budgets 3 and 6, two go at once: after a prompt of seven layer 0 has 3 + 1 - 2 tokens and layer 1
// has 6 + 1 - 2. Both are full again, and above their budgets, in the same step.
TEST(ScissorHands, LayersMayHaveBudgetsOfTheirOwn) {
  constexpr CacheShape kTwo{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  ScissorHandsOptions options = plain(5, 2);
  options.layer_budgets = {3, 6};
  RowSession<ScissorHands> session(options, kTwo);
  session.prompt(7);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0).size(), 2U);
  EXPECT_EQ(session.kept(1).size(), 5U);
  // Rows of which the newest token, and slot 0 of layer 0, have less than an even share.
  session.step({{{{.2F, .5F, .3F}}}, {{{.2F, .2F, .2F, .2F, .2F, 0}}}});
  EXPECT_FALSE(session.cut());
  session.step({{{{.1F, .4F, .3F, .2F}}}, {{{.2F, .2F, .2F, .2F, .2F, 0, 0}}}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{1, 7}));
  EXPECT_EQ(session.kept(1), (Positions{0, 1, 2, 3, 4}));
}
// A prompt of five fits layer 1, which is not cut and keeps its history.
TEST(ScissorHands, ALayerThatIsNotCutKeepsItsHistory) {
  constexpr CacheShape kTwo{.num_layers = 2, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  ScissorHandsOptions options = plain(5, 1);
  options.layer_budgets = {3, 9};
  RowSession<ScissorHands> session(options, kTwo);
  session.prompt(3);
  session.step({{{{.1F, .3F, .3F, .3F}}}, {{{.4F, .1F, .1F, .4F}}}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{1, 2, 3}));
  EXPECT_EQ(scores_of(session.policy, session.cache, 0), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(scores_of(session.policy, session.cache, 1), (std::vector<float>{0, -1, -1, 0}));
}

// R9: padding goes first; R19: an entry that is no number counts as no attention.
TEST(ScissorHands, PaddingAndNaN) {
  auto session = session_of(plain(3, 1));
  session.cache.valid() = {0, 1, 1, 1};
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2, 3}));
  auto nan = session_of(plain(4, 1));
  nan.step({{{{.4F, .3F, kNaN, .3F, .3F}}}});
  EXPECT_EQ(scores_of(nan.policy, nan.cache), (std::vector<float>{0, -1, -2, -1, 0}));
  EXPECT_EQ(nan.policy.counters().non_finite, 1U);
}

TEST(ScissorHands, RefusesWhatItCannotUse) {
  EXPECT_TRUE(refuses([] { ScissorHands(plain(4, 5), kOneHead); }, {"ScissorHands", "drop", "5"}));
  EXPECT_TRUE(
      refuses([] { ScissorHands({.budget = 0}, kOneHead); }, {"ScissorHands", "budget", "0"}));
  EXPECT_TRUE(
      refuses([] { ScissorHands({.history = 0}, kOneHead); }, {"ScissorHands", "history", "0"}));
  ScissorHandsOptions table = plain(4, 3);
  table.layer_budgets = {4, 4};
  EXPECT_TRUE(refuses([&] { ScissorHands(table, kOneHead); }, {"layer_budgets.size()", "2"}));
  table.layer_budgets = {2};
  EXPECT_TRUE(refuses([&] { ScissorHands(table, kOneHead); }, {"ScissorHands", "drop", "3"}));
  table.layer_budgets = {4};
  table.recent_window = 3;  // a cut leaves 2
  EXPECT_TRUE(
      refuses([&] { ScissorHands(table, kOneHead); }, {"layer_budgets = 4 must be at least 5"}));
  // A cut would leave 12 + 1 - 6 tokens, fewer than the 10 recent ones; of 18 it leaves 10.
  EXPECT_TRUE(refuses([] { ScissorHands({.budget = 12}, kOneHead); },
                      {"ScissorHands: budget = 12 must be at least 18"}));
  EXPECT_TRUE(refuses([] { ScissorHands({.budget = 17}, kOneHead); },
                      {"ScissorHands: budget = 17 must be at least 18"}));
  EXPECT_NO_THROW(ScissorHands({.budget = 18}, kOneHead));
  EXPECT_TRUE(refuses([] { ScissorHands({.budget = 11, .drop = 3}, kOneHead); },
                      {"ScissorHands: budget = 11 must be at least 12"}));
  EXPECT_NO_THROW(ScissorHands({.budget = 12, .drop = 3}, kOneHead));
}

}  // namespace
}  // namespace kvevict_test
