#include "kvevict/policies/raas.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::Position;
using kvevict::RaaS;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A prompt of two and pages of two.
RowSession<RaaS> session_of(std::size_t budget) {
  RowSession<RaaS> session({.budget = budget, .page_size = 2, .threshold = .2}, kOneHead);
  session.prompt(2);
  return session;
}
/// One step whose token gives .5 to each of the positions, as slots, and the rest to nothing.
void step(RowSession<RaaS>& session, const std::vector<std::size_t>& slots) {
  std::vector<float> row(session.kept().size() + 1, 0.0F);
  for (const std::size_t slot : slots)
    row[slot] = .5F;
  session.step({{{row}}});
}

// Pages {2, 3}, {4, 5}, {6, 7}, budget for three of them. Token 8 begins a fourth: stamps are then
// 7 (attended to by token 7), 5 and 7, so {4, 5} goes.
TEST(RaaS, ThePageThatWasNotAttendedToForLongestGoes) {
  auto session = session_of(8);
  for (std::size_t position = 2; position < 7; ++position) {
    step(session, {});
    EXPECT_FALSE(session.cut());
  }
  step(session, {3});
  EXPECT_FALSE(session.cut());
  step(session, {});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 6, 7, 8}));
  step(session, {});
  EXPECT_FALSE(session.cut());
  // Token 10: {2, 3} and {6, 7} are both of step 7; the later of equals goes.
  step(session, {});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 8, 9, 10}));
}

// policies.md's order: stamps 7, 9, 8 lose page 0; with page 2 attended to later, page 1 is next.
TEST(RaaS, AttentionRenewsAStamp) {
  auto session = session_of(8);
  for (std::size_t position = 2; position < 8; ++position)
    step(session, {});
  step(session, {2});  // token 8 begins page 3 and attends to page 0
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 6, 7, 8}));
}

// A page's attention is the sum over its tokens: .15 and .15 are more than .2.
TEST(RaaS, AttentionIsSummedOverThePage) {
  auto session = session_of(16);
  for (std::size_t position = 2; position < 6; ++position)
    step(session, {});
  session.step({{{{.7F, 0, .15F, .15F, .05F, .1F, 0}}}});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_EQ(std::vector<float>(scores.begin() + 2, scores.end()),
            (std::vector<float>{6, 6, 4, 5, 6}));
}

// Several tokens in one step are as many steps.
TEST(RaaS, DraftsAttendOneAfterAnother) {
  auto session = session_of(16);
  session.append(3);
  session.rows(0, {{{0, 0, 1}, {0, 0, .5F, 0}, {0, 0, .5F, .5F, 0}}});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_EQ(std::vector<float>(scores.begin() + 2, scores.end()), (std::vector<float>{4, 4, 4}));
  session.truncate(3);
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2}));
}

// All heads of a layer: .1 and .5 are .3 on average.
TEST(RaaS, HeadsShareOneSet) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  RowSession<RaaS> session({.budget = 16, .page_size = 1, .threshold = .2}, kTwo);
  session.prompt(1);
  session.step({{{{0, 0}}, {{0, 0}}}});
  session.step({{{{0, .1F, 0}}, {{0, .5F, 0}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache)[1], 2.0F);
  session.step({{{{0, .1F, 0, 0}}, {{0, .2F, 0, 0}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache)[1], 2.0F);
}

// Prompts stay, whatever the budget; then nothing is left for decoding.
TEST(RaaS, PromptsStay) {
  RowSession<RaaS> session({.budget = 3, .page_size = 2}, kOneHead);
  session.prompt(5);
  EXPECT_FALSE(session.cut());
  step(session, {});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 4}));
  // A second prompt begins pages anew.
  auto two = session_of(16);
  step(two, {});
  two.prompt(2);
  step(two, {});
  step(two, {});
  step(two, {5});
  const std::vector<float> scores = scores_of(two.policy, two.cache);
  EXPECT_EQ(scores[5], 7.0F);
  EXPECT_EQ(scores[6], 7.0F);
}

// A budget smaller than a page keeps the newest tokens of the one that is written.
TEST(RaaS, TheBudgetHoldsEvenForThePageThatIsWritten) {
  RowSession<RaaS> session({.budget = 4, .page_size = 4}, kOneHead);
  session.prompt(2);
  for (std::size_t i = 0; i < 3; ++i) {
    step(session, {});
    session.cut();
  }
  EXPECT_EQ(session.kept(), (Positions{0, 1, 3, 4}));
}

// R19: an entry that is no number is no attention.
TEST(RaaS, NaNIsNoAttention) {
  auto session = session_of(16);
  step(session, {});
  session.step({{{{0, 0, kNaN, 0}}}});
  session.step({{{{0, 0, kNaN, .9F, 0}}}});
  EXPECT_EQ(scores_of(session.policy, session.cache)[2], 2.0F);
}

TEST(RaaS, RefusesWhatItCannotUse) {
  EXPECT_TRUE(refuses([] { RaaS({.page_size = 0}, kOneHead); }, {"RaaS", "page_size", "0"}));
  EXPECT_TRUE(refuses([] { RaaS({.threshold = -1}, kOneHead); }, {"RaaS", "threshold", "-1"}));
}

}  // namespace
}  // namespace kvevict_test
