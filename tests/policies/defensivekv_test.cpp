#include "kvevict/policies/defensivekv.hpp"

#include "support/errors.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::CacheShape;
using kvevict::Competition;
using kvevict::DefensiveKV;
using kvevict::DefensiveKVOptions;
using kvevict::OutputProjection;
using kvevict::Position;

using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

/// Values as they are: |v W_O| = |v| with one channel.
std::shared_ptr<const OutputProjection> identity(const CacheShape& shape) {
  auto projection = std::make_shared<OutputProjection>(shape, 1, std::nullopt, true);
  const std::vector<float> ones(shape.num_q_heads, 1.0F);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer)
    projection->set_layer(layer, ones.data());
  return projection;
}
DefensiveKVOptions options_of(const CacheShape& shape, std::size_t budget, std::size_t window) {
  return {.budget = budget,
          .observation_window = window,
          .pooling = {.kernel_size = 1},
          .first_stage_mass = 0,
          .output_projection = identity(shape)};
}
/// A prompt with rows of its window, all values 1.
RowSession<DefensiveKV> session_of(const DefensiveKVOptions& options, const CacheShape& shape,
                                   const HeadRows& rows) {
  RowSession<DefensiveKV> session(options, shape);
  const std::size_t len = rows[0].back().size();
  session.policy.begin(len);
  session.append(len);
  for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::size_t slot = 0; slot < len; ++slot)
      *session.cache.value(0, head, slot) = 1;
  }
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}

// Means (.2, .25, .1, .15) would keep 0 and 1. The largest are .4, .3, .2, .3: mean .3, so slot 2
// is lifted to .3 and the lower of the equal ones stays.
TEST(DefensiveKV, TheWorstCaseOfTheRows) {
  const HeadRows rows = {{{.0F, .3F, .2F, .0F, .5F}, {.4F, .2F, .0F, .3F, .05F, .05F}}};
  auto session = session_of(options_of(kOneHead, 4, 2), kOneHead, rows);
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  for (const auto& [slot, score] :
       std::vector<std::pair<std::size_t, float>>{{0, .4F}, {1, .3F}, {2, .3F}, {3, .3F}})
    EXPECT_FLOAT_EQ(scores[slot], score);
  EXPECT_FLOAT_EQ(scores[4], 0.0F);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 4, 5}));
  session.append(2);
  EXPECT_FALSE(session.policy.should_evict());
}

// Under a kernel of 3 with zeros outside (0, 0, .6, 0) is (0, .2, .2, .2), whose sum was .6 before
// and after; (.6, 0, 0, 0) is (.2, .2, 0, 0) and loses a third at the edge, which the scale gives
// back: (.3, .3, 0, 0).
TEST(DefensiveKV, PoolingARowKeepsItsMass) {
  DefensiveKVOptions options = options_of(kOneHead, 3, 1);
  options.pooling.kernel_size = 3;
  auto inside = session_of(options, kOneHead, {{{.0F, .0F, .6F, .0F, .4F}}});
  const auto scores = scores_of(inside.policy, inside.cache);
  EXPECT_NEAR(scores[1], .2F, 1e-6F);
  EXPECT_NEAR(scores[0], .15F, 1e-6F);  // the mean of the four
  auto edge = session_of(options, kOneHead, {{{.6F, .0F, .0F, .0F, .4F}}});
  EXPECT_NEAR(scores_of(edge.policy, edge.cache)[0], .3F, 1e-6F);
}

// Equal attention; of slot 0 head 0 has the larger value, of slot 1 head 1, by 3 to 1.
TEST(DefensiveKV, HeadsCompeteByTheShareOfTheirValues) {
  const HeadRows rows = {{{.25F, .25F, .5F}}, {{.25F, .25F, .5F}}};
  auto session = session_of(options_of(kTwoHeads, 2, 1), kTwoHeads, rows);
  *session.cache.value(0, 0, 0) = -3;
  *session.cache.value(0, 1, 1) = 3;
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 2}));
  EXPECT_EQ(session.kept(1), (Positions{1, 2}));
  // Where values are equal a slot that no head has a value for loses nothing.
  auto zero =
      session_of(options_of(kTwoHeads, 2, 1), kTwoHeads, {{{.4F, .1F, .5F}}, {{.4F, .1F, .5F}}});
  *zero.cache.value(0, 0, 0) = 0;
  *zero.cache.value(0, 1, 0) = 0;
  ASSERT_TRUE(zero.cut());
  EXPECT_EQ(zero.kept(0), (Positions{0, 2}));
}

// Both heads have .3 .1 .05 .05 in some order, .5 in all, and .5 in the window. Values let head 1
// win everything, so that the first stage shows in head 0.
TEST(DefensiveKV, WhatHoldsTheMassComesFirst) {
  const HeadRows rows = {{{.30F, .10F, .05F, .05F, .50F}}, {{.05F, .10F, .05F, .30F, .50F}}};
  DefensiveKVOptions options = options_of(kTwoHeads, 3, 1);
  const auto kept = [&](bool official, double mass) {
    options.official_window_mass = official;
    options.first_stage_mass = mass;
    auto session = session_of(options, kTwoHeads, rows);
    for (std::size_t slot = 0; slot < 4; ++slot)
      *session.cache.value(0, 1, slot) = 1000;
    session.cut();
    return std::vector<Positions>{session.kept(0), session.kept(1)};
  };
  using Kept = std::vector<Positions>;
  // .9 less the window's .5 is .4 of .5, which .3 reaches at once: no rank lies below it.
  EXPECT_EQ(kept(false, .9), (Kept{{4}, {0, 1, 2, 3, 4}}));
  // And .5 of .5.
  EXPECT_EQ(kept(false, 1.0).at(0), (Positions{4}));
  // The slot before the window has .05 and .3, .175 on average: .9 - .175 = .725 of .5 is .3625,
  // and .3 of the first rank is below it, .4 of two is not.
  EXPECT_EQ(kept(true, .9).at(0), (Positions{0, 4}));
  // .825 of .5 is .4125: .4 is below it, and two are an equal part of the four.
  EXPECT_EQ(kept(true, 1.0).at(0), (Positions{0, 1, 4}));
}

// A row's NaN counts as 0 and spoils no neighbour (rule R19).
TEST(DefensiveKV, NaNInARowIsCounted) {
  DefensiveKVOptions options = options_of(kOneHead, 3, 1);
  options.pooling.kernel_size = 3;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto session = session_of(options, kOneHead, {{{nan, .0F, .0F, .6F, .4F}}});
  EXPECT_EQ(session.policy.counters().non_finite, 1U);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept().size(), 3U);
}

// Against the definition in double, with groups, several rows and both competitions.
TEST(DefensiveKV, ScoresAreTheDefinition) {
  constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 3};
  constexpr std::size_t kLen = 23;
  constexpr std::size_t kWindow = 4;
  constexpr std::size_t kPrefix = kLen - kWindow;
  constexpr std::size_t kHidden = 5;
  Random random(11);
  auto projection = std::make_shared<OutputProjection>(kShape, kHidden, std::nullopt, true);
  std::vector<float> weight(4 * 3 * kHidden);
  for (float& x : weight)
    x = random.eighths();
  projection->set_layer(0, weight.data());
  projection->set_layer(1, weight.data());
  RowSession<DefensiveKV> session({.budget = 10,
                                   .competition = Competition::kModel,
                                   .observation_window = kWindow,
                                   .output_projection = projection},
                                  kShape);
  session.cache.fill(random);
  session.policy.begin(kLen);
  session.append(kLen);
  std::vector<HeadRows> rows(2, HeadRows(4, std::vector<std::vector<float>>(kWindow)));
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (auto& head : rows[layer]) {
      for (std::size_t r = 0; r < kWindow; ++r) {
        for (std::size_t slot = 0; slot <= kPrefix + r; ++slot)
          head[r].push_back(std::abs(random.eighths()) / 40);
      }
    }
    session.rows(layer, rows[layer]);
  }
  session.policy.end_prefill(session.cache.view());
  const auto norm = [&](std::size_t layer, std::size_t kv, std::size_t slot) {
    double sum = 0;
    for (std::size_t h = 2 * kv; h < 2 * kv + 2; ++h) {
      for (std::size_t j = 0; j < kHidden; ++j) {
        double x = 0;
        for (std::size_t c = 0; c < 3; ++c)
          x += static_cast<double>(session.cache.value(layer, kv, slot)[c]) *
               static_cast<double>(weight[(h * 3 + c) * kHidden + j]);
        sum += std::abs(x) / 2;
      }
    }
    return sum;
  };
  std::vector<kvevict::ScoredLane> lanes;
  std::vector<std::vector<float>> scores(4, std::vector<float>(kLen));
  const auto view = session.cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, session.policy.sequence(), kvevict::kernels::best(),
                                  scratch};
  for (std::size_t lane = 0; lane < 4; ++lane) {
    session.policy.method().score(input, lane, scores[lane]);
    lanes.push_back({lane, scores[lane], {}, {}});
  }
  session.policy.method().normalise(lanes, input);
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const std::size_t layer = lane / 2;
    const std::size_t kv = lane % 2;
    std::vector<double> largest(kPrefix, 0.0);
    for (std::size_t h = 2 * kv; h < 2 * kv + 2; ++h) {
      for (const std::vector<float>& row : rows[layer][h]) {
        std::vector<double> pooled(kPrefix, 0.0);
        double before = 0;
        double after = 0;
        for (std::size_t i = 0; i < kPrefix; ++i) {
          for (std::size_t j = i < 2 ? 0 : i - 2; j < std::min(kPrefix, i + 3); ++j)
            pooled[i] += static_cast<double>(row[j]) / 5;
          before += static_cast<double>(row[i]);
          after += pooled[i];
        }
        for (std::size_t i = 0; i < kPrefix; ++i)
          largest[i] = std::max(largest[i], pooled[i] * before / after);
      }
    }
    double mean = 0;
    for (const double x : largest)
      mean += x / kPrefix;
    for (std::size_t i = 0; i < kPrefix; ++i) {
      const double share = norm(layer, kv, i) * 2 / (norm(layer, 0, i) + norm(layer, 1, i));
      EXPECT_NEAR(static_cast<double>(scores[lane][i]), std::max(largest[i], mean) * share, 1e-6)
          << lane << ' ' << i;
    }
  }
  EXPECT_EQ(session.policy.select(session.cache.view()).total_count(), 40U);
}

TEST(DefensiveKV, RefusesWhatCannotBe) {
  const auto refused = [](auto change, const char* what) {
    DefensiveKVOptions options = options_of(kTwoHeads, 10, 2);
    change(options);
    return refuses([&] { DefensiveKV(options, kTwoHeads); }, {"DefensiveKV", what});
  };
  EXPECT_TRUE(refused([](auto& o) { o.budget = 1; }, "budget = 1"));
  EXPECT_TRUE(refused([](auto& o) { o.competition = Competition::kLane; }, "competition"));
  EXPECT_TRUE(refused([](auto& o) { o.first_stage_mass = 2; }, "first_stage_mass = 2"));
  EXPECT_TRUE(refused([](auto& o) { o.observation_window = 0; }, "observation_window = 0"));
  EXPECT_TRUE(refused([](auto& o) { o.pooling.kernel_size = 4; }, "kernel_size = 4"));
  EXPECT_TRUE(refused([](auto& o) { o.output_projection = nullptr; }, "output_projection"));
}

}  // namespace
}  // namespace kvevict_test
