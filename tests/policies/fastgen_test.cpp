#include "kvevict/policies/fastgen.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::CacheShape;
using kvevict::FastGen;
using kvevict::FastGenOptions;
using kvevict::HeadKeeps;
using kvevict::Position;
using kvevict::TokenLabel;
using Labels = std::vector<TokenLabel>;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 1};
constexpr TokenLabel kNone = TokenLabel::kOther;
constexpr TokenLabel kSpecial = TokenLabel::kSpecial;
constexpr TokenLabel kPunct = TokenLabel::kPunctuation;

RowSession<FastGen> session_of(const FastGenOptions& options, const CacheShape& shape,
                               const HeadRows& rows, const Labels& labels) {
  RowSession<FastGen> session(options, shape);
  session.policy.begin(rows[0].size());
  session.append(rows[0].size());
  session.policy.observe_labels(labels);
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}
HeadKeeps keeps(const FastGen& policy, std::size_t lane = 0) {
  return policy.method().parts().signal().keeps(lane);
}
void step(RowSession<FastGen>& session, TokenLabel label, const std::vector<float>& row) {
  session.append(1);
  session.policy.observe_labels(Labels{label});
  session.rows(0, {{row}});
}

// A row of .5 on the special token, .1, .05 on punctuation and .35 on the newest; the rows before
// it are empty. Special tokens hold .5, with punctuation .55, with one heavy token (the newest) .9,
// with the three newest everything.
RowSession<FastGen> example(double recovery, std::size_t recent = 3) {
  return session_of({.recovery = recovery, .heavy = 1, .recent = recent}, kOneHead,
                    {{{0}, {0, 0}, {0, 0, 0}, {.5F, .1F, .05F, .35F}}},
                    {kSpecial, kNone, kPunct, kNone});
}

TEST(FastGen, TheCheapestThatRecoversEnoughIsChosen) {
  EXPECT_EQ(keeps(example(.5).policy), HeadKeeps::kSpecial);
  EXPECT_EQ(keeps(example(.54).policy), HeadKeeps::kPunctuation);
  EXPECT_EQ(keeps(example(.8).policy), HeadKeeps::kHeavy);
  EXPECT_EQ(keeps(example(.95).policy), HeadKeeps::kRecent);
  // The one newest is the heavy one: .9.
  EXPECT_EQ(keeps(example(.95, 1).policy), HeadKeeps::kAll);
}

TEST(FastGen, TheHeadKeepsWhatItsPolicySays) {
  const auto kept = [](double recovery, std::size_t recent) {
    auto session = example(recovery, recent);
    session.cut();
    return session.kept();
  };
  EXPECT_EQ(kept(.5, 1), (Positions{0}));
  EXPECT_EQ(kept(.54, 1), (Positions{0, 2}));
  EXPECT_EQ(kept(.8, 1), (Positions{0, 2, 3}));
  EXPECT_EQ(kept(.95, 1), (Positions{0, 1, 2, 3}));
}

// Mean over rows: .2, .6 and .4 of three rows on the special token; a row of padding is none.
TEST(FastGen, RecoveryIsTheMeanOverRows) {
  const HeadRows rows{{{0}, {0, .2F}, {0, .6F, .4F}, {0, .4F, .3F, .3F}}};
  const auto level = [&](double recovery) {
    return keeps(session_of({.recovery = recovery, .heavy = 0, .recent = 0}, kOneHead, rows,
                            {kNone, kSpecial, kNone, kNone})
                     .policy);
  };
  EXPECT_EQ(level(.399), HeadKeeps::kSpecial);
  EXPECT_EQ(level(.401), HeadKeeps::kAll);
}

// Rows that look at their own two newest tokens: the newest of the last row alone would hold less.
TEST(FastGen, EachRowHasItsOwnNewestTokens) {
  const HeadRows rows{{{1}, {.5F, .5F}, {0, .5F, .5F}, {0, 0, .5F, .5F}, {0, 0, 0, .5F, .5F}}};
  auto session = session_of({.recovery = 1, .heavy = 0, .recent = 2}, kOneHead, rows, {});
  EXPECT_EQ(keeps(session.policy), HeadKeeps::kRecent);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{3, 4}));
}

// Sums .8, 1.2, .4, .2, .4, .1 over five rows: special .16, with tokens 1 and 2 .48, with what else
// is among each row's two newest .62. Five tokens may stay: labels first, then the newest two, then
// the best by sums, so token 3 goes.
TEST(FastGen, HeadsGoOnByTheirPolicyWhileDecoding) {
  const HeadRows prompt{{{0},
                         {0, .6F},
                         {0, .6F, 0},
                         {.4F, 0, .2F, .2F},
                         {.1F, 0, .2F, 0, .2F},
                         {.3F, 0, 0, 0, .2F, .1F}}};
  auto session = session_of({.recovery = .6, .heavy = 2, .recent = 2}, kOneHead, prompt,
                            {kSpecial, kNone, kNone, kNone, kNone, kNone});
  ASSERT_EQ(keeps(session.policy), HeadKeeps::kRecent);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 4, 5}));
  step(session, kPunct, {0, 0, 0, .1F, 0, 0});  // room grows with a label
  EXPECT_FALSE(session.cut());
  // 6 is one of the two newest and has room of its own, so three of 1.2, .4, .5 and .1 stay.
  step(session, kNone, {0, 0, 0, 0, 0, 0, 0});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 4, 6, 7}));
}

// A head of labels alone holds no ordinary token for longer than a step; punctuation comes to it.
TEST(FastGen, NewTokensOfAHeadOfLabels) {
  auto session = example(.54);
  session.cut();
  step(session, kNone, {0, 0, 1});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
  step(session, kPunct, {0, 0, 1});
  EXPECT_FALSE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 5}));
  session.truncate(5);
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
  step(session, kNone, {0, 0, 1});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
}

// Heads of a layer have policies and lengths of their own; the mean over the group decides: .8 and
// .2 on the special token are .5.
TEST(FastGen, EveryHeadIsProfiledByItself) {
  const HeadRows rows{{{0}, {0, 0}, {.8F, .2F, 0}},
                      {{0}, {0, 0}, {.2F, .8F, 0}},
                      {{0}, {0, 0}, {.1F, .1F, .8F}},
                      {{0}, {0, 0}, {.1F, .1F, .8F}}};
  auto session = session_of({.recovery = .49, .heavy = 1, .recent = 1}, kTwoHeads, rows,
                            {kSpecial, kNone, kNone});
  EXPECT_EQ(keeps(session.policy, 0), HeadKeeps::kSpecial);
  EXPECT_EQ(keeps(session.policy, 1), HeadKeeps::kHeavy);
  session.cut();
  EXPECT_EQ(session.kept(0), (Positions{0}));
  EXPECT_EQ(session.kept(1), (Positions{0, 2}));
}

// Shares are of the first prompt, rounded down: .3 of 4 is one token.
TEST(FastGen, SharesAreOfTheFirstPrompt) {
  auto session =
      session_of({.recovery = .8}, kOneHead, {{{0}, {0, 0}, {0, 0, 0}, {.5F, .1F, .05F, .35F}}},
                 {kSpecial, kNone, kPunct, kNone});
  EXPECT_EQ(keeps(session.policy), HeadKeeps::kHeavy);
  EXPECT_EQ(session.policy.method().parts().signal().num_heavy(0), 1U);
}

// The definition in double: the recovered mass of every set, row by row.
TEST(FastGen, RecoveredMassIsThatOfTheDefinition) {
  Random random(17);
  constexpr std::size_t kLength = 20;
  constexpr std::size_t kHeavy = 4;
  constexpr std::size_t kRecent = 5;
  for (std::size_t round = 0; round < 40; ++round) {
    HeadRows rows(1);
    Labels labels;
    for (std::size_t t = 0; t < kLength; ++t) {
      std::vector<float> row(t + 1);
      float sum = 0.0F;
      for (float& a : row)
        sum += a = static_cast<float>(random.below(1000)) + 1;
      for (float& a : row)
        a /= sum;
      rows[0].push_back(row);
      labels.push_back(static_cast<TokenLabel>(std::min<std::size_t>(random.below(6), 2) % 3));
    }
    std::vector<double> sums(kLength);
    for (const auto& row : rows[0]) {
      for (std::size_t i = 0; i < row.size(); ++i)
        sums[i] += static_cast<double>(row[i]);
    }
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < kLength; ++i) {
      if (labels[i] == kNone)
        others.push_back(i);
    }
    std::sort(others.begin(), others.end(), [&](auto a, auto b) { return sums[a] > sums[b]; });
    others.resize(std::min(others.size(), kHeavy));
    const auto mass = [&](HeadKeeps level) {
      double total = 0.0;
      for (std::size_t t = 0; t < kLength; ++t) {
        for (std::size_t i = 0; i <= t; ++i) {
          const bool in =
              labels[i] == kSpecial || (level >= HeadKeeps::kPunctuation && labels[i] == kPunct) ||
              (level >= HeadKeeps::kHeavy && std::count(others.begin(), others.end(), i) > 0) ||
              (level >= HeadKeeps::kRecent && i + kRecent > t);
          total += in ? static_cast<double>(rows[0][t][i]) : 0.0;
        }
      }
      return total / static_cast<double>(kLength);
    };
    const double recovery = .2 + .02 * static_cast<double>(round);
    auto expected = HeadKeeps::kAll;
    for (const HeadKeeps level :
         {HeadKeeps::kRecent, HeadKeeps::kHeavy, HeadKeeps::kPunctuation, HeadKeeps::kSpecial}) {
      if (mass(level) >= recovery)
        expected = level;
    }
    const auto session = session_of({.recovery = recovery, .heavy = kHeavy, .recent = kRecent},
                                    kOneHead, rows, labels);
    EXPECT_EQ(keeps(session.policy), expected) << recovery;
  }
}

// What was observed of no prompt says nothing, and a head without rows keeps all.
TEST(FastGen, NothingGoesWithoutAProfile) {
  RowSession<FastGen> session({}, kOneHead);
  session.step({{{{1}}}});
  session.step({{{{.5F, .5F}}}});
  EXPECT_FALSE(session.cut());
  RowSession<FastGen> blind({}, kOneHead);
  blind.prompt(8);
  EXPECT_EQ(keeps(blind.policy), HeadKeeps::kAll);
  EXPECT_FALSE(blind.cut());
}

// A prompt in one piece is appended by its first observation, and labels are one.
TEST(FastGen, LabelsOfAPromptInOnePiece) {
  RowSession<FastGen> session({.recovery = .5, .heavy = 0, .recent = 0}, kOneHead);
  session.policy.begin(3);
  session.cache.append(3);
  session.policy.observe_labels(Labels{kSpecial, kNone, kNone});
  session.rows(0, {{{1}, {.5F, .5F}, {.5F, 0, .5F}}});
  session.policy.end_prefill(session.cache.view());
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0}));
}

TEST(FastGen, ResetForgetsTheProfile) {
  auto session = example(.5);
  session.policy.reset();
  EXPECT_FALSE(session.policy.method().parts().signal().profiled());
}

TEST(FastGen, RefusesWhatCannotBe) {
  EXPECT_TRUE(refuses([] { FastGen({.recovery = 0}, kOneHead); }, {"FastGen", "recovery", "0"}));
  EXPECT_TRUE(refuses([] { FastGen({.recovery = 1.5}, kOneHead); }, {"FastGen", "recovery"}));
  EXPECT_TRUE(
      refuses([] { FastGen({.heavy = Budget::total(8)}, kOneHead); }, {"FastGen", "heavy", "8"}));
  EXPECT_TRUE(refuses(
      [] {
        RowSession<FastGen> session({}, kOneHead);
        session.append(1);
        session.policy.observe_labels(Labels{kNone, kNone});
      },
      {"FastGen", "labels.size()", "2"}));
}

}  // namespace
}  // namespace kvevict_test
