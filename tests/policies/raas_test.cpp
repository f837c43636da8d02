#include "kvevict/policies/raas.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::Position;
using kvevict::RaaS;
using kvevict::RaaSBounds;
using kvevict::StampRule;
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

/// Pages of one token behind a prompt of one, by the better half.
RowSession<RaaS> halves() {
  RowSession<RaaS> session({.budget = 16, .page_size = 1, .stamp = StampRule::kTopHalf}, kOneHead);
  session.prompt(1);
  return session;
}
std::vector<float> stamps_of(RowSession<RaaS>& session) {
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  return {scores.begin() + 1, scores.end()};
}

// Four pages, of which two are attended to, however little they get; the prompt's .9 is in no half.
// Of five the better three. A token's own page has its stamp in any case.
TEST(RaaS, TheBetterHalfOfThePagesIsStamped) {
  auto session = halves();
  session.step({{{{1, 0}}}});
  session.step({{{{.5F, .4F, .1F}}}});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{2, 2}));
  session.step({{{{.7F, .15F, .1F, .05F}}}});  // two of three
  EXPECT_EQ(stamps_of(session), (std::vector<float>{3, 3, 3}));
  session.step({{{{.9F, .01F, .04F, .02F, .03F}}}});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{3, 4, 3, 4}));
  session.step({{{{.9F, .04F, .01F, .03F, .02F, 0}}}});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{5, 4, 5, 5, 5}));
}

// Equal pages: the earlier ones. NaN comes last, and is no attention where it is in the half.
TEST(RaaS, TiesAndNaNAmongTheBetterHalf) {
  auto session = halves();
  for (std::size_t position = 1; position < 4; ++position)
    step(session, {});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{3, 3, 3}));
  session.step({{{{.6F, .1F, .1F, .1F, .1F}}}});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{4, 4, 3, 4}));
  session.step({{{{0, kNaN, kNaN, kNaN, .1F, 0}}}});
  EXPECT_EQ(stamps_of(session), (std::vector<float>{4, 4, 3, 5, 5}));
}

// 64 pages with one of three weights: by a full sort, the same half.
TEST(RaaS, TheBetterHalfIsThatOfAFullSort) {
  Random random(17);
  RowSession<RaaS> session({.budget = 64, .page_size = 1, .stamp = StampRule::kTopHalf}, kOneHead);
  session.prompt(1);
  for (std::size_t i = 0; i < 62; ++i)
    step(session, {});
  std::vector<float> row{0};
  std::vector<std::pair<float, std::size_t>> order;
  for (std::size_t page = 0; page < 63; ++page) {
    row.push_back(static_cast<float>(random.bits() % 3) / 8);
    order.push_back({-row.back(), page});
  }
  session.step({{{row}}});
  std::sort(order.begin(), order.end());
  const std::vector<float> stamps = stamps_of(session);
  for (std::size_t rank = 0; rank < 63; ++rank) {
    const std::size_t page = order[rank].second;
    EXPECT_EQ(stamps[page] == 63, rank < 32 || page == 62) << page;
  }
}

// Keys of one channel and a query of 1 at scale 1. Prompt: 0, 0; pages {2, 3}: ln 5, 0; {4, 5}: 0,
// 0; {6}: 0. The page of the bound ln 5 gets 5 of 1 + 5 + 1 + 1, the others 1/8 each: above .2 is
// {2, 3} alone.
TEST(RaaSBounds, PagesAreStampedByTheirBounds) {
  RowSession<RaaSBounds> session({.budget = 6, .page_size = 2, .threshold = .2}, kOneHead);
  session.prompt(2);
  const float one = 1;
  for (std::size_t position = 2; position < 7; ++position) {
    session.append(1);
    session.cache.key(0, 0, position)[0] = position == 2 ? std::log(5.0F) : 0.0F;
    // The tokens 2 to 5 are not handed over: each page has the stamp of its newest token.
    if (position == 6) {
      session.policy.observe_queries(
          0, {.data = &one, .num_q_heads = 1, .num_rows = 1, .head_stride = 1, .row_stride = 1},
          session.cache.view());
    }
  }
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 1, 6, 6, 4, 5, 6}));
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 6}));
}

// The same by rank: of three decoded pages the best two, {2, 3} and, of equal ones, {4, 5}.
TEST(RaaSBounds, HasTheBetterHalfToo) {
  RowSession<RaaSBounds> session({.budget = 16, .page_size = 2, .stamp = StampRule::kTopHalf},
                                 kOneHead);
  session.prompt(2);
  session.append(5);
  session.cache.key(0, 0, 3)[0] = 1;
  const std::vector<float> queries(5, 1.0F);
  session.policy.observe_queries(
      0,
      {.data = queries.data(), .num_q_heads = 1, .num_rows = 5, .head_stride = 5, .row_stride = 1},
      session.cache.view());
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{0, 1, 6, 6, 6, 6, 6}));
}

TEST(RaaS, RefusesWhatItCannotUse) {
  EXPECT_TRUE(refuses([] { RaaS({.page_size = 0}, kOneHead); }, {"RaaS", "page_size", "0"}));
  EXPECT_TRUE(refuses([] { RaaS({.threshold = -1}, kOneHead); }, {"RaaS", "threshold", "-1"}));
  EXPECT_TRUE(refuses([] { RaaSBounds({.page_size = 0}, kOneHead); }, {"RaaSBounds", "page_size"}));
}

}  // namespace
}  // namespace kvevict_test
