#include "kvevict/policies/thinkv.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::Position;
using kvevict::ThinKV;
using kvevict::ThinKVOptions;
using kvevict::Thought;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};

/// Segments of four, of which 3, 2 and 1 tokens stay at the levels 1, 2 and 3.
ThinKVOptions small(std::size_t budget) {
  return {.budget = budget,
          .segment_len = 4,
          .execution_below = .3,
          .transition_from = .7,
          .schedule = {3, 2, 1}};
}
/// A prompt of one token; token p's key is (p, 0).
RowSession<ThinKV> session_of(const ThinKVOptions& options) {
  RowSession<ThinKV> session(options, kOneHead);
  session.prompt(1);
  return session;
}
/// A step whose token gives nothing to `sparse` of the slots and as much to each of the others.
bool step(RowSession<ThinKV>& session, double sparse) {
  const std::size_t len = session.kept().size() + 1;
  std::vector<float> row(len, 1.0F);
  std::fill_n(row.begin(), static_cast<std::size_t>(sparse * static_cast<double>(len) + .5), 0.0F);
  session.step({{{row}}});
  session.cache.key(0, 0, len - 1)[0] = static_cast<float>(session.policy.length() - 1);
  return session.cut();
}
void segment(RowSession<ThinKV>& session, double sparse) {
  for (std::size_t i = 0; i < 4; ++i)
    step(session, sparse);
}
std::vector<Thought> thoughts(const RowSession<ThinKV>& session) {
  std::vector<Thought> thoughts;
  const auto& signal = session.policy.method().parts().signal();
  for (const auto& share : signal.shares(session.policy.sequence(), 0, 1000))
    thoughts.push_back(share.thought);
  return thoughts;
}

// Less than 1 % of the largest entry is sparse: of (1, .009, .011, 0, .5) two of five.
TEST(ThinKV, SparsityTellsWhatASegmentIs) {
  auto session = session_of({.budget = 100,
                             .segment_len = 1,
                             .execution_below = .39,
                             .transition_from = .41,
                             .schedule = {1}});
  session.append(3);
  session.rows(0, {{{1, 1}, {0, 1, 0}, {1, 1, 0, 0}}});  // 0, 2/3, 1/2
  session.step({{{{1, .009F, .011F, 0, .5F}}}});
  EXPECT_EQ(thoughts(session), (std::vector{Thought::kExecution, Thought::kTransition,
                                            Thought::kTransition, Thought::kReasoning}));
}

// Tokens 1-4 reason, 5-8 are a transition, and when it ends 1-4 lose one; after the next one they
// lose another and the first transition loses its first.
TEST(ThinKV, ATransitionMovesAllBeforeItOneLevelDown) {
  auto session = session_of(small(100));
  segment(session, .5);
  EXPECT_EQ(session.kept().size(), 5U);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_FALSE(step(session, .9));
  EXPECT_TRUE(step(session, .9));
  EXPECT_EQ(session.kept().size(), 8U);
  const auto count = [&](Position first, Position last) {
    const Positions kept = session.kept();
    return std::count_if(kept.begin(), kept.end(),
                         [&](Position p) { return p >= first && p < last; });
  };
  EXPECT_EQ(count(1, 5), 3);
  EXPECT_EQ(count(5, 9), 4);
  segment(session, .9);
  EXPECT_EQ(count(1, 5), 2);
  EXPECT_EQ(count(5, 9), 3);
  EXPECT_EQ(count(9, 13), 4);
  for (std::size_t i = 0; i < 5; ++i)
    segment(session, .9);
  EXPECT_EQ(count(1, 5), 1);  // the end of the schedule
  EXPECT_EQ(count(0, 1), 1);  // the prompt
}

// Execution (1-4), reasoning (5-8), execution (9-12) and a budget of 13 with the prompt. Token 13
// is one too many: the oldest execution loses one; then again and again, then the second one.
TEST(ThinKV, TheOldestOfTheLeastImportantMakesRoom) {
  auto session = session_of(small(13));
  segment(session, 0);
  segment(session, .5);
  segment(session, 0);
  EXPECT_EQ(session.kept().size(), 13U);
  const auto counts = [&] {
    std::vector<std::size_t> tokens(4);
    for (const Position p : session.kept()) {
      if (p > 0)
        ++tokens[std::min<std::size_t>(3, static_cast<std::size_t>(p - 1) / 4)];
    }
    return tokens;
  };
  using Counts = std::vector<std::size_t>;
  EXPECT_TRUE(step(session, .5));
  EXPECT_EQ(counts(), (Counts{3, 4, 4, 1}));
  step(session, .5);
  EXPECT_EQ(counts(), (Counts{2, 4, 4, 2}));
  step(session, .5);
  EXPECT_EQ(counts(), (Counts{1, 4, 4, 3}));
  step(session, .5);
  EXPECT_EQ(counts(), (Counts{1, 4, 3, 4}));
}

// A budget of six with the prompt: after reasoning (1-4), execution (5-8) and reasoning (9-12) one,
// one and three tokens are left. Two more cost the third two of them; then all are at the end of
// the schedule, and execution goes.
TEST(ThinKV, AtTheEndOfTheScheduleSegmentsGo) {
  auto session = session_of(small(6));
  const auto count = [&](Position first, Position last) {
    const Positions kept = session.kept();
    return std::count_if(kept.begin(), kept.end(),
                         [&](Position p) { return p >= first && p < last; });
  };
  segment(session, .5);
  segment(session, 0);
  segment(session, .5);
  EXPECT_EQ(count(1, 5), 1);
  EXPECT_EQ(count(5, 9), 1);
  EXPECT_EQ(count(9, 13), 3);
  for (std::size_t i = 0; i < 3; ++i)
    step(session, .5);
  EXPECT_EQ(count(1, 5), 1);
  EXPECT_EQ(count(5, 9), 0);
  EXPECT_EQ(count(9, 13), 1);
  EXPECT_EQ(session.kept().size(), 6U);
}

// A budget below the segment that is being written: its newest tokens stay.
TEST(ThinKV, NoBudgetIsExceeded) {
  auto session = session_of(small(3));
  segment(session, .5);
  EXPECT_EQ(session.kept().size(), 3U);
  step(session, .5);
  step(session, .5);
  step(session, .5);
  EXPECT_EQ(session.kept(), (Positions{0, 6, 7}));
}

// Keys 1, 2, 3 and 40: two centroids start at tokens 1 and 3 (keys 2 and 40) and end at 2 and 40.
TEST(ThinKV, TheNearestToTheCentroidsStay) {
  auto session = session_of(small(100));
  session.append(4);
  for (const auto& [slot, key] : {std::pair{1, 1.F}, {2, 2.F}, {3, 3.F}, {4, 40.F}})
    session.cache.key(0, 0, static_cast<std::size_t>(slot))[0] = key;
  const auto view = session.cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, session.policy.sequence(), kvevict::kernels::best(),
                                  scratch};
  const std::vector<std::uint32_t> slots{1, 2, 3, 4};
  Positions taken;
  const auto take = [&](std::size_t slot) { taken.push_back(static_cast<Position>(slot)); };
  kvevict::KeyClusters(10).choose(input, 0, slots, 2, take);
  EXPECT_EQ(taken, (Positions{2, 4}));
  // Three: they start at keys 1, 3, 40; 2 is as far from 1 as from 3 and goes to the first, whose
  // mean is 1.5: the lower of equals is nearest to it.
  taken.clear();
  kvevict::KeyClusters(10).choose(input, 0, slots, 3, take);
  EXPECT_EQ(taken, (Positions{1, 3, 4}));
  // A key that is not finite comes last.
  session.cache.key(0, 0, 4)[1] = std::numeric_limits<float>::quiet_NaN();
  taken.clear();
  kvevict::KeyClusters(10).choose(input, 0, slots, 3, take);
  EXPECT_EQ(taken.size(), 3U);
  EXPECT_EQ(std::count(taken.begin(), taken.end(), 4), 0);
}

// Lloyd's algorithm in double, written once more.
TEST(ThinKV, ClustersAreThoseOfLloydsAlgorithm) {
  Random random(23);
  constexpr std::size_t kTokens = 24;
  constexpr std::size_t kCount = 5;
  RowSession<ThinKV> session(small(100), kOneHead);
  session.append(kTokens);
  std::vector<std::vector<double>> keys;
  for (std::size_t slot = 0; slot < kTokens; ++slot) {
    for (std::size_t c = 0; c < 2; ++c) {
      session.cache.key(0, 0, slot)[c] =
          random.eighths() + static_cast<float>(random.below(1000)) / 8000;
    }
    keys.push_back({session.cache.key(0, 0, slot)[0], session.cache.key(0, 0, slot)[1]});
  }
  const auto distance = [](const auto& a, const auto& b) {
    return std::pow(a[0] - b[0], 2) + std::pow(a[1] - b[1], 2);
  };
  std::vector<std::vector<double>> centroids;
  for (std::size_t i = 0; i < kCount; ++i)
    centroids.push_back(keys[(2 * i + 1) * kTokens / (2 * kCount)]);
  const auto nearest = [&](const auto& points, const auto& to, const auto& skip) {
    std::size_t best = points.size();
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (!skip(i) &&
          (best == points.size() || distance(points[i], to) < distance(points[best], to)))
        best = i;
    }
    return best;
  };
  const auto none = [](std::size_t) { return false; };
  for (std::size_t round = 0; round < 10; ++round) {
    std::vector<std::vector<double>> sums(kCount, std::vector<double>(3));
    for (const auto& key : keys) {
      auto& sum = sums[nearest(centroids, key, none)];
      sum[0] += key[0];
      sum[1] += key[1];
      sum[2] += 1;
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      if (sums[i][2] > 0)
        centroids[i] = {sums[i][0] / sums[i][2], sums[i][1] / sums[i][2]};
    }
  }
  Positions expected;
  for (const auto& centroid : centroids) {
    expected.push_back(static_cast<Position>(nearest(keys, centroid, [&](std::size_t i) {
      return std::count(expected.begin(), expected.end(), static_cast<Position>(i)) > 0;
    })));
  }
  const auto view = session.cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, session.policy.sequence(), kvevict::kernels::best(),
                                  scratch};
  std::vector<std::uint32_t> slots(kTokens);
  for (std::size_t i = 0; i < kTokens; ++i)
    slots[i] = static_cast<std::uint32_t>(i);
  Positions taken;
  kvevict::KeyClusters(10).choose(input, 0, slots, kCount, [&](std::size_t slot) {
    taken.push_back(static_cast<Position>(slot));
  });
  EXPECT_EQ(taken, expected);
}

// Drafts that are taken back reopen their segment; the transition they ended is not counted twice.
TEST(ThinKV, DraftsReopenASegment) {
  auto session = session_of(small(100));
  segment(session, .5);
  for (std::size_t i = 0; i < 3; ++i)
    step(session, .9);
  step(session, .9);
  const std::size_t len = session.kept().size();
  session.truncate(8);
  EXPECT_EQ(session.kept().size(), len - 1);
  step(session, .9);
  EXPECT_EQ(session.kept().size(), len);
  EXPECT_EQ(thoughts(session), (std::vector{Thought::kReasoning, Thought::kTransition}));
}

TEST(ThinKV, RefusesWhatIsNoSchedule) {
  const auto with = [](auto&& change) {
    auto options = small(8);
    change(options);
    return [options] { ThinKV(options, kOneHead); };
  };
  EXPECT_TRUE(refuses(with([](auto& o) { o.segment_len = 0; }), {"ThinKV", "segment_len", "0"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.schedule = {2, 2}; }), {"ThinKV", "schedule", "2"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.schedule = {2, 0}; }), {"ThinKV", "schedule", "0"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.schedule = {}; }), {"ThinKV", "schedule"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.layers = {1}; }), {"ThinKV", "layers", "1"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.execution_below = 1; }), {"ThinKV", "execution_below"}));
}

}  // namespace
}  // namespace kvevict_test
