#include "kvevict/policies/rkv.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::Position;
using kvevict::RKV;
using kvevict::RKVOptions;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kGroup{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 2};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

RKVOptions plain(std::size_t budget, double lambda) {
  return {.budget = budget,
          .buffer = 1,
          .observation_window = 1,
          .lambda = lambda,
          .pooling = {.kernel_size = 1}};
}
/// A prompt with these keys, of two channels, and no attention.
RowSession<RKV> session_of(const RKVOptions& options, const std::vector<std::vector<float>>& keys) {
  RowSession<RKV> session(options, kOneHead);
  session.prompt(keys.size());
  for (std::size_t slot = 0; slot < keys.size(); ++slot)
    std::copy_n(keys[slot].begin(), 2, session.cache.key(0, 0, slot));
  return session;
}
std::vector<float> first_scores(RowSession<RKV>& session, std::size_t count) {
  std::vector<float> scores = scores_of(session.policy, session.cache);
  scores.resize(count);
  return scores;
}
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
}

// Cosines of A, A, B, A without the newest alike of each row: rows (0 1 0 0), (1 0 0 0), 0 and
// (1 0 0 0), column means .5, .25, 0, 0. Their softmax: the newest A is as safe as B.
TEST(RKV, TheNewestOfSeveralAlikeIsNotCharged) {
  auto session = session_of(plain(2, 0.0), {{1, 0}, {3, 0}, {0, 1}, {2, 0}});
  expect_near(first_scores(session, 3), {-.33424F, -.26031F, -.20273F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{2, 3}));
}

// The authors' code: B's row, which has nothing alike, loses its first entry; here that is 0
// anyway. With A, B at an angle of cosine .5 the row of B counts .5 for A, or 0.
TEST(RKV, TheAuthorsQuirkIsAnOption) {
  const std::vector<std::vector<float>> keys = {{2, 0}, {1, std::sqrt(3.0F)}, {0, 0}};
  RKVOptions options = plain(2, 0.0);
  auto session = session_of(options, keys);
  // Column means .5 / 3, .5 / 3, 0.
  const float alike = std::exp(.5F / 3);
  expect_near(first_scores(session, 2), {-alike / (2 * alike + 1), -alike / (2 * alike + 1)});
  options.charge_first = true;  // the rows of B and of the zero key lose what they say of A
  auto official = session_of(options, keys);
  expect_near(first_scores(official, 2), {-1 / (alike + 2), -alike / (alike + 2)});
}

// Logits (0, ln 3, 0) and (ln 2, 0, 0): the larger ones of the past are ln 2 and ln 3, whose
// softmax is .4 and .6. Without the denominators, 5 and 4, the probabilities are taken as they are.
TEST(RKV, TheLargestLogitOfAGroupCounts) {
  const HeadRows rows = {{{.2F, .6F, .2F}}, {{.5F, .25F, .25F}}};
  const std::vector<float> log_sums = {std::log(5.0F), std::log(4.0F)};
  for (const bool given : {true, false}) {
    RowSession<RKV> session(plain(2, 1.0), kGroup);
    session.policy.begin(3);
    session.append(3);
    const GivenRows data(rows);
    kvevict::AttentionRows attention = data.rows();
    attention.log_sums = given ? log_sums.data() : nullptr;
    session.policy.observe_attention(0, attention);
    session.policy.end_prefill(session.cache.view());
    expect_near(first_scores(session, 2),
                given ? std::vector<float>{.4F, .6F} : std::vector<float>{5.0F / 11, 6.0F / 11});
  }
}

// A row that saw nothing has a denominator of 0 in every head: it adds nothing, and nothing of it
// is not finite.
TEST(RKV, ARowThatSawNothingIsNoFault) {
  const HeadRows rows = {{{0, 0, 0}}, {{0, 0, 0}}};
  const float nothing = -std::numeric_limits<float>::infinity();
  const std::vector<float> log_sums = {nothing, nothing};
  RowSession<RKV> session(plain(2, 1.0), kGroup);
  session.policy.begin(3);
  session.append(3);
  const GivenRows data(rows);
  kvevict::AttentionRows attention = data.rows();
  attention.log_sums = log_sums.data();
  session.policy.observe_attention(0, attention);
  EXPECT_EQ(session.policy.counters().non_finite, 0U);
}

// From queries the denominators are known: q = (ln 2, ln 3) / scale and its mirror image.
TEST(RKV, QueriesGiveTheDenominators) {
  RowSession<RKV> session(plain(2, 1.0), kGroup);
  session.policy.begin(3);
  session.append(3);
  session.cache.key(0, 0, 0)[0] = 1;
  session.cache.key(0, 0, 1)[1] = 1;
  const std::vector<float> queries = {0, std::log(3.0F), std::log(2.0F), 0};
  session.policy.observe_queries(0,
                                 {.data = queries.data(),
                                  .num_q_heads = 2,
                                  .num_rows = 1,
                                  .head_stride = 2,
                                  .row_stride = 2,
                                  .scale = 1},
                                 session.cache.view());
  session.policy.end_prefill(session.cache.view());
  expect_near(first_scores(session, 2), {.4F, .6F});
}

// Two rows over two tokens of the past: (.1, .3) and (.6, .2) are (.25, .75) and (.75, .25) there.
// After an eviction the token that is left has all of the past.
TEST(RKV, RowsAreOverThePastThatIsCached) {
  RKVOptions options = plain(3, 1.0);
  options.observation_window = 2;
  RowSession<RKV> session(options, kOneHead);
  session.policy.begin(4);
  session.append(4);
  session.rows(0, {{{.1F, .3F, .6F}, {.6F, .2F, .1F, .1F}}});
  session.policy.end_prefill(session.cache.view());
  expect_near(first_scores(session, 2), {.5F, .5F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));
  expect_near(first_scores(session, 1), {1});
}

// Decoding moves the window: rows of tokens that left it no longer count.
TEST(RKV, TheWindowMovesOn) {
  RowSession<RKV> session(plain(8, 1.0), kOneHead);
  session.prompt(2);
  session.step({{{{.9F, .1F, 0}}}});
  expect_near(first_scores(session, 2), {.9F, .1F});
  session.step({{{{.2F, .2F, .6F, 0}}}});
  expect_near(first_scores(session, 3), {.2F, .2F, .6F});
  // A draft that is taken back leaves no row.
  session.step({{{{.3F, .3F, .2F, .2F, 0}}}});
  session.truncate(4);
  expect_near(first_scores(session, 3), {0, 0, 0});
}

// budget + buffer tokens make it time to cut, and a cut leaves the budget.
TEST(RKV, CutsOncePerBuffer) {
  RKVOptions options = plain(4, 0.5);
  options.buffer = 3;
  RowSession<RKV> session(options, kOneHead);
  session.prompt(3);
  std::vector<std::size_t> lengths;
  for (std::size_t step = 0; step < 8; ++step) {
    session.append(1);
    session.cut();
    lengths.push_back(session.kept().size());
  }
  EXPECT_EQ(lengths, (std::vector<std::size_t>{4, 5, 6, 4, 5, 6, 4, 5}));
}
TEST(RKV, KeepsAllUpToTheBudget) {
  for (std::size_t len = 0; len <= 6; ++len) {
    RowSession<RKV> session(plain(4, 0.5), kOneHead);
    session.prompt(len);
    EXPECT_EQ(session.cut(), len > 4);
    EXPECT_EQ(session.kept().size(), std::min<std::size_t>(len, 4));
  }
}

// R9 and R4: padding is like no key and no neighbour; a key of NaN harms nobody else.
TEST(RKV, PaddingAndNaN) {
  auto session = session_of(plain(2, 0.0), {{kNaN, 0}, {1, 0}, {3, 0}, {0, 1}, {2, 0}});
  session.cache.valid() = {0, 1, 1, 1, 1};
  expect_near(first_scores(session, 4), {0, -.33424F, -.26031F, -.20273F});
  auto nan = session_of(plain(2, 0.0), {{1, 0}, {3, 0}, {kNaN, 1}, {2, 0}});
  expect_near(first_scores(nan, 3), {-.33424F, -.26031F, -.20273F});
}

TEST(RKV, RefusesWhatItCannotUse) {
  RKVOptions options = plain(4, 1.5);
  EXPECT_TRUE(refuses([&] { RKV(options, kOneHead); }, {"RKV", "lambda", "1.5"}));
  options = plain(4, 0.1);
  options.observation_window = 0;
  EXPECT_TRUE(refuses([&] { RKV(options, kOneHead); }, {"RKV", "observation_window", "0"}));
  options = plain(4, 0.1);
  options.buffer = 0;
  EXPECT_TRUE(refuses([&] { RKV(options, kOneHead); }, {"RKV", "buffer", "0"}));
  EXPECT_TRUE(refuses([] { RKV({.budget = 4}, kOneHead); }, {"RKV", "budget", "4"}));
}

}  // namespace
}  // namespace kvevict_test
