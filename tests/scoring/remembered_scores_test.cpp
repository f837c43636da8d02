#include "kvevict/scoring/remembered_scores.hpp"

#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/qfilters.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::Random;
using kvevict_test::scores_of;
using kvevict_test::WindowCache;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 11};
constexpr std::size_t kBudget = 70;
constexpr std::size_t kRecent = 8;

/// A policy and its cache.
template <class P>
struct Session {
  P policy = make();
  WindowCache cache = WindowCache(kShape, 400);

  [[nodiscard]] static P make() {
    typename P::Options options{.budget = kBudget, .recent_window = kRecent};
    if constexpr (std::is_same_v<P, QFilters>) {
      Random random(3);
      QueryFilters filters(kShape.num_layers * kShape.num_kv_heads * kShape.head_dim);
      for (float& x : filters)
        x = random.eighths();
      options.query_filters = std::make_shared<const QueryFilters>(filters);
    }
    return P(options, kShape);
  }
  /// The keys of all lanes' slots from `first` on.
  void write(std::size_t first, std::size_t count, Random& random) {
    for (std::size_t lane = 0; lane < kShape.num_layers * kShape.num_kv_heads; ++lane) {
      float* const keys = cache.key(lane / kShape.num_kv_heads, lane % kShape.num_kv_heads, first);
      for (std::size_t i = 0; i < count * kShape.head_dim; ++i)
        keys[i] = random.eighths();
    }
  }
  void append(std::size_t count, Random& random) {
    write(cache.seq_len(), count, random);
    cache.append(count);
    policy.append(count);
  }
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> score_bits() { return score_bits(policy); }
  /// The same by a policy that sees the cache for the first time.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> score_bits_anew() {
    P anew = make();
    anew.append(cache.seq_len());
    return score_bits(anew);
  }

 private:
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> score_bits(const P& by) {
    std::vector<std::vector<std::uint32_t>> bits;
    for (std::size_t lane = 0; lane < by.sequence().num_lanes(); ++lane) {
      bits.emplace_back();
      for (const float score : scores_of(by, cache, lane))
        bits.back().push_back(std::bit_cast<std::uint32_t>(score));
    }
    return bits;
  }
};

template <class P>
class RememberedScores : public testing::Test {};
struct Names {
  template <class P>
  static std::string GetName(int /*index*/) {
    return std::string(P::kName);
  }
};
using Policies = testing::Types<Knorm, MeanCentredNorm, QFilters>;
TYPED_TEST_SUITE(RememberedScores, Policies, Names);

// Chunks, steps, cuts and rollbacks in any order. Rollbacks are shorter than the recent window, so
// that the lanes have one length, which is all that a policy can be told that was not there.
TYPED_TEST(RememberedScores, HaveTheBitsOfScoresThatAreWorkedOutAnew) {
  Random random(1);
  Session<TypeParam> session;
  std::size_t num_cuts = 0;
  for (std::size_t step = 0; step < 150; ++step) {
    session.append(random.below(10) == 0 ? 60 : 1 + random.below(4), random);
    ASSERT_EQ(session.score_bits(), session.score_bits_anew()) << step;
    if (session.policy.should_evict() && random.below(3) != 0) {
      kvevict_test::cut(session.policy, session.cache);
      ++num_cuts;
    }
    if (random.below(4) == 0) {
      const std::size_t count = random.below(kRecent);
      session.policy.truncate(session.policy.length() - count);
      session.cache.truncate(session.cache.seq_len() - count);
    }
    ASSERT_EQ(session.score_bits(), session.score_bits_anew()) << step;
  }
  EXPECT_GT(num_cuts, 20U);
}

// What takes the place of a row is not seen, but behind a rollback.
TYPED_TEST(RememberedScores, AreWorkedOutOnce) {
  Random random(2);
  Session<TypeParam> session;
  session.append(20, random);
  const auto before = session.score_bits();
  session.write(0, 20, random);
  EXPECT_EQ(session.score_bits(), before);
  TypeParam fork = session.policy;
  session.policy.truncate(12);
  session.cache.truncate(12);
  session.append(8, random);
  const auto behind = session.score_bits();
  const auto anew = session.score_bits_anew();
  for (std::size_t lane = 0; lane < before.size(); ++lane) {
    for (std::size_t slot = 0; slot < 20; ++slot)
      EXPECT_EQ(behind[lane][slot], (slot < 12 ? before : anew)[lane][slot]) << lane << ' ' << slot;
  }
  session.policy = fork;
  EXPECT_EQ(session.score_bits(), before);
  session.policy.reset();
  session.policy.append(20);
  EXPECT_EQ(session.score_bits(), session.score_bits_anew());
}

// The newest key is NaN in one head of each layer, and then, with others behind it, no longer the
// newest.
TYPED_TEST(RememberedScores, NaNIsNoScoreOfOtherTokens) {
  Random random(4);
  Session<TypeParam> session;
  session.append(9, random);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer)
    session.cache.key(layer, layer, 8)[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(session.score_bits(), session.score_bits_anew());
  session.append(5, random);
  EXPECT_EQ(session.score_bits(), session.score_bits_anew());
}

}  // namespace
}  // namespace kvevict
