#include "kvevict/scoring/replay_scores.hpp"

#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::GroupReduce;
using kvevict::ReplayPass;
using kvevict::ReplayScores;
using kvevict::ReplayScoresOptions;
using kvevict::ValueFactor;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 3};
constexpr std::size_t kLen = 30;
constexpr std::size_t kRows = 37;  // more than two blocks, and a part of one
constexpr std::size_t kHidden = 5;

/// A cache, a pass over it of which every number is random, and W_O.
struct Replay {
  WindowCache cache{kShape, kLen};
  std::vector<float> queries;
  std::vector<float> keys;
  std::vector<float> norms;
  std::vector<float> weight;

  Replay() {
    Random random(3);
    cache.fill(random);
    cache.append(kLen);
    const auto fill = [&](std::vector<float>& numbers, std::size_t size) {
      for (std::size_t i = 0; i < size; ++i)
        numbers.push_back(random.eighths());
    };
    fill(queries, kShape.num_q_heads * kRows * kShape.head_dim);
    fill(keys, kShape.num_kv_heads * kRows * kShape.head_dim);
    fill(weight, kShape.num_q_heads * kShape.head_dim * kHidden);
    fill(norms, kRows);
    for (float& norm : norms)
      norm = std::abs(norm) + 1;
  }
  [[nodiscard]] ReplayPass pass(std::size_t first, std::size_t last, std::size_t sinks) const {
    return {.queries = {.data = queries.data(),
                        .num_q_heads = kShape.num_q_heads,
                        .num_rows = kRows,
                        .head_stride = kRows * kShape.head_dim,
                        .row_stride = kShape.head_dim},
            .keys = keys.data(),
            .key_head_stride = kRows * kShape.head_dim,
            .key_row_stride = kShape.head_dim,
            .first_slot = first,
            .last_slot = last,
            .num_sink_tokens = sinks};
  }
  /// The definition, in double.
  [[nodiscard]] std::vector<double> expected(const ReplayPass& pass,
                                             const ReplayScoresOptions& options, std::size_t layer,
                                             std::size_t kv_head) {
    std::vector<std::size_t> seen;
    for (std::size_t slot = 0; slot < std::min(pass.num_sink_tokens, pass.first_slot); ++slot)
      seen.push_back(slot);
    const std::size_t sinks = seen.size();
    for (std::size_t slot = pass.first_slot; slot < pass.last_slot; ++slot)
      seen.push_back(slot);
    const std::size_t count = seen.size() - sinks;
    std::vector<double> scores(count, 0.0);
    for (std::size_t h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
      std::vector<double> column(count, 0.0);
      for (std::size_t r = 0; r < kRows; ++r) {
        const float* q = queries.data() + (h * kRows + r) * kShape.head_dim;
        const double scale = pass.queries.scale != 0.0F ? static_cast<double>(pass.queries.scale)
                                                        : 1 / std::sqrt(3.0);
        const auto logit = [&](const float* k) {
          double dot = 0;
          for (std::size_t c = 0; c < 3; ++c)
            dot += static_cast<double>(q[c]) * static_cast<double>(k[c]);
          const auto cap = static_cast<double>(pass.queries.soft_cap);
          return cap > 0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
        };
        std::vector<double> row;
        for (const std::size_t slot : seen) {
          const bool valid = cache.valid().empty() || cache.valid()[slot] != 0;
          row.push_back(valid ? std::exp(logit(cache.key(layer, kv_head, slot))) : 0);
        }
        for (std::size_t own = 0; own <= r; ++own)
          row.push_back(std::exp(logit(keys.data() + (kv_head * kRows + own) * 3)));
        double sum = pass.queries.sink_logits.empty()
                         ? 0
                         : std::exp(static_cast<double>(pass.queries.sink_logits[h]));
        for (const double x : row)
          sum += x;
        for (std::size_t i = 0; i < count; ++i) {
          const double a = row[sinks + i] / sum /
                           (pass.row_norms.empty() ? 1.0 : static_cast<double>(pass.row_norms[r]));
          column[i] =
              options.rows == GroupReduce::kMax ? std::max(column[i], a) : column[i] + a / kRows;
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        column[i] *= value_factor(options.value, layer, kv_head, h, pass.first_slot + i);
        scores[i] = options.heads == GroupReduce::kMax ? std::max(scores[i], column[i])
                                                       : scores[i] + column[i] / 2;
      }
    }
    return scores;
  }
  double value_factor(ValueFactor factor, std::size_t layer, std::size_t kv_head, std::size_t h,
                      std::size_t slot) {
    const float* v = cache.value(layer, kv_head, slot);
    double squares = 0;
    if (factor == ValueFactor::kNone)
      return 1;
    if (factor == ValueFactor::kNorm) {
      for (std::size_t c = 0; c < 3; ++c)
        squares += static_cast<double>(v[c]) * static_cast<double>(v[c]);
      return std::sqrt(squares);
    }
    for (std::size_t j = 0; j < kHidden; ++j) {
      double x = 0;
      for (std::size_t c = 0; c < 3; ++c)
        x += static_cast<double>(v[c]) * static_cast<double>(weight[(h * 3 + c) * kHidden + j]);
      squares += x * x;
    }
    return std::sqrt(squares);
  }
  void compare(const ReplayPass& pass, const ReplayScoresOptions& options) {
    ReplayScores scorer(kShape, options);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
        const std::vector<double> wanted = expected(pass, options, layer, head);
        const auto scores = scorer.score(pass, layer, head, cache.view().lane(layer, head));
        ASSERT_EQ(scores.size(), wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(scores[i]), wanted[i], 2e-6)
              << layer << ' ' << head << ' ' << i;
        }
      }
    }
    EXPECT_EQ(scorer.non_finite(), 0U);
  }
};

TEST(ReplayScores, LargestOfRowsAndHeads) {
  Replay replay;
  replay.compare(replay.pass(0, kLen, 0), {});
}

TEST(ReplayScores, AChunkSeesTheSinksBeforeIt) {
  Replay replay;
  replay.compare(replay.pass(12, 25, 4), {});
  replay.compare(replay.pass(2, 25, 4), {});  // two are before it
  replay.compare(replay.pass(0, 12, 4), {});  // none is
}

TEST(ReplayScores, MeansOfRowsAndHeads) {
  Replay replay;
  for (const GroupReduce rows : {GroupReduce::kMean, GroupReduce::kMax}) {
    replay.compare(replay.pass(0, kLen, 0), {.rows = rows, .heads = GroupReduce::kMean});
    replay.compare(replay.pass(0, kLen, 0),
                   {.rows = rows, .heads = GroupReduce::kMean, .value = ValueFactor::kNorm});
  }
}

TEST(ReplayScores, ProjectedValuesAndRowNorms) {
  Replay replay;
  const auto projection = std::make_shared<kvevict::OutputProjection>(kShape, kHidden);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer)
    projection->set_layer(layer, replay.weight.data());
  ReplayPass pass = replay.pass(5, kLen, 3);
  pass.row_norms = replay.norms;
  replay.compare(pass, {.value = ValueFactor::kProjected, .output_projection = projection});
}

TEST(ReplayScores, LogitsAsTheModelMakesThem) {
  Replay replay;
  const std::vector<float> sinks = {.5F, 1, -1, 2};
  ReplayPass pass = replay.pass(0, kLen, 0);
  pass.queries.scale = .8F;
  pass.queries.soft_cap = 1.5F;
  pass.queries.sink_logits = sinks;
  replay.compare(pass, {});
}

TEST(ReplayScores, SlotsWithoutATokenAreNotSeen) {
  Replay replay;
  replay.cache.valid().assign(kLen, 1);
  for (const std::size_t slot : {0U, 1U, 14U})
    replay.cache.valid()[slot] = 0;
  replay.compare(replay.pass(0, kLen, 0), {});
  replay.compare(replay.pass(10, kLen, 3), {});
  // What lies in them does not matter.
  ReplayScores scorer(kShape);
  std::fill_n(replay.cache.key(0, 0, 14), 3, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(scorer.score(replay.pass(0, kLen, 0), 0, 0, replay.cache.view().lane(0, 0))[14], 0.0F);
  EXPECT_EQ(scorer.non_finite(), 0U);
}

TEST(ReplayScores, NaNIsCountedAndHasNoAttention) {
  Replay replay;
  replay.cache.key(0, 0, 7)[1] = std::numeric_limits<float>::quiet_NaN();
  ReplayScores scorer(kShape);
  const auto scores = scorer.score(replay.pass(0, kLen, 0), 0, 0, replay.cache.view().lane(0, 0));
  EXPECT_EQ(scores[7], 0.0F);
  EXPECT_GT(scores[8], 0.0F);
  EXPECT_EQ(scorer.non_finite(), 2 * kRows);
}

TEST(ReplayScores, RefusesWhatDoesNotFit) {
  EXPECT_TRUE(refuses([] { ReplayScores(kShape, {.value = ValueFactor::kL1Norm}); },
                      {"ReplayScores", "value"}));
  EXPECT_TRUE(refuses([] { ReplayScores(kShape, {.value = ValueFactor::kProjected}); },
                      {"ReplayScores", "output_projection is missing"}));
  Replay replay;
  ReplayScores scorer(kShape);
  const auto view = replay.cache.view();
  const auto refused = [&](const ReplayPass& pass, const char* what) {
    return refuses([&] { (void)scorer.score(pass, 0, 0, view.lane(0, 0)); }, {what});
  };
  EXPECT_TRUE(refused(replay.pass(0, kLen + 1, 0), "last_slot = 31"));
  ReplayPass pass = replay.pass(0, kLen, 0);
  pass.keys = nullptr;
  EXPECT_TRUE(refused(pass, "keys"));
  pass = replay.pass(0, kLen, 0);
  pass.row_norms = std::span(replay.norms).first(3);
  EXPECT_TRUE(refused(pass, "row_norms.size() = 3"));
  pass = replay.pass(0, kLen, 0);
  pass.queries.num_q_heads = 2;
  EXPECT_TRUE(refused(pass, "num_q_heads = 2"));
}

}  // namespace
}  // namespace kvevict_test
