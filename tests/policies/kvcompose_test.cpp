#include "kvevict/policies/kvcompose.hpp"

#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::KVCompose;
using kvevict::KVComposeUnstructured;
using kvevict::Position;

using Positions = std::vector<Position>;
using Floats = std::vector<float>;

constexpr kvevict::CacheShape kModel{
    .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 2};
// Without means over heads the layers' curves are (8, 5, 1.5) and (3.5, 2, 1).
const std::vector<Floats> kScores = {{10, 1, 7}, {2, 6, 3}, {1, 4, 2}, {3, 1, 2}};

template <class P>
RowSession<P> scored(const typename P::Options& options) {
  RowSession<P> session(options, kModel);
  session.prompt(3);
  for (std::size_t lane = 0; lane < kScores.size(); ++lane)
    session.policy.observe_scores(lane / 2, lane % 2, kScores[lane]);
  return session;
}

// 8 entries are 4 ranks: 8 and 5 of layer 0, 3.5 of layer 1, then 2 of layer 1, not 1.5.
TEST(KVCompose, LayersAreRectangles) {
  auto session = scored<KVCompose>({.budget = 2, .add_mean_across_heads = false});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 2}));
  EXPECT_EQ(session.kept(1), (Positions{1, 2}));
  EXPECT_EQ(session.kept(2), (Positions{1, 2}));
  EXPECT_EQ(session.kept(3), (Positions{0, 2}));
  session.append(2);
  EXPECT_FALSE(session.policy.should_evict());
}

// The means of layer 0 are 6, 3.5 and 5: head 0 has 16, 4.5 and 12, head 1 8, 9.5 and 8, of which
// the lower slot stays. One of three ranks is layer 1's, the others are 12.75 and 10 of layer 0.
TEST(KVCompose, TheMeanOfTheHeadsCounts) {
  auto session = scored<KVCompose>({.budget = kvevict::Budget::total(6)});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0, 1}));
}

// 16 4.5 12 and 8 9.5 8; 3 6.5 4 and 5 3.5 4: the best 8 of 12 without 3, 3.5, 4, 4.
TEST(KVCompose, UnstructuredTheBestOfAllStay) {
  auto session = scored<KVComposeUnstructured>({.budget = 2});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(0), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(1), (Positions{0, 1, 2}));
  EXPECT_EQ(session.kept(2), (Positions{1}));
  EXPECT_EQ(session.kept(3), (Positions{0}));
}

// After an unequal cut heads hold different tokens; a mean is over those that hold the token.
TEST(KVCompose, MeansAreOfTheSameToken) {
  auto session = scored<KVComposeUnstructured>({.budget = kvevict::Budget::total(8)});
  ASSERT_TRUE(session.cut());
  session.prompt(1);
  // Layer 1: head 0 holds 1 and 3, head 1 holds 0 and 3. Slots are 0 and 1 in both.
  session.policy.observe_scores(1, 0, Floats{1, 10});
  session.policy.observe_scores(1, 1, Floats{5, 20});
  std::vector<kvevict::ScoredLane> lanes;
  std::vector<Floats> scores;
  for (std::size_t lane = 0; lane < 4; ++lane)
    scores.emplace_back(session.policy.sequence().seq_len(lane));
  scores[2] = {1, 10};
  scores[3] = {5, 20};
  for (std::size_t lane = 0; lane < 4; ++lane)
    lanes.push_back({lane, scores[lane], {}, {}});
  const auto view = session.cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  session.policy.method().normalise(
      lanes, {ref, session.policy.sequence(), kvevict::kernels::best(), scratch});
  EXPECT_EQ(scores[2], (Floats{2, 25}));   // 1 + 1, 10 + 15
  EXPECT_EQ(scores[3], (Floats{10, 35}));  // 5 + 5, 20 + 15
}

}  // namespace
}  // namespace kvevict_test
