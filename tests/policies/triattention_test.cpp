#include "kvevict/policies/triattention.hpp"

#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::BandWeight;
using kvevict::CacheShape;
using kvevict::OffsetReduce;
using kvevict::QueryStatistics;
using kvevict::RotaryEmbedding;
using kvevict::TriAttention;
using kvevict::TriAttentionMode;
using kvevict::TriAttentionOptions;
using kvevict::TriAttentionStats;
using Complex = std::complex<double>;

/// One layer of `group` query heads on one KV head.
CacheShape one_head(std::size_t group, std::size_t dim) {
  return {.num_layers = 1, .num_q_heads = group, .num_kv_heads = 1, .head_dim = dim};
}

/// Keys of one KV head, and nothing protected.
struct Keys {
  CacheShape shape;
  std::vector<float> keys;
  std::size_t len = 0;

  Keys(CacheShape s, std::vector<float> rows)
      : shape(s), keys(std::move(rows)), len(keys.size() / s.head_dim) {}

  [[nodiscard]] kvevict::views::ContiguousView view() {
    return {shape,
            kvevict::views::Tensor::hnd(keys.data(), kvevict::ElementType::kF32, len, 1,
                                        shape.head_dim),
            {},
            len};
  }
  /// S of every query head, [group, len], at the end of the text.
  template <class P>
  std::vector<float> raw(const P& policy) {
    const auto all = view();
    const kvevict::ViewRef ref(all);
    kvevict::Scratch scratch;
    const kvevict::ScoreInput input{ref, policy.sequence(), kvevict::kernels::best(), scratch};
    kvevict::LaneScores scores(input, 0);
    policy.method().parts().signal().score(input, scores);
    std::vector<float> result;
    for (std::size_t i = 0; i < scores.num_arrays(); ++i)
      result.insert(result.end(), scores.array(i).begin(), scores.array(i).end());
    return result;
  }
};
TriAttentionOptions bare(std::size_t budget, const RotaryEmbedding& rotary) {
  TriAttentionOptions options;
  options.budget = budget;
  options.interval = 1;
  options.protect_prompt = false;
  options.num_sink_tokens = 0;
  options.recent_window = 0;
  options.rotary = rotary;
  return options;
}
template <class P>
P fed(const TriAttentionOptions& options, const CacheShape& shape, std::size_t len) {
  P policy(options, shape);
  policy.append(len);
  return policy;
}

// d 2, one band, omega = pi / 2, D = {1, 2}, t = 4, keys (1,0), (0,1), (-2,0), (0,-1). Head 0: m =
// 1, a = 1.5: M = (i - 1) / 2, u = M, c = .5; dots -.5, .5, 1, -.5 and lengths .5, .5, 1, .5 make
// S = (0, 1, 2, 0), z = (-.904534, .301511, 1.507557, -.904534).
class HandExample : public ::testing::Test {
 protected:
  static constexpr double kHalfPi = 1.57079632679489661923;
  RotaryEmbedding rotary{.inv_freq = {kHalfPi}};
  Keys keys{one_head(1, 2), {1, 0, 0, 1, -2, 0, 0, -1}};

  [[nodiscard]] TriAttentionOptions options(std::size_t budget) const {
    auto statistics = std::make_shared<QueryStatistics>(keys.shape, false, rotary);
    const std::vector<float> mean = {1, 0};
    const std::vector<float> length = {1.5F};
    statistics->set(0, 0, mean, {}, length);
    TriAttentionOptions result = bare(budget, rotary);
    result.largest_offset = 2;
    result.query_statistics = statistics;
    return result;
  }
};

TEST_F(HandExample, ScoresAreThoseOfThePaper) {
  const std::vector<float> raw = keys.raw(fed<TriAttentionStats>(options(2), keys.shape, 4));
  const std::vector<float> expected = {0, 1, 2, 0};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(raw[i], expected[i], 1e-6);
  const auto policy = fed<TriAttentionStats>(options(2), keys.shape, 4);
  const auto view = keys.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  std::vector<float> z(4);
  policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, 0, z);
  const std::vector<double> standard = {-.904534, .301511, 1.507557, -.904534};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(z[i], standard[i], 1e-6);
  EXPECT_EQ(text_of(policy.select(view)), "0110");
}

// Protected tokens are no rivals: without slot 2 the mean of (0, 1, 0) is 1/3 and the deviation
// sqrt(2) / 3, so that slot 1 has z = sqrt(2).
TEST_F(HandExample, OnlyTokensThatMayGoAreCompared) {
  const auto policy = fed<TriAttentionStats>(options(2), keys.shape, 4);
  const auto view = keys.view();
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const std::vector<std::uint64_t> candidates = {0b1011};
  std::vector<float> z(4);
  policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch, candidates}, 0,
                        z);
  EXPECT_NEAR(z[0], -std::sqrt(.5), 1e-6);
  EXPECT_NEAR(z[1], std::sqrt(2.0), 1e-6);
}

// A second head with S = (10, 0, 0, 20), made here as scores: z = (.301511, -.904534, -.904534,
// 1.507557). The maximum of z keeps {2, 3}; the maximum of S would keep {0, 3}.
TEST(StandardScores, MakeHeadsComparable) {
  Keys keys(one_head(2, 2), std::vector<float>(8, 1.0F));
  const auto view = keys.view();
  const kvevict::ViewRef ref(view);
  kvevict::Sequence sequence("test", keys.shape, kvevict::MaskScope::kHead);
  sequence.append(4);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, sequence, kvevict::kernels::best(), scratch};
  kvevict::LaneScores scores(input, 0);
  scores.start(0, 4, 2);
  const std::vector<float> both = {0, 1, 2, 0, 10, 0, 0, 20};
  std::copy(both.begin(), both.end(), scores.array(0).begin());
  kvevict::StandardScores{}.apply(input, scores);
  kvevict::GroupReduction{kvevict::GroupReduce::kMax}.apply(input, scores);
  const std::vector<double> expected = {.301511, .301511, 1.507557, 1.507557};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(scores.array(0)[i], expected[i], 1e-6);
}

// Equal scores, and a NaN beside others: it stays NaN and takes nothing from them.
TEST(StandardScores, ConstantAndNaN) {
  Keys keys(one_head(1, 2), std::vector<float>(6, 1.0F));
  const auto view = keys.view();
  const kvevict::ViewRef ref(view);
  kvevict::Sequence sequence("test", keys.shape, kvevict::MaskScope::kHead);
  sequence.append(3);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, sequence, kvevict::kernels::best(), scratch};
  kvevict::LaneScores scores(input, 0);
  scores.start(0, 3, 1);
  std::fill_n(scores.array(0).begin(), 3, 7.0F);
  kvevict::StandardScores{}.apply(input, scores);
  EXPECT_EQ(scores.array(0)[0], 0.0F);
  const std::vector<float> with_nan = {1, std::numeric_limits<float>::quiet_NaN(), 3};
  std::copy(with_nan.begin(), with_nan.end(), scores.array(0).begin());
  kvevict::StandardScores{}.apply(input, scores);
  EXPECT_FLOAT_EQ(scores.array(0)[0], -1.0F);
  EXPECT_TRUE(std::isnan(scores.array(0)[1]));
  EXPECT_FLOAT_EQ(scores.array(0)[2], 1.0F);
  // Squares of these are no floats.
  const std::vector<float> large = {1e30F, 2e30F, 3e30F};
  std::copy(large.begin(), large.end(), scores.array(0).begin());
  kvevict::StandardScores{}.apply(input, scores);
  EXPECT_NEAR(scores.array(0)[0], -std::sqrt(1.5), 1e-6);
  EXPECT_NEAR(scores.array(0)[1], 0.0, 1e-6);
  EXPECT_NEAR(scores.array(0)[2], std::sqrt(1.5), 1e-6);
}

// Rivals are gathered 64 slots at a time where all of these may go: slots 3 to 199, of which 70,
// 100 to 131 and 199 may not, and 150 is infinite. Against sums in double.
TEST(StandardScores, RivalsOfALongLane) {
  constexpr std::size_t kFirst = 3;
  constexpr std::size_t kLen = 200;
  Keys keys(one_head(1, 2), std::vector<float>(2 * kLen, 1.0F));
  const auto view = keys.view();
  const kvevict::ViewRef ref(view);
  kvevict::Sequence sequence("test", keys.shape, kvevict::MaskScope::kHead);
  sequence.append(kLen);
  const auto may_go = [](std::size_t slot) {
    return slot != 70 && slot != 199 && (slot < 100 || slot > 131);
  };
  std::vector<std::uint64_t> some(4);
  for (std::size_t slot = 0; slot < kLen; ++slot)
    some[slot / 64] |= std::uint64_t{may_go(slot) ? 1U : 0U} << slot % 64;
  for (const std::vector<std::uint64_t>& candidates : {some, std::vector<std::uint64_t>()}) {
    kvevict::Scratch scratch;
    const kvevict::ScoreInput input{ref, sequence, kvevict::kernels::best(), scratch, candidates};
    kvevict::LaneScores scores(input, 0);
    scores.start(kFirst, kLen, 1);
    const auto score = [](std::size_t slot) {
      return slot == 150 ? std::numeric_limits<float>::infinity()
                         : static_cast<float>(slot * slot % 37);
    };
    double sum = 0.0;
    double squares = 0.0;
    double count = 0.0;
    for (std::size_t slot = kFirst; slot < kLen; ++slot) {
      scores.array(0)[slot - kFirst] = score(slot);
      if (slot == 150 || !(candidates.empty() || may_go(slot)))
        continue;
      sum += static_cast<double>(score(slot));
      squares += static_cast<double>(score(slot)) * static_cast<double>(score(slot));
      count += 1.0;
    }
    const double mean = sum / count;
    const double deviation = std::sqrt(squares / count - mean * mean);
    kvevict::StandardScores{}.apply(input, scores);
    for (std::size_t slot = kFirst; slot < kLen; ++slot) {
      const auto z = static_cast<double>(scores.array(0)[slot - kFirst]);
      if (slot == 150) {
        EXPECT_EQ(z, std::numeric_limits<double>::infinity());
      } else {
        EXPECT_NEAR(z, (static_cast<double>(score(slot)) - mean) / deviation, 1e-6) << slot;
      }
    }
  }
}

/// Random statistics and keys of a model with YaRN's scaling, frequencies without a formula and
/// channels that do not turn.
struct RandomModel {
  static constexpr std::size_t kLen = 70;
  CacheShape shape = one_head(2, 10);
  RotaryEmbedding rotary{.inv_freq = {1.0, .3, .01, 2e-4}, .attention_scaling = 1.2};
  std::shared_ptr<QueryStatistics> statistics;
  std::vector<float> before;  // keys before rotary embedding

  explicit RandomModel(kvevict::RotaryPairing pairing) {
    rotary.pairing = pairing;
    statistics = std::make_shared<QueryStatistics>(shape, false, rotary);
    Random random(5);
    std::vector<float> query(shape.head_dim);
    for (std::size_t i = 0; i < 40; ++i) {
      for (float& x : query)
        x = random.eighths() + .5F;
      statistics->add(0, i % 2, query.data());
    }
    for (std::size_t i = 0; i < kLen * shape.head_dim; ++i)
      before.push_back(random.eighths());
  }
  /// Keys as they are cached when the first one lies at `first`.
  [[nodiscard]] Keys cached(std::size_t first) const {
    Keys keys(shape, before);
    for (std::size_t i = 0; i < kLen; ++i) {
      float* row = keys.keys.data() + i * shape.head_dim;
      for (std::size_t f = 0; f < rotary.num_pairs(); ++f) {
        rotary.turn_pair(
            f, rotary.attention_scaling * rotary.factor(f, static_cast<double>(first + i)), row);
      }
    }
    return keys;
  }
  [[nodiscard]] TriAttentionOptions options() const {
    TriAttentionOptions result = bare(10, rotary);
    result.largest_offset = 4096;
    result.query_statistics = statistics;
    return result;
  }
  /// The published form, in double: S_trig at each offset, then S_norm.
  [[nodiscard]] double trigonometric(std::size_t head, std::size_t i, double offset) const {
    double sum = 0;
    for (std::size_t f = 0; f < rotary.num_pairs(); ++f) {
      const auto [c, d] = rotary.channels(f);
      const Complex m(statistics->mean(0, head)[c], statistics->mean(0, head)[d]);
      const Complex k(before[i * shape.head_dim + c], before[i * shape.head_dim + d]);
      const double distance = static_cast<double>(kLen - i) + offset;
      sum += std::abs(m) * std::abs(k) *
             std::cos(rotary.inv_freq[f] * distance + std::arg(m) - std::arg(k));
    }
    return rotary.attention_scaling * rotary.attention_scaling * sum;
  }
  [[nodiscard]] double lengths(std::size_t head, std::size_t i, bool whole) const {
    double sum = 0;
    for (std::size_t f = 0; f < rotary.num_pairs(); ++f) {
      const auto [c, d] = rotary.channels(f);
      const Complex m(statistics->mean(0, head)[c], statistics->mean(0, head)[d]);
      const Complex k(before[i * shape.head_dim + c], before[i * shape.head_dim + d]);
      sum += (statistics->band_lengths(0, head)[f] - (whole ? 0 : std::abs(m))) * std::abs(k);
    }
    return rotary.attention_scaling * rotary.attention_scaling * sum;
  }
};

class PublishedForm : public ::testing::TestWithParam<kvevict::RotaryPairing> {};
INSTANTIATE_TEST_SUITE_P(Pairings, PublishedForm,
                         ::testing::Values(kvevict::RotaryPairing::kHalf,
                                           kvevict::RotaryPairing::kInterleaved));

// Inverse rotation, positions and cosines give the same as one dot product and band lengths; so in
// every variant.
TEST_P(PublishedForm, NeedsNeitherPositionsNorCosines) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  struct Variant {
    OffsetReduce reduce;
    bool use_distance;
    BandWeight weight;
  };
  for (const Variant& variant : {Variant{OffsetReduce::kMean, true, BandWeight::kResidual},
                                 Variant{OffsetReduce::kMax, true, BandWeight::kResidual},
                                 Variant{OffsetReduce::kMean, true, BandWeight::kWhole},
                                 Variant{OffsetReduce::kMean, true, BandWeight::kNone},
                                 Variant{OffsetReduce::kMax, true, BandWeight::kNone},
                                 Variant{OffsetReduce::kMean, false, BandWeight::kResidual}}) {
    TriAttentionOptions options = model.options();
    options.offset_reduce = variant.reduce;
    options.use_distance = variant.use_distance;
    options.band_weight = variant.weight;
    const std::vector<float> raw =
        keys.raw(fed<TriAttentionStats>(options, model.shape, RandomModel::kLen));
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t i = 0; i < RandomModel::kLen; ++i) {
        double mean = 0;
        double largest = -1e300;
        for (double offset = 1; offset <= 4096; offset *= 2) {
          mean += model.trigonometric(head, i, offset) / 13;
          largest = std::max(largest, model.trigonometric(head, i, offset));
        }
        double expected = 0;
        if (variant.use_distance)
          expected += variant.reduce == OffsetReduce::kMean ? mean : largest;
        if (variant.weight != BandWeight::kNone)
          expected += model.lengths(head, i, variant.weight == BandWeight::kWhole);
        EXPECT_NEAR(raw[head * RandomModel::kLen + i], expected, 2e-5 * 20) << head << " " << i;
      }
    }
  }
}

/// Fed `len` tokens of which it holds [first, first + RandomModel::kLen) alone.
TriAttentionStats holding(const TriAttentionOptions& options, const CacheShape& shape,
                          std::size_t first, std::size_t len) {
  auto policy = fed<TriAttentionStats>(options, shape, len);
  kvevict::KeepMask held;
  held.reset(kvevict::MaskScope::kModel, 1, 1);
  const auto bits = held.add_lane(len);
  for (std::size_t slot = first; slot < first + RandomModel::kLen; ++slot)
    bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
  policy.apply(held);
  return policy;
}

// Identity (b): text that lies 1000 positions further on scores the same.
TEST_P(PublishedForm, DependsOnDistanceAlone) {
  const RandomModel model(GetParam());
  Keys here = model.cached(0);
  Keys there = model.cached(1000);
  const std::vector<float> a =
      here.raw(fed<TriAttentionStats>(model.options(), model.shape, RandomModel::kLen));
  const std::vector<float> b =
      there.raw(holding(model.options(), model.shape, 1000, 1000 + RandomModel::kLen));
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 1e-4);
}

// Identity (k): without the part that goes by distance the time does not matter. The same keys at
// the same positions, read 1000 tokens later.
TEST_P(PublishedForm, WithoutDistanceTimeDoesNotMatter) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  for (const bool use_distance : {false, true}) {
    TriAttentionOptions options = model.options();
    options.use_distance = use_distance;
    const std::vector<float> now =
        keys.raw(holding(options, model.shape, 0, RandomModel::kLen + 1));
    const std::vector<float> later =
        keys.raw(holding(options, model.shape, 0, RandomModel::kLen + 1000));
    EXPECT_EQ(now == later, !use_distance);
  }
}

// Identity (d), first half: a key of twice the length has twice the score. Powers of two are exact.
TEST_P(PublishedForm, IsProportionalToTheLengthOfAKey) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  const auto policy = fed<TriAttentionStats>(model.options(), model.shape, RandomModel::kLen);
  std::vector<float> expected = keys.raw(policy);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] = std::ldexp(expected[i], static_cast<int>(i % RandomModel::kLen % 5) - 2);
  for (std::size_t i = 0; i < keys.keys.size(); ++i)
    keys.keys[i] = std::ldexp(keys.keys[i], static_cast<int>(i / model.shape.head_dim % 5) - 2);
  EXPECT_EQ(keys.raw(policy), expected);
}

// Identity (d), second half: z-scores do not see how long the queries of a head are. Head 1 is 64
// times louder; without z-scores the maximum over heads is then another one.
TEST_P(PublishedForm, StandardScoresDoNotSeeTheUnitsOfAHead) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  auto louder = std::make_shared<QueryStatistics>(model.shape, false, model.rotary);
  for (std::size_t head = 0; head < 2; ++head) {
    std::vector<float> mean;
    for (const double x : model.statistics->mean(0, head))
      mean.push_back(static_cast<float>(x));
    std::vector<float> lengths;
    for (const double x : model.statistics->band_lengths(0, head))
      lengths.push_back(static_cast<float>(x));
    model.statistics->set(0, head, mean, {}, lengths);  // floats, which 64 multiplies exactly
    for (std::vector<float>* values : {&mean, &lengths}) {
      for (float& x : *values)
        x *= head == 1 ? 64.0F : 1.0F;
    }
    louder->set(0, head, mean, {}, lengths);
  }
  for (const bool normalise : {true, false}) {
    TriAttentionOptions options = model.options();
    options.normalise = normalise;
    const auto view = keys.view();
    const kvevict::KeepMask before =
        fed<TriAttentionStats>(options, model.shape, RandomModel::kLen).select(view);
    options.query_statistics = louder;
    const kvevict::KeepMask after =
        fed<TriAttentionStats>(options, model.shape, RandomModel::kLen).select(view);
    EXPECT_EQ(before == after, normalise);
  }
}

// Identity (e): a head without a centre goes by lengths alone, s^2 sum_f a_f |k_f|, wherever its
// keys lie and however they are turned.
TEST_P(PublishedForm, WithoutACentreLengthsDecide) {
  const RandomModel model(GetParam());
  auto statistics = std::make_shared<QueryStatistics>(model.shape, false, model.rotary);
  const std::vector<float> zero(model.shape.head_dim);
  const std::vector<std::vector<float>> lengths = {{2, 1, .5F, 3}, {.25F, 4, 1, 1}};
  for (std::size_t head = 0; head < 2; ++head)
    statistics->set(0, head, zero, {}, lengths[head]);
  TriAttentionOptions options = model.options();
  options.query_statistics = statistics;
  for (const std::size_t first : {std::size_t{0}, std::size_t{777}}) {
    Keys keys = model.cached(first);
    // As if the token in slot i stood i^2 positions further on.
    for (std::size_t i = 0; i < RandomModel::kLen; ++i)
      model.rotary.turn(static_cast<double>(i * i), keys.keys.data() + i * model.shape.head_dim);
    const std::vector<float> raw =
        keys.raw(fed<TriAttentionStats>(options, model.shape, RandomModel::kLen));
    for (std::size_t i = 0; i < raw.size(); ++i) {
      const std::size_t slot = i % RandomModel::kLen;
      double sum = 0;
      for (std::size_t f = 0; f < model.rotary.num_pairs(); ++f) {
        const auto [c, d] = model.rotary.channels(f);
        const float* key = model.before.data() + slot * model.shape.head_dim;
        sum += static_cast<double>(lengths[i / RandomModel::kLen][f]) *
               std::hypot(static_cast<double>(key[c]), static_cast<double>(key[d]));
      }
      EXPECT_NEAR(raw[i], 1.2 * 1.2 * sum, 2e-5) << i;
    }
  }
}

// Identity (h): no mean over offsets is above the largest of them, and one offset is both.
TEST_P(PublishedForm, AMeanIsNoMoreThanTheLargest) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  for (const std::size_t largest : {1U, 2U, 4096U}) {
    TriAttentionOptions options = model.options();
    options.largest_offset = largest;
    const std::vector<float> mean =
        keys.raw(fed<TriAttentionStats>(options, model.shape, RandomModel::kLen));
    options.offset_reduce = OffsetReduce::kMax;
    const std::vector<float> peak =
        keys.raw(fed<TriAttentionStats>(options, model.shape, RandomModel::kLen));
    std::size_t apart = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      EXPECT_LE(mean[i], peak[i] + 1e-4F) << i;
      apart += mean[i] < peak[i] - 1e-4F ? 1 : 0;
    }
    EXPECT_EQ(apart == 0, largest == 1) << apart;
  }
}

// Identity (i): what is evicted changes z, never S. Every third key goes.
TEST_P(PublishedForm, EvictionLeavesTheScoresOfTheOthers) {
  const RandomModel model(GetParam());
  Keys keys = model.cached(0);
  const std::size_t dim = model.shape.head_dim;
  auto policy = fed<TriAttentionStats>(model.options(), model.shape, RandomModel::kLen);
  const auto standard = [&] {
    const auto view = keys.view();
    const kvevict::ViewRef ref(view);
    kvevict::Scratch scratch;
    std::vector<float> z(keys.len);
    policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, 0, z);
    return z;
  };
  const std::vector<float> before = keys.raw(policy);
  const std::vector<float> z_before = standard();
  std::string text;
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < RandomModel::kLen; ++i) {
    text += i % 3 == 1 ? '0' : '1';
    if (i % 3 == 1)
      continue;
    std::copy_n(keys.keys.begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                keys.keys.begin() + static_cast<std::ptrdiff_t>(left.size() * dim));
    left.push_back(i);
  }
  keys.len = left.size();
  policy.apply(mask_of(text));
  const std::vector<float> after = keys.raw(policy);
  const std::vector<float> z_after = standard();
  std::size_t changed = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(after[i], before[left[i]]) << i;
    EXPECT_EQ(after[left.size() + i], before[RandomModel::kLen + left[i]]) << i;
    changed += z_after[i] != z_before[left[i]] ? 1 : 0;
  }
  EXPECT_GT(changed, left.size() / 2);
}

// Identity (j), with QueryStatistics.MergeByTheirCounts: where all queries are equal, lengths add
// nothing to the centre.
TEST_P(PublishedForm, EqualQueriesHaveNoResidual) {
  RandomModel model(GetParam());
  model.statistics = std::make_shared<QueryStatistics>(model.shape, false, model.rotary);
  const std::vector<float> query = {1, -.5F, .25F, 2, -1, .5F, 0, .75F, 0, 0};
  for (std::size_t i = 0; i < 6; ++i)
    model.statistics->add(0, i % 2, query.data());
  TriAttentionOptions options = model.options();
  options.use_distance = false;
  Keys keys = model.cached(0);
  const auto policy = fed<TriAttentionStats>(options, model.shape, RandomModel::kLen);
  for (const float score : keys.raw(policy))
    EXPECT_NEAR(score, 0, 1e-5);
}

// Identity (a): queries that are all equal, one distance: S is sqrt(d) times the logit of that
// query at t + o, and bands have no residual.
TEST(TriAttention, OfOneQueryItIsItsLogit) {
  const RandomModel model(kvevict::RotaryPairing::kHalf);
  const CacheShape shape = one_head(1, 10);
  auto statistics = std::make_shared<QueryStatistics>(shape, false, model.rotary);
  std::vector<float> query = {1, -.5F, .25F, 2, -1, .5F, 0, .75F, 0, 0};
  for (int i = 0; i < 3; ++i)
    statistics->add(0, 0, query.data());
  TriAttentionOptions options = bare(10, model.rotary);
  options.largest_offset = 1;
  options.query_statistics = statistics;
  Keys keys = model.cached(0);
  keys.shape = shape;
  const std::vector<float> raw =
      keys.raw(fed<TriAttentionStats>(options, shape, RandomModel::kLen));
  for (std::size_t f = 0; f < model.rotary.num_pairs(); ++f) {
    model.rotary.turn_pair(f,
                           model.rotary.attention_scaling *
                               model.rotary.factor(f, static_cast<double>(RandomModel::kLen) + 1),
                           query.data());
  }
  for (std::size_t i = 0; i < RandomModel::kLen; ++i) {
    double logit = 0;
    for (std::size_t c = 0; c < 8; ++c) {
      logit += static_cast<double>(query[c]) * static_cast<double>(keys.keys[i * 10 + c]);
    }
    EXPECT_NEAR(raw[i], logit, 1e-5);
  }
}

constexpr CacheShape kModel{.num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6};

template <class P>
TestEngine<P> make_engine(const TriAttentionOptions& options, const CacheShape& shape = kModel) {
  return {P(options, shape), layouts::nhd(shape, 300, kvevict::ElementType::kF32)};
}
TriAttentionOptions toy(TriAttentionMode mode) {
  TriAttentionOptions options = bare(12, {.inv_freq = {1.0, .1, .01}});
  options.mode = mode;
  options.min_queries = 1;
  return options;
}

/// Of 9 random queries of each head, every head around a centre of its own.
std::shared_ptr<const QueryStatistics> toy_statistics(const RotaryEmbedding& rotary) {
  auto statistics = std::make_shared<QueryStatistics>(kModel, false, rotary);
  Random random(31);
  std::vector<float> query(kModel.head_dim);
  for (std::size_t i = 0; i < 9 * kModel.num_layers * kModel.num_q_heads; ++i) {
    const std::size_t head = i / 9;
    for (std::size_t c = 0; c < query.size(); ++c)
      query[c] = random.eighths() + (c == head % query.size() ? 2.0F : 0.0F);
    statistics->add(head / kModel.num_q_heads, head % kModel.num_q_heads, query.data());
  }
  return statistics;
}

// Statistics that the policy gathers are those of the queries turned back: given to the other
// policy they choose the same.
TEST(TriAttention, GathersWhatTheOtherIsGiven) {
  const TriAttentionOptions options = toy(TriAttentionMode::kPerLayerHead);
  auto online = make_engine<TriAttention>(options);
  online.prompt(40);
  TriAttentionOptions given = options;
  given.query_statistics = std::make_shared<QueryStatistics>(
      online.policy.method().parts().signal().queries().statistics());
  EXPECT_EQ(given.query_statistics->count(2, 3), 40U);
  auto offline = make_engine<TriAttentionStats>(given);
  offline.prompt(40);
  EXPECT_EQ(online.select(), offline.select());
}

TEST(TriAttention, ModesShareSets) {
  auto per_head = make_engine<TriAttention>(toy(TriAttentionMode::kPerHead));
  per_head.prompt(40);
  per_head.evict_if_due();
  EXPECT_EQ(per_head.positions(0, 0), per_head.positions(2, 0));
  EXPECT_EQ(per_head.positions(0, 1), per_head.positions(1, 1));
  EXPECT_NE(per_head.positions(0, 0), per_head.positions(0, 1));
  EXPECT_EQ(per_head.positions(0, 0).size(), 12U);
  per_head.decode(30);
  EXPECT_EQ(per_head.positions(0, 0), per_head.positions(2, 0));
  auto one = make_engine<TriAttention>(toy(TriAttentionMode::kUnion));
  one.prompt(40);
  EXPECT_EQ(one.select().num_lanes(), 1U);
  EXPECT_EQ(one.select().count(0, 0), 12U);
}

// Identity (g): one layer, one query head: the three modes agree.
TEST(TriAttention, ModesOfOneHeadAgree) {
  const CacheShape shape = one_head(1, 6);
  std::vector<std::vector<std::size_t>> kept;
  for (const TriAttentionMode mode :
       {TriAttentionMode::kPerLayerHead, TriAttentionMode::kPerHead, TriAttentionMode::kUnion}) {
    auto engine = make_engine<TriAttention>(toy(mode), shape);
    engine.prompt(40);
    kept.push_back(kept_slots(engine.select()));
  }
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(kept[0], kept[2]);
}

// By default the union asks the upper half of 3 layers, those from 1 on.
TEST(TriAttention, TheUnionAsksTheUpperLayers) {
  const auto kept_with = [](std::size_t first_layer) {
    TriAttentionOptions options = toy(TriAttentionMode::kUnion);
    options.first_layer = first_layer;
    auto engine = make_engine<TriAttention>(options);
    engine.prompt(60);
    return kept_slots(engine.select());
  };
  EXPECT_EQ(kept_with(TriAttentionOptions::kDefaultLayer), kept_with(1));
  EXPECT_NE(kept_with(1), kept_with(0));
  EXPECT_NE(kept_with(1), kept_with(2));
}

// Identity (f): one set for the model is the k best by the maximum over layers and heads. The
// authors let every head vote for its k best first and look at those alone; that changes nothing.
TEST(TriAttention, TheUnionIsTheTopOfTheMaximum) {
  constexpr std::size_t kLen = 90;
  constexpr std::size_t kBudget = 12;
  for (const std::size_t first_layer : {0U, 1U, 2U}) {
    TriAttentionOptions options = toy(TriAttentionMode::kUnion);
    options.first_layer = first_layer;
    options.query_statistics = toy_statistics(options.rotary);
    auto one = make_engine<TriAttentionStats>(options);
    one.prompt(kLen);
    TriAttentionOptions own_options = options;
    own_options.mode = TriAttentionMode::kPerLayerHead;
    auto own = make_engine<TriAttentionStats>(own_options);
    own.prompt(kLen);
    std::vector<double> best(kLen, -1e300);
    std::vector<std::vector<double>> heads;
    const auto view = own.cache.view();
    const kvevict::ViewRef ref(view);
    kvevict::Scratch scratch;
    const kvevict::ScoreInput input{ref, own.policy.sequence(), kvevict::kernels::best(), scratch};
    for (std::size_t lane = 2 * first_layer; lane < 6; ++lane) {
      kvevict::LaneScores scores(input, lane);
      own.policy.method().parts().signal().score(input, scores);
      ASSERT_EQ(scores.num_arrays(), 2U);  // two query heads on each KV head
      for (std::size_t h = 0; h < 2; ++h) {
        const auto s = scores.array(h);
        double mean = 0;
        for (const float x : s)
          mean += static_cast<double>(x) / kLen;
        double variance = 0;
        for (const float x : s)
          variance += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean) / kLen;
        heads.emplace_back();
        for (std::size_t i = 0; i < kLen; ++i) {
          heads.back().push_back((static_cast<double>(s[i]) - mean) / std::sqrt(variance));
          best[i] = std::max(best[i], heads.back()[i]);
        }
      }
    }
    const auto top = [&](const std::vector<double>& scores) {
      Slots order = range(0, kLen);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
      order.resize(kBudget);
      std::sort(order.begin(), order.end());
      return order;
    };
    const Slots expected = top(best);
    EXPECT_EQ(kept_slots(one.select()), expected) << first_layer;
    std::vector<double> voted(kLen, -1e300);
    for (const std::vector<double>& head : heads) {
      for (const std::size_t slot : top(head))
        voted[slot] = best[slot];
    }
    EXPECT_EQ(top(voted), expected);
    EXPECT_GT(std::count(voted.begin(), voted.end(), -1e300), 0);
  }
}

TEST(TriAttention, FewQueriesKeepTheNewestTokens) {
  TriAttentionOptions options = toy(TriAttentionMode::kPerLayerHead);
  options.min_queries = 64;
  auto engine = make_engine<TriAttention>(options);
  engine.prompt(40);
  EXPECT_EQ(kept_slots(engine.select(), 1, 1), range(28, 40));
}

// A cut every `interval` tokens, down to the budget; of a prompt as much as the budget bears.
TEST(TriAttention, CutsAtIntervalsAndLetsALongPromptGiveWay) {
  TriAttentionOptions options = toy(TriAttentionMode::kPerLayerHead);
  options.budget = 20;
  options.interval = 8;
  options.protect_prompt = true;
  options.recent_window = 5;
  auto engine = make_engine<TriAttention>(options);
  engine.prompt(10);
  engine.decode(17);
  EXPECT_EQ(engine.positions().size(), 27U);
  engine.decode(1);
  EXPECT_EQ(engine.positions().size(), 20U);
  const std::vector<std::size_t> kept = engine.positions(1, 1);
  EXPECT_EQ(std::vector<std::size_t>(kept.begin(), kept.begin() + 10), range(0, 10));
  EXPECT_EQ(std::vector<std::size_t>(kept.end() - 5, kept.end()), range(23, 28));
  auto longer = make_engine<TriAttention>(options);
  longer.prompt(50);
  longer.decode(1);
  const std::vector<std::size_t> cut = longer.positions();
  EXPECT_EQ(cut.size(), 20U);
  EXPECT_EQ(std::vector<std::size_t>(cut.begin(), cut.begin() + 14), range(0, 14));
  EXPECT_EQ(std::vector<std::size_t>(cut.end() - 5, cut.end()), range(46, 51));
}

TEST(TriAttention, RefusesWhatItCannotScoreWith) {
  const auto made_with = [](auto change) {
    return [change] {
      TriAttentionOptions options = toy(TriAttentionMode::kPerLayerHead);
      change(options);
      TriAttention policy(options, kModel);
    };
  };
  EXPECT_TRUE(refuses(made_with([](auto& o) { o.rotary.inv_freq.clear(); }),
                      {"TriAttention", "rotary.inv_freq.size()", "0"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) { o.rotary.attention_scaling = 0; }),
                      {"TriAttention", "attention_scaling", "0"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) { o.interval = 0; }), {"TriAttention", "interval"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) { o.largest_offset = 0; }),
                      {"TriAttention", "largest_offset", "0"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) {
                        o.mode = TriAttentionMode::kUnion;
                        o.first_layer = 3;
                      }),
                      {"TriAttention", "first_layer", "3"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) {
                        o.use_distance = false;
                        o.band_weight = BandWeight::kNone;
                      }),
                      {"TriAttention", "use_distance"}));
  EXPECT_TRUE(refuses(made_with([](auto& o) {
                        o.query_statistics =
                            std::make_shared<QueryStatistics>(kModel, false, o.rotary);
                      }),
                      {"TriAttention", "query_statistics", "1"}));
  EXPECT_TRUE(refuses(
      [] {
        TriAttentionOptions options = toy(TriAttentionMode::kPerLayerHead);
        options.query_statistics = std::make_shared<QueryStatistics>(kModel, false);
        TriAttentionStats policy(options, kModel);
      },
      {"TriAttentionStats", "query_statistics.num_bands()", "0"}));
}

}  // namespace
}  // namespace kvevict_test
