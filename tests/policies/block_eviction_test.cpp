#include "kvevict/policies/block_eviction.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::AdaptiveRKV;
using kvevict::AnchorPoint;
using kvevict::BlockEviction;
using kvevict::CacheShape;
using kvevict::HammingRepresentatives;
using kvevict::KVCrush;
using kvevict::Position;
using kvevict::ScoredLane;
using Positions = std::vector<Position>;
using Slots = std::vector<std::size_t>;

// What a wrapped selection reads is asked for by the one around it.
using CrushOfRKV = kvevict::Composed<kvevict::KVCrushOver<kvevict::AdaptiveRKVRecipe>>;
static_assert(covers(CrushOfRKV::kRequiredInputs, kvevict::Inputs::kKeys));

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kGroups{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 2};

/// Blocks of two: one of sinks, one of recent tokens, `budget` tokens in all.
template <class P>
typename P::Options blocks(std::size_t budget) {
  typename P::Options options;
  options.budget = budget;
  options.num_sink_tokens = 2;
  options.recent_window = 2;
  options.block_size = 2;
  options.observation_window = 1;
  options.pool_width = 1;
  return options;
}
/// A prompt whose last row is given.
template <class P>
RowSession<P> session_of(const typename P::Options& options, const std::vector<float>& row) {
  RowSession<P> session(options, kOneHead);
  session.policy.begin(row.size());
  session.append(row.size());
  session.rows(0, {{row}});
  session.policy.end_prefill(session.cache.view());
  return session;
}

// Sinks {0, 1}, recent {8, 9}; blocks 4 + 1, 2 + 2, 1 + 0: the best of three stays in a budget of
// six.
TEST(BlockEviction, TheBlocksOfTheLargestSumsStay) {
  auto session =
      session_of<BlockEviction>(blocks<BlockEviction>(6), {0, 0, .4F, .1F, .2F, .2F, .1F, 0, 0, 0});
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 8, 9}));
}

// Their test constants: block 4, areas of 32, 32 and 192 in all. At 195 tokens nothing goes, at 196
// one block; what is left is 192.
TEST(BlockEviction, ACutIsDueWhenAWholeBlockIsTooMuch) {
  for (const auto& [len, kept] : {std::pair{192U, 192U},
                                  {193U, 193U},
                                  {195U, 195U},
                                  {196U, 192U},
                                  {197U, 193U},
                                  {227U, 195U}}) {
    BlockEviction policy(
        {{.budget = 192, .num_sink_tokens = 32, .recent_window = 32, .block_size = 4}}, kOneHead);
    WindowCache cache(kOneHead, 256);
    cache.append(len);
    policy.begin(len);
    policy.append(len);
    policy.end_prefill(cache.view());
    ASSERT_EQ(policy.should_evict(), len >= 196) << len;
    const auto& mask = policy.select(cache.view());
    EXPECT_EQ(mask.total_count(), kept) << len;
    // Equal blocks: the earlier stay. The recent area reaches over the block being written.
    for (std::size_t slot = 0; slot < len; ++slot) {
      const std::size_t evicted = len - kept;
      const std::size_t end = len / 4 * 4 - 32;
      EXPECT_EQ(mask.keeps(0, 0, slot), slot < end - evicted || slot >= end) << len << ' ' << slot;
    }
  }
}

// Ten zeros before a peak: with a width of three its two predecessors are as important.
TEST(BlockEviction, PoolingLooksForward) {
  auto options = blocks<BlockEviction>(10);
  options.pool_width = 3;
  options.lifetime_mean = false;
  const auto session = session_of<BlockEviction>(options, {.1F, 0, 0, 0, .5F, 0, .2F, 0, 0, .2F});
  WindowCache cache = session.cache;
  EXPECT_EQ(scores_of(session.policy, cache),
            (std::vector<float>{.1F, 0, .5F, .5F, .5F, .2F, .2F, .2F, .2F, .2F}));
}

// The definition in double: sums of the window pooled at the end of the prompt, each later row by
// itself, over the heads of a layer, divided by the rows that could see a slot.
TEST(BlockEviction, SumsArePooledAndNormalised) {
  Random random(3);
  auto options = blocks<BlockEviction>(12);
  options.observation_window = 3;
  options.pool_width = 4;
  constexpr std::size_t kPrompt = 11;
  RowSession<BlockEviction> session(options, kGroups);
  std::vector<std::vector<double>> sums(2, std::vector<double>(32));
  std::vector<std::vector<double>> window(2, std::vector<double>(kPrompt));
  std::vector<double> counts(32);
  const auto row_of = [&](std::size_t len) {
    std::vector<float> row(len);
    for (float& a : row)
      a = std::abs(random.eighths());
    return row;
  };
  const auto pooled = [](const std::vector<double>& x, std::size_t i) {
    return *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(i),
                             x.begin() + static_cast<std::ptrdiff_t>(std::min(x.size(), i + 4)));
  };
  // In chunks of 5: the window lies over two.
  session.policy.begin(kPrompt);
  for (std::size_t done = 0; done < kPrompt;) {
    const std::size_t count = std::min<std::size_t>(5, kPrompt - done);
    session.append(count);
    done += count;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::size_t wanted = session.policy.wanted_attention_rows(layer);
      EXPECT_EQ(wanted, done == 5 ? 0U : done == 10 ? 2U : 1U);
      HeadRows rows(4);
      for (std::size_t r = 0; r < wanted; ++r) {
        const std::size_t len = done - wanted + r + 1;
        for (auto& head : rows) {
          head.push_back(row_of(len));
          for (std::size_t i = 0; i < len; ++i)
            window[layer][i] += static_cast<double>(head.back()[i]) / 4;
        }
        for (std::size_t i = 0; i < len && layer == 0; ++i)
          counts[i] += 1;
      }
      if (wanted > 0)
        session.rows(layer, rows);
    }
  }
  session.policy.end_prefill(session.cache.view());
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t i = 0; i < kPrompt; ++i)
      sums[layer][i] += pooled(window[layer], i);
  }
  for (std::size_t step = 0; step < 12; ++step) {
    session.append(1);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const auto kept = session.kept(layer);
      HeadRows rows(4);
      std::vector<double> mean(kept.size());
      for (auto& head : rows) {
        head.push_back(row_of(kept.size()));
        for (std::size_t i = 0; i < mean.size(); ++i)
          mean[i] += static_cast<double>(head[0][i]) / 4;
      }
      for (std::size_t i = 0; i < mean.size(); ++i) {
        sums[layer][static_cast<std::size_t>(kept[i])] += pooled(mean, i);
      }
      session.rows(layer, rows);
    }
    // Both layers lose equally many, but not the same tokens; this count is that of layer 1.
    std::vector<double> divisor(32);
    for (std::size_t i = 0; i < 32; ++i) {
      divisor[i] = (i < kPrompt ? counts[i] : 0.0) +
                   static_cast<double>(kPrompt + step + 1 - std::max(i, kPrompt));
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::vector<float> scores = scores_of(session.policy, session.cache, layer);
      const auto kept = session.kept(layer);
      for (std::size_t slot = 0; slot < kept.size(); ++slot) {
        const auto position = static_cast<std::size_t>(kept[slot]);
        EXPECT_NEAR(scores[slot], sums[layer][position] / divisor[position], 1e-5) << position;
      }
    }
    session.cut();
    EXPECT_LE(session.kept().size(), 13U);
  }
}

// --- KVCrush

/// One lane of candidates [0, scores.size()) and nothing chosen yet.
struct Lane {
  std::vector<float> scores;
  std::vector<std::uint64_t> candidates;
  std::vector<std::uint64_t> keep;

  explicit Lane(std::vector<float> s) : scores(std::move(s)), candidates(1), keep(1) {
    candidates[0] = (std::uint64_t{1} << scores.size()) - 1;
  }
  template <class S>
  Slots choose(const S& selector, std::size_t quota) {
    ScoredLane lane{0, scores, candidates, keep};
    selector.choose({&lane, 1}, quota, 0);
    Slots kept;
    for (std::size_t slot = 0; slot < scores.size(); ++slot) {
      if ((keep[0] >> slot & 1U) != 0)
        kept.push_back(slot);
    }
    return kept;
  }
};
/// A base that keeps nothing, so that all chunks are victims.
struct Nothing {
  void choose(std::span<ScoredLane> /*lanes*/, std::size_t /*quota*/, int /*input*/) const {}
};
HammingRepresentatives<Nothing> crush(AnchorPoint anchor, std::size_t count,
                                      std::uint64_t seed = 0) {
  return {Nothing{}, {.num_chunks = count, .chunk_len = 4, .anchor = anchor, .seed = seed}};
}
Slots slots_of(std::initializer_list<std::size_t> chunks) {
  Slots slots;
  for (const std::size_t chunk : chunks) {
    for (std::size_t i = 0; i < 4; ++i)
      slots.push_back(chunk * 4 + i);
  }
  return slots;
}

// Words 1000, 1110, 0000, 1111: half of the sixteen tokens have a one. From zeros the distances are
// 1, 3, 0, 4, in order 2, 0, 1, 3; every second of these stays: 0000 and 1110.
const std::vector<float> kWords{9, 1, 1, 1, 9, 9, 9, 1, 1, 1, 1, 1, 9, 9, 9, 9};

TEST(KVCrush, EverySecondByDistanceStays) {
  EXPECT_EQ(Lane(kWords).choose(crush(AnchorPoint::kZeros, 2), 8), slots_of({1, 2}));
  // From ones: 3, 1, 4, 0, in order 3, 1, 0, 2.
  EXPECT_EQ(Lane(kWords).choose(crush(AnchorPoint::kOnes, 2), 8), slots_of({0, 3}));
  // From 0101: 1000 is 3 away, 1110 3, 0000 2, 1111 2; the earlier of equals first: 2, 3, 0, 1.
  EXPECT_EQ(Lane(kWords).choose(crush(AnchorPoint::kAlternating, 2), 8), slots_of({0, 2}));
  // Ones per place: 3, 2, 2, 1 of 4; more than half only in the first: 1000. Distances 0, 2, 1, 3.
  EXPECT_EQ(Lane(kWords).choose(crush(AnchorPoint::kMean, 2), 8), slots_of({0, 1}));
  EXPECT_EQ(Lane(kWords).choose(crush(AnchorPoint::kMean, 1), 4), slots_of({0}));
}

TEST(KVCrush, ARandomAnchorIsThatOfItsSeed) {
  bool differs = false;
  const Slots kept = Lane(kWords).choose(crush(AnchorPoint::kRandom, 1, 0), 4);
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    const auto selector = crush(AnchorPoint::kRandom, 1, seed);
    EXPECT_EQ(Lane(kWords).choose(selector, 4), Lane(kWords).choose(selector, 4));
    differs = differs || Lane(kWords).choose(selector, 4) != kept;
  }
  EXPECT_TRUE(differs);
}

// The base has the rest of the budget: its best block, and one representative of what it evicts.
TEST(KVCrush, RepresentativesArePartOfTheBudget) {
  // Blocks of (.4 .1), (.2 0), (0 0), (.1 .1) between sinks and recent tokens; the better half of
  // eight are slots 2, 3, 4, 8. Words 11, 10, 00, 10; the base keeps the first. From zeros the
  // victims' order is 6, 4, 8, and one of three is the nearest.
  auto options = blocks<KVCrush>(8);
  options.num_representatives = 1;
  options.anchor = AnchorPoint::kZeros;
  const std::vector<float> row{0, 0, .4F, .1F, .2F, 0, 0, 0, .1F, .1F, 0, 0};
  auto session = session_of<KVCrush>(options, row);
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 6, 7, 10, 11}));
  // Without representatives it is the base policy.
  options.num_representatives = 0;
  auto none = session_of<KVCrush>(options, row);
  auto base = session_of<BlockEviction>(blocks<BlockEviction>(8), row);
  none.cut();
  base.cut();
  EXPECT_EQ(none.kept(), base.kept());
}

// --- Adaptive R-KV

// Block {2, 3} has .9 of the evictable attention and stays for it. Of the others {4, 5} and {6, 7}
// have equal keys, {8, 9} one that is like none: it stays.
TEST(AdaptiveRKV, MassFirstThenDiversity) {
  auto options = blocks<AdaptiveRKV>(8);
  options.attention_mass = .85;
  const std::vector<float> row{0, 0, .45F, .45F, .04F, .03F, .02F, .01F, 0, 0, 0, 0};
  auto session = session_of<AdaptiveRKV>(options, row);
  for (const auto& [slot, x, y] : std::vector<std::array<int, 3>>{{2, 1, 1},
                                                                  {3, 1, 1},
                                                                  {4, 1, 0},
                                                                  {5, 1, 0},
                                                                  {6, 1, 0},
                                                                  {7, 1, 0},
                                                                  {8, 0, 1},
                                                                  {9, 0, -1}}) {
    float* key = session.cache.key(0, 0, static_cast<std::size_t>(slot));
    key[0] = static_cast<float>(x);
    key[1] = static_cast<float>(y);
  }
  ASSERT_TRUE(session.cut());
  EXPECT_EQ(session.kept(), (Positions{0, 1, 2, 3, 8, 9, 10, 11}));
  // With a mass of one, attention alone decides.
  options.attention_mass = 1;
  auto all = session_of<AdaptiveRKV>(options, row);
  all.cut();
  EXPECT_EQ(all.kept(), (Positions{0, 1, 2, 3, 4, 5, 10, 11}));
}

// The definition in double, over two heads: cosines below the mean of their row over all evictable
// tokens count as 0, and means are over the tokens that are not kept yet.
TEST(AdaptiveRKV, DiversityIsThatOfTheDefinition) {
  Random random(9);
  constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 4};
  constexpr std::size_t kLen = 20;
  WindowCache cache(kShape, kLen);
  cache.append(kLen);
  cache.fill(random);
  kvevict::Sequence sequence("test", kShape, kvevict::MaskScope::kLayer);
  sequence.append(kLen);
  const auto view = cache.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  std::vector<float> scores(kLen, 7.0F);
  std::vector<std::uint64_t> candidates{0x3FF0C};  // slots 2, 3, 8 .. 17
  std::vector<std::uint64_t> area{0x3FFFC};        // 2 .. 17
  std::vector<std::uint64_t> keep{0};
  const ScoredLane lane{0, scores, candidates, keep};
  kvevict::KeyDiversity().rescore({ref, sequence, kvevict::kernels::best(), scratch}, lane, area);
  const auto has = [](const auto& bits, std::size_t slot) { return (bits[0] >> slot & 1U) != 0; };
  for (std::size_t i = 0; i < kLen; ++i) {
    if (!has(candidates, i)) {
      EXPECT_EQ(scores[i], 7.0F);
      continue;
    }
    double expected = 0.0;
    for (std::size_t head = 0; head < 2; ++head) {
      std::vector<double> cosines(kLen);
      double mean = 0.0;
      for (std::size_t j = 0; j < kLen; ++j) {
        if (!has(area, j) || i == j)
          continue;
        double dot = 0.0;
        double a = 0.0;
        double b = 0.0;
        for (std::size_t c = 0; c < 4; ++c) {
          const auto x = static_cast<double>(cache.key(0, head, i)[c]);
          const auto y = static_cast<double>(cache.key(0, head, j)[c]);
          dot += x * y;
          a += x * x;
          b += y * y;
        }
        cosines[j] = dot / (std::sqrt(a) * std::sqrt(b));
        mean += cosines[j] / 16;
      }
      for (std::size_t j = 0; j < kLen; ++j) {
        if (has(candidates, j) && cosines[j] >= mean)
          expected -= cosines[j] / 12 / 2;
      }
    }
    EXPECT_NEAR(scores[i], expected, 1e-6) << i;
  }
}

TEST(BlockEviction, RefusesWhatIsNoWholeBlock) {
  const auto with = [](auto&& change) {
    auto options = blocks<BlockEviction>(8);
    change(options);
    return [options] { BlockEviction(options, kOneHead); };
  };
  EXPECT_TRUE(refuses(with([](auto& o) { o.budget = 7; }), {"BlockEviction", "budget", "7"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.budget = 4; }), {"BlockEviction", "budget", "4"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.num_sink_tokens = 1; }), {"num_sink_tokens", "1"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.recent_window = 3; }), {"recent_window", "3"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.block_size = 0; }), {"block_size", "0"}));
  EXPECT_TRUE(refuses(with([](auto& o) { o.pool_width = 0; }), {"pool_width", "0"}));
  EXPECT_TRUE(
      refuses(with([](auto& o) { o.observation_window = 0; }), {"observation_window", "0"}));
  auto crush = blocks<KVCrush>(8);
  EXPECT_TRUE(refuses([&] { KVCrush(crush, kOneHead); }, {"KVCrush", "num_representatives", "2"}));
  auto rkv = blocks<AdaptiveRKV>(8);
  rkv.attention_mass = 2;
  EXPECT_TRUE(refuses([&] { AdaptiveRKV(rkv, kOneHead); }, {"AdaptiveRKV", "attention_mass", "2"}));
}

}  // namespace
}  // namespace kvevict_test
