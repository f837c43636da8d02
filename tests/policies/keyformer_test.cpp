#include "kvevict/policies/keyformer.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::H2O;
using kvevict::Keyformer;
using kvevict::KeyformerOptions;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr CacheShape kGroups{.num_layers = 1, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Softmax rows of random logits; token t of [first, last) sees t + 1 - `missing` slots.
HeadRows random_rows(const CacheShape& shape, std::size_t first, std::size_t last,
                     std::size_t missing, Random& random) {
  HeadRows rows(shape.num_q_heads);
  for (auto& head : rows) {
    for (std::size_t t = first; t < last; ++t) {
      std::vector<float> row(t + 1 - missing);
      float sum = 0.0F;
      for (float& a : row)
        sum += a = std::exp(random.eighths());
      for (float& a : row)
        a /= sum;
      head.push_back(row);
    }
  }
  return rows;
}

template <class P>
RowSession<P> session_of(const typename P::Options& options, const CacheShape& shape,
                         const HeadRows& rows) {
  RowSession<P> session(options, shape);
  session.policy.begin(rows[0].size());
  session.append(rows[0].size());
  session.rows(0, rows);
  session.policy.end_prefill(session.cache.view());
  return session;
}

// Temperature 2 takes roots: (.64, .36) becomes (.8, .6) / 1.4, and a lone token has everything.
TEST(Keyformer, ATemperatureSoftensRows) {
  auto session = session_of<Keyformer>(
      {.heavy = 2, .recent = 1, .tau_init = 2, .tau_end = 2, .gumbel_noise = false}, kOneHead,
      {{{1}, {.64F, .36F}}});
  const std::vector<float> scores = scores_of(session.policy, session.cache);
  EXPECT_NEAR(scores[0], 1 + .8 / 1.4, 1e-6);
  EXPECT_NEAR(scores[1], .6 / 1.4, 1e-6);
}

// From 1 in the prompt by 1/4 a step to 2, where it stays.
TEST(Keyformer, TheTemperatureGrowsWhileDecoding) {
  RowSession<Keyformer> session({.heavy = 8, .recent = 8, .generation_len = 4}, kOneHead);
  session.prompt(3);
  const auto tau = [&](std::size_t position) {
    return session.policy.method().parts().signal().tau(session.policy.sequence(), position);
  };
  EXPECT_DOUBLE_EQ(tau(0), 1.0);
  EXPECT_DOUBLE_EQ(tau(2), 1.0);
  EXPECT_DOUBLE_EQ(tau(3), 1.25);
  EXPECT_DOUBLE_EQ(tau(5), 1.75);
  EXPECT_DOUBLE_EQ(tau(6), 2.0);
  EXPECT_DOUBLE_EQ(tau(60), 2.0);
}

// The identity that the formula promises.
TEST(Keyformer, WithoutNoiseAtTemperatureOneItIsH2O) {
  Random random(3);
  const HeadRows prompt = random_rows(kGroups, 0, 12, 0, random);
  auto keyformer = session_of<Keyformer>(
      {.heavy = 4, .recent = 3, .tau_end = 1, .gumbel_noise = false}, kGroups, prompt);
  auto h2o = session_of<H2O>({.heavy = 4, .recent = 3}, kGroups, prompt);
  for (std::size_t step = 0; step < 10; ++step) {
    EXPECT_EQ(keyformer.cut(), h2o.cut());
    for (std::size_t lane = 0; lane < 2; ++lane) {
      EXPECT_EQ(keyformer.kept(lane), h2o.kept(lane));
      const std::vector<float> scores = scores_of(keyformer.policy, keyformer.cache, lane);
      const std::vector<float> sums = scores_of(h2o.policy, h2o.cache, lane);
      for (std::size_t slot = 0; slot < sums.size(); ++slot)
        EXPECT_NEAR(scores[slot], sums[slot], 2e-6);
    }
    const HeadRows row = random_rows(kGroups, 12 + step, 13 + step, 5 + step, random);
    keyformer.step({row});
    h2o.step({row});
  }
}

// The formula in double, from the rows' logarithms and the noise that the signal says it draws,
// over evictions: sums go with their tokens.
TEST(Keyformer, AccumulatesTheGumbelSoftmax) {
  Random random(5);
  const KeyformerOptions options{.heavy = 4, .recent = 2, .generation_len = 3, .seed = 7};
  const HeadRows prompt = random_rows(kGroups, 0, 9, 0, random);
  auto session = session_of<Keyformer>(options, kGroups, prompt);
  const auto& signal = session.policy.method().parts().signal();
  std::vector<std::vector<double>> expected(2, std::vector<double>(32));
  const auto add = [&](const HeadRows& rows, std::size_t first, double tau) {
    for (std::size_t head = 0; head < 4; ++head) {
      const auto kept = session.kept(head / 2);
      for (std::size_t r = 0; r < rows[head].size(); ++r) {
        std::vector<double> powers;
        double sum = 0.0;
        for (std::size_t slot = 0; slot < rows[head][r].size(); ++slot) {
          const double noise = signal.noise(head, first + r, static_cast<std::size_t>(kept[slot]));
          powers.push_back(
              std::exp((std::log(static_cast<double>(rows[head][r][slot])) + noise) / tau));
          sum += powers.back();
        }
        for (std::size_t slot = 0; slot < powers.size(); ++slot)
          expected[head / 2][static_cast<std::size_t>(kept[slot])] += powers[slot] / sum / 2;
      }
    }
  };
  add(prompt, 0, 1.0);
  for (std::size_t step = 0; step < 5; ++step) {
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const std::vector<float> scores = scores_of(session.policy, session.cache, lane);
      const auto kept = session.kept(lane);
      for (std::size_t slot = 0; slot < kept.size(); ++slot) {
        EXPECT_NEAR(scores[slot], expected[lane][static_cast<std::size_t>(kept[slot])], 1e-5);
      }
    }
    ASSERT_TRUE(session.cut());
    const HeadRows row = random_rows(kGroups, 9 + step, 10 + step, 3 + step, random);
    session.step({row});
    add(row, 9 + step, std::min(1.0 + static_cast<double>(step + 1) / 3, 2.0));
  }
}

// Mean 0.5772 (Euler), variance pi^2 / 6; 40000 draws know the mean to 0.0064 (one deviation).
TEST(Keyformer, TheNoiseIsStandardGumbel) {
  const Keyformer policy({}, kOneHead);
  const auto& signal = policy.method().parts().signal();
  double sum = 0.0;
  double squares = 0.0;
  constexpr double kCount = 40000;
  for (std::size_t i = 0; i < 200; ++i) {
    for (std::size_t j = 0; j < 200; ++j) {
      const double g = signal.noise(0, i, j);
      sum += g;
      squares += g * g;
    }
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, std::numbers::egamma, .03);
  EXPECT_NEAR(squares / kCount - mean * mean, std::numbers::pi * std::numbers::pi / 6, .08);
  EXPECT_NE(signal.noise(0, 1, 2), signal.noise(0, 2, 1));
  EXPECT_NE(signal.noise(0, 1, 2), signal.noise(1, 1, 2));
}

// Two sequences with one seed, both of which ask for the same head and positions.
TEST(Keyformer, SequencesDrawForThemselves) {
  const auto noise = [](std::uint64_t sequence_id) {
    const Keyformer policy({.seed = 4, .sequence_id = sequence_id}, kOneHead);
    return policy.method().parts().signal().noise(0, 9, 5);
  };
  EXPECT_EQ(noise(1), noise(1));
  EXPECT_NE(noise(0), noise(1));
  EXPECT_NE(noise(1), noise(2));
}

TEST(Keyformer, ChunksDrawTheSameNoise) {
  Random random(11);
  const HeadRows rows = random_rows(kGroups, 0, 8, 0, random);
  auto whole = session_of<Keyformer>({.heavy = 2, .recent = 2}, kGroups, rows);
  RowSession<Keyformer> pieces({.heavy = 2, .recent = 2}, kGroups);
  pieces.policy.begin(8);
  for (std::size_t t = 0; t < 8; ++t) {
    pieces.append(1);
    HeadRows row;
    for (const auto& head : rows)
      row.push_back({head[t]});
    pieces.rows(0, row);
  }
  pieces.policy.end_prefill(pieces.cache.view());
  EXPECT_EQ(scores_of(whole.policy, whole.cache, 1), scores_of(pieces.policy, pieces.cache, 1));
}

// A row that says nothing adds nothing; an entry of NaN is counted and leaves the others a whole.
TEST(Keyformer, RowsWithoutMassAndNaNAreLeftOut) {
  auto session =
      session_of<Keyformer>({.heavy = 2, .recent = 1, .tau_end = 1, .gumbel_noise = false},
                            kOneHead, {{{1}, {0, 0}, {kNaN, .25F, .25F}}});
  EXPECT_EQ(scores_of(session.policy, session.cache), (std::vector<float>{1, .5F, .5F}));
  EXPECT_EQ(session.policy.counters().non_finite, 1U);
}

TEST(Keyformer, RefusesWhatIsNoTemperature) {
  EXPECT_TRUE(refuses([] { Keyformer({.tau_init = 0}, kOneHead); }, {"Keyformer", "tau_init"}));
  EXPECT_TRUE(
      refuses([] { Keyformer({.tau_end = -1}, kOneHead); }, {"Keyformer", "tau_end", "-1"}));
  EXPECT_TRUE(refuses([] { Keyformer({.generation_len = 0}, kOneHead); },
                      {"Keyformer", "generation_len", "0"}));
}

}  // namespace
}  // namespace kvevict_test
