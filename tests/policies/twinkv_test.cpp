#include "kvevict/policies/twinkv.hpp"

#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/defensivekv.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::TwinKVKnorm;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 4};

TwinKVKnorm::Options repaired(std::size_t budget, double similarity, std::size_t sinks = 0) {
  TwinKVKnorm::Options options;
  options.budget = budget;
  options.twins.similarity = similarity;
  options.twins.distance = 0;
  options.twins.num_sink_tokens = sinks;
  options.twins.recent_window = 0;
  return options;
}
/// A cache with these keys, the newest ones longer, so that Knorm keeps the first of them.
WindowCache cache_of(const std::vector<std::vector<float>>& keys) {
  WindowCache cache(kOneHead, 300);
  cache.append(keys.size());
  for (std::size_t slot = 0; slot < keys.size(); ++slot) {
    for (std::size_t c = 0; c < keys[slot].size(); ++c)
      cache.key(0, 0, slot)[c] = keys[slot][c] * static_cast<float>(slot + 1);
  }
  return cache;
}
std::string kept_of(const TwinKVKnorm::Options& options, WindowCache cache) {
  TwinKVKnorm policy(options, kOneHead);
  policy.append(cache.seq_len());
  return text_of(policy.select(cache.view()));
}

// Keys e1, e1, e2, kept {0, 1}: token 2 has no twin and token 1 has, 0 being a sink.
TEST(TwinKV, AnOrphanTakesThePlaceOfATwin) {
  const std::vector<std::vector<float>> keys = {{1}, {1}, {0, 1}};
  EXPECT_EQ(kept_of(repaired(2, .95, 1), cache_of(keys)), "101");
  EXPECT_EQ(kept_of(repaired(2, .95, 2), cache_of(keys)), "110");  // no donor
}

// e1, e1, e2, e3: 0 and 1 are twins of each other; once 1 went, 0 has none and stays: {0, 2}, where
// lists made once would keep {2, 3}.
TEST(TwinKV, ADonorIsAskedAgainBeforeItGoes) {
  EXPECT_EQ(kept_of(repaired(2, .95), cache_of({{1}, {1}, {0, 1}, {0, 0, 1}})), "1010");
}

// The most isolated orphan first: cosines with e1 are .8 for slot 3 and .6 for slot 4; of the three
// twins the last goes first, then the second.
TEST(TwinKV, TheMostIsolatedAndTheMostRedundantSwap) {
  const std::vector<std::vector<float>> keys = {{1}, {1}, {1}, {.8F, .6F}, {.6F, 0, .8F}};
  EXPECT_EQ(kept_of(repaired(3, .9), cache_of(keys)), "10011");
  // Above .7 only slot 4 is an orphan.
  EXPECT_EQ(kept_of(repaired(3, .7), cache_of(keys)), "11001");
  EXPECT_EQ(kept_of(repaired(3, -1.0), cache_of(keys)), "11100");
}

// Rule R4: token 2 has no twin, but its score is NaN. The keys of 0 and 1 point the same way.
TEST(TwinKV, ATokenThatScoresNaNIsNotBroughtBack) {
  const std::vector<std::vector<float>> keys = {{1}, {1}, {0, 1}};
  EXPECT_EQ(kept_of(repaired(2, .95, 1), cache_of(keys)), "101");
  using Method = kvevict::Composed<kvevict::TwinKVOver<kvevict::ExternalScoresRecipe>>;
  Method::Options options;
  options.budget = 2;
  options.twins.similarity = .95;
  options.twins.distance = 0;
  options.twins.num_sink_tokens = 1;
  options.twins.recent_window = 0;
  kvevict::Policy<Method> policy(options, kOneHead);
  WindowCache cache = cache_of(keys);
  policy.append(3);
  const std::vector<float> scores = {3, 2, std::numeric_limits<float>::quiet_NaN()};
  policy.observe_scores(0, 0, scores);
  EXPECT_EQ(text_of(policy.select(cache.view())), "110");
}

// Neighbours are no twins: within 2 slots nothing is compared.
TEST(TwinKV, NeighboursAreNoTwins) {
  auto options = repaired(3, .9);
  options.twins.distance = 2;
  EXPECT_EQ(kept_of(options, cache_of({{1}, {1}, {1}, {0, 1}})), "1110");
  options.twins.distance = 1;
  EXPECT_EQ(kept_of(options, cache_of({{1}, {1}, {1}, {0, 1}})), "1101");
}

// Kept {0, 1}, donors to each other: the higher slot goes, unless it is one of the newest.
TEST(TwinKV, TheNewestAreNoDonors) {
  auto options = repaired(2, .9);
  EXPECT_EQ(kept_of(options, cache_of({{1}, {1}, {0, 1}})), "101");
  options.twins.recent_window = 2;
  EXPECT_EQ(kept_of(options, cache_of({{1}, {1}, {0, 1}})), "011");
  options.twins.recent_window = 3;
  EXPECT_EQ(kept_of(options, cache_of({{1}, {1}, {0, 1}})), "110");
}

// A key that is NaN or 0 goes first and does not come back as an orphan.
TEST(TwinKV, AKeyWithoutADirectionIsNoOrphan) {
  WindowCache cache = cache_of({{1}, {1}, {0, 1}});
  std::fill_n(cache.key(0, 0, 2), 4, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(kept_of(repaired(2, .95), cache), "110");
}

/// In double, with lists as in the definition: no memory of unit keys, everything asked anew.
std::vector<bool> by_definition(WindowCache& cache, std::size_t head, std::vector<bool> kept,
                                double similarity, std::size_t distance, std::size_t sinks,
                                std::size_t recent) {
  const std::size_t len = kept.size();
  const auto cosine = [&](std::size_t a, std::size_t b) {
    double dot = 0;
    double aa = 0;
    double bb = 0;
    for (std::size_t c = 0; c < cache.shape().head_dim; ++c) {
      const double x = cache.key(0, head, a)[c];
      const double y = cache.key(0, head, b)[c];
      dot += x * y;
      aa += x * x;
      bb += y * y;
    }
    return dot / std::sqrt(aa * bb);
  };
  const auto largest = [&](std::size_t a) {
    double most = -1;
    for (std::size_t b = 0; b < len; ++b) {
      if (kept[b] && (a > b ? a - b : b - a) > distance)
        most = std::max(most, cosine(a, b));
    }
    return most;
  };
  std::vector<std::pair<double, std::size_t>> orphans;
  std::vector<std::pair<double, std::size_t>> donors;
  for (std::size_t slot = 0; slot < len; ++slot) {
    const double most = largest(slot);
    if (!kept[slot] && most < similarity)
      orphans.emplace_back(most, slot);
    if (kept[slot] && most >= similarity && slot >= sinks && slot < len - recent)
      donors.emplace_back(most, slot);
  }
  std::stable_sort(orphans.begin(), orphans.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::reverse(donors.begin(), donors.end());
  std::stable_sort(donors.begin(), donors.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::size_t next = 0;
  for (const auto& [most, slot] : donors) {
    if (next == orphans.size())
      break;
    if (largest(slot) < similarity)
      continue;
    kept[slot] = false;
    kept[orphans[next++].second] = true;
  }
  return kept;
}

// 200 tokens around 30 directions, two heads that compete for their layer's budget: every lane
// keeps as many as AdaKV gives it, and which is what the definition says.
TEST(TwinKV, RepairsWhateverSelectionItWraps) {
  constexpr CacheShape kTwoHeads{
      .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 8};
  using Base = kvevict::AdaKVOver<kvevict::KnormRecipe>;
  using Repaired = kvevict::Policy<kvevict::Composed<kvevict::TwinKVOver<Base>>>;
  EXPECT_EQ(Repaired::kName, "TwinKVAdaKVKnorm");
  Random random(11);
  WindowCache cache(kTwoHeads, 200);
  cache.append(200);
  std::vector<float> directions(30 * 8);
  for (float& x : directions)
    x = random.eighths();
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t slot = 0; slot < 200; ++slot) {
      const std::size_t direction = random.below(30);
      for (std::size_t c = 0; c < 8; ++c) {
        cache.key(0, head, slot)[c] =
            directions[direction * 8 + c] * (1.0F + .01F * static_cast<float>(random.below(50))) +
            .1F * random.eighths();
      }
    }
  }
  Repaired::Options options;
  options.budget = 60;
  options.num_sink_tokens = 2;
  options.recent_window = 5;
  options.twins.similarity = .93;
  options.twins.distance = 3;
  options.twins.num_sink_tokens = 4;
  options.twins.recent_window = 10;
  kvevict::AdaKVKnorm plain(options, kTwoHeads);
  Repaired repaired_policy(options, kTwoHeads);
  plain.append(200);
  repaired_policy.append(200);
  const kvevict::KeepMask before = plain.select(cache.view());
  const kvevict::KeepMask after = repaired_policy.select(cache.view());
  std::size_t swapped = 0;
  for (std::size_t head = 0; head < 2; ++head) {
    std::vector<bool> kept(200);
    for (std::size_t slot = 0; slot < 200; ++slot)
      kept[slot] = before.keeps(0, head, slot);
    const std::vector<bool> expected = by_definition(cache, head, kept, .93, 3, 4, 10);
    EXPECT_EQ(after.count(0, head), before.count(0, head));
    for (std::size_t slot = 0; slot < 200; ++slot) {
      EXPECT_EQ(after.keeps(0, head, slot), expected[slot]) << head << " " << slot;
      swapped += expected[slot] != kept[slot] ? 1 : 0;
    }
  }
  EXPECT_GT(swapped, 10U);
}

// A base that selects by its signal: DefensiveKV keeps 0, 1 and the window, token 4. Keys e1, e1,
// e2, e3, e4: 0 and 1 are twins, the later one goes, and of 2 and 3, equally alone, 2 stays.
TEST(TwinKV, RepairsASelectionByTheSignal) {
  auto projection = std::make_shared<kvevict::OutputProjection>(kOneHead, 1, std::nullopt, true);
  projection->set_layer(0, std::vector<float>(kOneHead.head_dim, 1.0F).data());
  using Method = kvevict::Composed<kvevict::TwinKVOver<kvevict::DefensiveKVRecipe>>;
  Method::Options options;
  options.budget = 3;
  options.observation_window = 1;
  options.pooling.kernel_size = 1;
  options.first_stage_mass = 0;
  options.output_projection = projection;
  options.twins.distance = 0;
  options.twins.num_sink_tokens = 0;
  options.twins.recent_window = 0;
  RowSession<kvevict::Policy<Method>> session(options, kOneHead);
  session.policy.begin(5);
  session.append(5);
  for (const auto& [slot, channel] : {std::pair{0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 3}})
    session.cache.key(0, 0, static_cast<std::size_t>(slot))[channel] = 1;
  session.rows(0, {{{.4F, .3F, .2F, .1F, 0}}});
  session.policy.end_prefill(session.cache.view());
  EXPECT_EQ(text_of(session.policy.select(session.cache.view())), "10101");
}

TEST(TwinKV, NeedsOneSetPerHead) {
  using Repaired =
      kvevict::Policy<kvevict::Composed<kvevict::TwinKVOver<kvevict::MeanCentredNormRecipe>>>;
  EXPECT_TRUE(refuses([] { Repaired({}, kOneHead); },
                      {"TwinKVMeanCentredNorm", "scope = 1", "per KV head"}));
}

TEST(TwinKV, RefusesWhatIsNoCosine) {
  EXPECT_TRUE(refuses([] { TwinKVKnorm policy(repaired(2, 1.5), kOneHead); },
                      {"TwinKVKnorm", "twin_similarity", "1.5"}));
}

}  // namespace
}  // namespace kvevict_test
