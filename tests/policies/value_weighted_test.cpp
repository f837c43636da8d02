#include "kvevict/policies/value_weighted.hpp"

#include "support/errors.hpp"
#include "support/masks.hpp"
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
using kvevict::LongFlow;
using kvevict::Position;
using kvevict::VATP;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A prompt of three tokens with values (.1, .1), (2, -2), (1, 0).
template <class P>
RowSession<P> session_of(const typename P::Options& options, const HeadRows& rows,
                         const CacheShape& shape = kOneHead) {
  RowSession<P> session(options, shape);
  session.policy.begin(3);
  session.append(3);
  const std::vector<float> values = {.1F, .1F, 2, -2, 1, 0};
  for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::size_t slot = 0; slot < 3; ++slot)
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(2 * slot), 2,
                  session.cache.value(0, head, slot));
  }
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-6) << i;
}

// p = (.7, .2, .1), mean |v| = (.1, 2, .5): the newest token goes, since nothing protects it.
TEST(LongFlow, ScoresTheMeanContribution) {
  auto session = session_of<LongFlow>({.budget = 2}, {{{.7F, .2F, .1F}}});
  expect_near(scores_of(session.policy, session.cache), {.07F, .4F, .05F});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
}

TEST(LongFlow, ARecentWindowIsAnOption) {
  auto session = session_of<LongFlow>({.budget = 2, .recent_window = 1}, {{{.7F, .2F, .1F}}});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
}

// All query heads of the layer: p = (.7, .2, .1) and (.1, .2, .7) over two KV heads of equal
// values.
TEST(LongFlow, HeadsOfALayerShareOneSet) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
  auto session = session_of<LongFlow>({.budget = 2}, {{{.7F, .2F, .1F}}, {{.1F, .2F, .7F}}}, kTwo);
  expect_near(scores_of(session.policy, session.cache), {.04F, .4F, .2F});
}

// Values of equal size leave TOVA's choice.
TEST(LongFlow, OneTokenGoesInAStep) {
  RowSession<LongFlow> session({.budget = 3}, kOneHead);
  session.prompt(3);
  for (std::size_t slot = 0; slot < 4; ++slot)
    session.cache.value(0, 0, slot)[0] = 1;
  session.step({{{{.3F, .1F, .4F, .2F}}}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));
  EXPECT_FALSE(session.cut());
}

// A prompt of four under a budget of three that another policy cut to two: nothing goes until the
// cache has grown above the budget.
TEST(LongFlow, AnotherPolicyMayCutThePrompt) {
  RowSession<LongFlow> session({.budget = 3}, kOneHead);
  session.prompt(4);
  for (std::size_t slot = 0; slot < 6; ++slot)
    session.cache.value(0, 0, slot)[0] = 1;
  const kvevict::KeepMask mask = mask_of(kvevict::MaskScope::kLayer, 1, 1, {"0101"});
  session.cache.evict(mask);
  session.policy.apply(mask);
  EXPECT_FALSE(session.cut());
  session.step({{{{.1F, .5F, .4F}}}});
  EXPECT_FALSE(session.cut());
  session.step({{{{.1F, .5F, .3F, .1F}}}});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{1, 3, 4}));
}

// R4: all rows and values that are not numbers.
TEST(LongFlow, AValueOfNaNGoesFirst) {
  auto session = session_of<LongFlow>({.budget = 2}, {{{.7F, .2F, .1F}}});
  session.cache.value(0, 0, 1)[1] = kNaN;
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
  EXPECT_EQ(session.policy.counters().non_finite, 1U);
}

// (.7, .2, .1) times |v|_1 = (.2, 4, 1).
TEST(VATP, WeighsSumsByTheL1NormOfValues) {
  auto session = session_of<VATP>({.heavy = 2, .recent = 0, .num_sink_tokens = 0},
                                  {{{0}, {0, 0}, {.7F, .2F, .1F}}});
  expect_near(scores_of(session.policy, session.cache), {.14F, .8F, .1F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
}

// The same with |v|_2 = (.1414, 2.8284, 1); v = (1, 0) has the same norm either way.
TEST(VATP, TheL2NormIsAnOption) {
  const VATP::Options options{.heavy = 2, .recent = 0, .num_sink_tokens = 0, .l2_norm = true};
  auto session = session_of<VATP>(options, {{{0}, {0, 0}, {.7F, .2F, .1F}}});
  const float root = std::sqrt(2.0F);
  expect_near(scores_of(session.policy, session.cache), {.07F * root, .4F * root, .1F});
  // .14 beats .1 under L1; .09899 does not under L2.
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1, 2}));
}

// Small values would lose the first token; it is a sink.
TEST(VATP, TheFirstTokensStay) {
  const HeadRows rows = {{{0}, {0, 0}, {.7F, .2F, .4F}}};
  auto without = session_of<VATP>({.heavy = 2, .recent = 0, .num_sink_tokens = 0}, rows);
  without.cut();
  EXPECT_EQ(without.kept(), (Positions{1, 2}));
  auto session = session_of<VATP>({.heavy = 2, .recent = 0, .num_sink_tokens = 1}, rows);
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 1}));
}

// R9: what lies in padding is not looked at.
TEST(VATP, PaddingIsNoToken) {
  auto session = session_of<VATP>({.heavy = 1, .recent = 0, .num_sink_tokens = 0},
                                  {{{0}, {0, 0}, {.7F, .2F, .1F}}});
  session.cache.valid() = {0, 1, 1};
  session.cache.value(0, 0, 0)[0] = kNaN;
  expect_near(scores_of(session.policy, session.cache), {0, .8F, .1F});
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{1}));
}

// The default is a share of a prompt that is not known yet, beside four sinks.
TEST(VATP, DefaultsAreAPolicy) {
  EXPECT_NO_THROW(VATP({}, kOneHead));
}

TEST(VATP, RefusalsNameThePolicy) {
  EXPECT_TRUE(refuses([] { VATP({.heavy = kvevict::Budget::total(8)}, kOneHead); },
                      {"VATP", "heavy", "8"}));
}

}  // namespace
}  // namespace kvevict_test
