#include "engine/gguf_builder.hpp"
#include "engine/tiny_model.hpp"
#include "engine/transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using engine::KvCache;
using engine::Matrix;
using engine::Model;
using engine::Token;
using engine::Transformer;
using engine_test::Bytes;
using engine_test::error_of;
using engine_test::GgufBuilder;
using engine_test::TinyModel;

TinyModel tiny_model(unsigned seed = 1) {
  TinyModel model;
  model.fill(seed);
  return model;
}

std::vector<Token> some_tokens(std::size_t count) {
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>(i * 5 % 13));
  return tokens;
}

// Logits of all tokens, read in chunks of these sizes.
Matrix logits_in_chunks(Transformer& transformer, KvCache& cache, std::span<const Token> tokens,
                        const std::vector<std::size_t>& chunks) {
  Matrix result(static_cast<Eigen::Index>(tokens.size()),
                static_cast<Eigen::Index>(transformer.model().config().vocabulary_size));
  std::size_t done = 0;
  for (const std::size_t size : chunks) {
    result.middleRows(static_cast<Eigen::Index>(done), static_cast<Eigen::Index>(size)) =
        transformer.forward(tokens.subspan(done, size), cache, size);
    done += size;
  }
  return result;
}

void expect_close(const Matrix& actual, const std::vector<engine_test::Row>& expected,
                  double tolerance) {
  ASSERT_EQ(static_cast<std::size_t>(actual.rows()), expected.size());
  for (Eigen::Index r = 0; r < actual.rows(); ++r) {
    for (Eigen::Index c = 0; c < actual.cols(); ++c) {
      EXPECT_NEAR(static_cast<double>(actual(r, c)),
                  expected[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)], tolerance)
          << "token " << r << ", logit " << c;
    }
  }
}

float largest_difference(const Matrix& a, const Matrix& b) {
  return (a - b).cwiseAbs().maxCoeff();
}

const auto kCausal = [](std::size_t, std::size_t, std::size_t, std::size_t) { return true; };

// One layer in which everything can be followed by hand: the embedding of token t is e_t, V and
// W_O do nothing, the feed-forward block is zero, and so are the channels 0 and 1 of queries and
// keys, which are the only ones that RoPE turns.
TEST(Forward, OneLayerByHand) {
  TinyModel model;
  model.num_layers = 1;
  model.num_q_heads = 1;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  model.hidden_size = 4;
  model.feed_forward_size = 1;
  model.vocabulary_size = 4;
  model.rope_dim = 2;
  model.is_tied = true;
  std::vector<float> unit(16, 0.0F);
  for (std::size_t i = 0; i < 4; ++i)
    unit[5 * i] = 1.0F;
  model.weights["token_embd.weight"] = unit;
  // The norm of a unit vector in 4 dimensions multiplies it by 1 / sqrt(1/4 + 1e-5); undone here.
  model.weights["blk.0.attn_norm.weight"] = {0.5F, 0.5F, 0.5F, 0.5F};
  model.weights["output_norm.weight"] = {1.0F, 1.0F, 1.0F, 1.0F};
  // Token 1 asks in channel 2 and token 0 answers there with 2 ln 9, which sqrt(head_dim) halves:
  // token 1 attends to tokens 0 and 1 in the ratio 9 : 1.
  const float two_ln_nine = 2.0F * std::log(9.0F);
  model.weights["blk.0.attn_q.weight"] = std::vector<float>(16, 0.0F);
  model.weights["blk.0.attn_q.weight"][2 * 4 + 1] = 1.0F;
  model.weights["blk.0.attn_k.weight"] = std::vector<float>(16, 0.0F);
  model.weights["blk.0.attn_k.weight"][2 * 4 + 0] = two_ln_nine;
  model.weights["blk.0.attn_v.weight"] = unit;
  model.weights["blk.0.attn_output.weight"] = unit;
  model.weights["blk.0.ffn_gate.weight"] = std::vector<float>(4, 0.0F);
  model.weights["blk.0.ffn_up.weight"] = std::vector<float>(4, 0.0F);
  model.weights["blk.0.ffn_down.weight"] = std::vector<float>(4, 0.0F);
  model.fill(1);
  Transformer transformer = model.transformer();
  KvCache cache = transformer.make_cache();
  const std::vector<Token> tokens{0, 1};
  const Matrix logits = logits_in_chunks(transformer, cache, tokens, {2});
  // Token 0: residual e_0 + v_0 = 2 e_0, normed to 2 e_0.
  EXPECT_NEAR(logits(0, 0), 2.0F, 1e-3F);
  EXPECT_NEAR(logits(0, 1), 0.0F, 1e-3F);
  // Token 1: residual e_1 + 0.9 e_0 + 0.1 e_1, normed by sqrt((0.9^2 + 1.1^2) / 4).
  const float rms = std::sqrt((0.81F + 1.21F) / 4.0F);
  EXPECT_NEAR(logits(1, 0), 0.9F / rms, 1e-3F);
  EXPECT_NEAR(logits(1, 1), 1.1F / rms, 1e-3F);
  EXPECT_NEAR(logits(1, 2), 0.0F, 1e-3F);
}

TEST(Forward, LlamaIsAsThePlainReference) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  KvCache cache = transformer.make_cache();
  const std::vector<Token> tokens = some_tokens(20);
  expect_close(logits_in_chunks(transformer, cache, tokens, {20}), model.reference(tokens, kCausal),
               2e-5);
}

TEST(Forward, Qwen2WithBiasesAndTiedOutputIsAsThePlainReference) {
  TinyModel model;
  model.architecture = "qwen2";
  model.has_biases = true;
  model.is_tied = true;
  model.fill(2);
  Transformer transformer = model.transformer();
  KvCache cache = transformer.make_cache();
  const std::vector<Token> tokens = some_tokens(20);
  expect_close(logits_in_chunks(transformer, cache, tokens, {20}), model.reference(tokens, kCausal),
               5e-5);
}

TEST(Forward, OneChunkAndManyAreTheSame) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  const std::vector<Token> tokens = some_tokens(150);  // more than two blocks of queries
  KvCache whole_cache = transformer.make_cache();
  const Matrix whole = logits_in_chunks(transformer, whole_cache, tokens, {150});
  for (const std::vector<std::size_t>& chunks :
       {std::vector<std::size_t>(150, 1), {64, 64, 22}, {1, 149}, {100, 7, 43}}) {
    KvCache cache = transformer.make_cache();
    EXPECT_LT(largest_difference(logits_in_chunks(transformer, cache, tokens, chunks), whole),
              2e-5F);
    EXPECT_EQ(cache.next_position(), 150);
    EXPECT_EQ(cache.lane(1, 1).size(), 150U);
    EXPECT_EQ(cache.lane(1, 1).positions[149], 149);
  }
}

TEST(Forward, AnyNumberOfThreadsGivesTheSame) {
  const TinyModel model = tiny_model();
  const std::vector<Token> tokens = some_tokens(70);
  Transformer alone = model.transformer(1);
  KvCache cache = alone.make_cache();
  const Matrix expected = logits_in_chunks(alone, cache, tokens, {69, 1});
  for (const std::size_t num_threads : {0U, 2U, 3U, 5U}) {
    Transformer transformer = model.transformer(num_threads);
    KvCache other = transformer.make_cache();
    EXPECT_LT(largest_difference(logits_in_chunks(transformer, other, tokens, {69, 1}), expected),
              2e-5F);
  }
}

TEST(Forward, OnlyDistancesBetweenPositionsMatter) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  const std::vector<Token> tokens = some_tokens(30);
  KvCache cache = transformer.make_cache();
  const Matrix expected = logits_in_chunks(transformer, cache, tokens, {25, 5});
  for (const std::int32_t shift : {1, 1000, 100000}) {
    KvCache shifted = transformer.make_cache();
    shifted.set_next_position(shift);
    EXPECT_LT(largest_difference(logits_in_chunks(transformer, shifted, tokens, {25, 5}), expected),
              1e-5F);
    EXPECT_EQ(shifted.lane(0, 0).positions[29], shift + 29);
  }
}

TEST(Eviction, KeepingAllChangesNoBit) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  const std::vector<Token> tokens = some_tokens(40);
  KvCache cache = transformer.make_cache();
  logits_in_chunks(transformer, cache, std::span(tokens).first(30), {30});
  KvCache kept = cache;
  std::vector<std::uint32_t> all(30);
  std::iota(all.begin(), all.end(), 0U);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head)
      kept.keep(layer, kv_head, all);
  }
  kept.shrink();
  const std::span<const Token> rest = std::span(tokens).last(10);
  EXPECT_EQ(logits_in_chunks(transformer, kept, rest, {1, 9}),
            logits_in_chunks(transformer, cache, rest, {1, 9}));
}

TEST(Eviction, DroppingRowsIsMaskingThem) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  const std::vector<Token> tokens = some_tokens(30);
  // After 20 tokens each lane keeps its own: every second, third, fourth and fifth token.
  const auto is_kept = [](std::size_t layer, std::size_t kv_head, std::size_t token) {
    return token % (2 + 2 * layer + kv_head) == 0;
  };
  KvCache cache = transformer.make_cache();
  logits_in_chunks(transformer, cache, std::span(tokens).first(20), {20});
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
      std::vector<std::uint32_t> slots;
      for (std::uint32_t token = 0; token < 20; ++token) {
        if (is_kept(layer, kv_head, token))
          slots.push_back(token);
      }
      cache.keep(layer, kv_head, slots);
    }
  }
  cache.shrink();
  EXPECT_EQ(cache.lane(0, 0).size(), 10U);
  EXPECT_EQ(cache.lane(1, 1).size(), 4U);
  EXPECT_EQ(cache.lane(1, 1).positions[3], 15);
  const Matrix actual =
      logits_in_chunks(transformer, cache, std::span(tokens).last(10), {1, 6, 1, 2});
  std::vector<engine_test::Row> expected = model.reference(
      tokens, [&](std::size_t layer, std::size_t kv_head, std::size_t query, std::size_t key) {
        return query < 20 || key >= 20 || is_kept(layer, kv_head, key);
      });
  expected.erase(expected.begin(), expected.begin() + 20);
  expect_close(actual, expected, 2e-5);
}

TEST(Eviction, ClosedGapsAreThePositionsOfAShorterText) {
  TinyModel model = tiny_model();
  model.num_layers = 1;  // deeper ones still know what was dropped
  Transformer transformer = model.transformer();
  const std::vector<Token> tokens = some_tokens(20);
  KvCache cache = transformer.make_cache();
  logits_in_chunks(transformer, cache, tokens, {20});
  const std::vector<std::uint32_t> slots{0, 1, 15, 16, 17, 18, 19};
  for (std::size_t kv_head = 0; kv_head < 2; ++kv_head)
    cache.keep(0, kv_head, slots);
  transformer.close_position_gaps(cache);
  EXPECT_EQ(cache.next_position(), 7);

  std::vector<Token> kept;
  for (const std::uint32_t slot : slots)
    kept.push_back(tokens[slot]);
  KvCache shorter = transformer.make_cache();
  logits_in_chunks(transformer, shorter, kept, {7});
  for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(cache.lane(0, kv_head).positions[i], static_cast<std::int32_t>(i));
    }
    for (std::size_t i = 0; i < 7 * model.head_dim; ++i) {
      EXPECT_NEAR(cache.lane(0, kv_head).keys[i], shorter.lane(0, kv_head).keys[i], 1e-5F);
    }
  }
}

TEST(Eviction, ClosedGapsOfRaggedLanesMeetAtTheNewestToken) {
  Transformer transformer = tiny_model().transformer();
  KvCache cache = transformer.make_cache();
  logits_in_chunks(transformer, cache, some_tokens(10), {10});
  cache.keep(0, 0, std::vector<std::uint32_t>{0, 9});
  cache.keep(0, 1, std::vector<std::uint32_t>{2, 5, 8, 9});
  cache.keep(1, 0, std::vector<std::uint32_t>{});
  cache.keep(1, 1, std::vector<std::uint32_t>{4});
  transformer.close_position_gaps(cache);
  EXPECT_EQ(cache.next_position(), 4);
  EXPECT_EQ(cache.lane(0, 0).positions[0], 2);
  EXPECT_EQ(cache.lane(0, 0).positions[1], 3);
  EXPECT_EQ(cache.lane(0, 1).positions[0], 0);
  EXPECT_EQ(cache.lane(1, 1).positions[0], 3);
  const Token next = 1;
  EXPECT_TRUE(transformer.forward({&next, 1}, cache).allFinite());
}

// Keeps what it is given and what it asked for.
class Recorder : public engine::StepObserver {
 public:
  Recorder(std::size_t attention_rows, std::size_t query_rows, std::size_t hidden_rows)
      : attention_rows_(attention_rows), query_rows_(query_rows), hidden_rows_(hidden_rows) {}

  [[nodiscard]] std::size_t wants_attention_rows(std::size_t layer) const override {
    return layer == 1 ? attention_rows_ : 0;
  }
  [[nodiscard]] std::size_t wants_queries(std::size_t layer) const override {
    return layer == 1 ? query_rows_ : 0;
  }
  [[nodiscard]] std::size_t wants_hidden(std::size_t layer) const override {
    return layer == 1 ? hidden_rows_ : 0;
  }
  void on_attention(std::size_t layer, const engine::HeadRows& rows) override {
    calls += "a" + std::to_string(layer);
    num_attention_rows = rows.num_rows;
    for (std::size_t head = 0; head < rows.num_q_heads; ++head) {
      for (std::size_t r = 0; r < rows.num_rows; ++r) {
        attention.emplace_back(rows.row(head, r), rows.row(head, r) + rows.row_stride);
        log_sums.push_back(rows.log_sums[head * rows.num_rows + r]);
      }
    }
  }
  void on_queries(std::size_t layer, const engine::HeadRows& rows) override {
    calls += "q" + std::to_string(layer);
    for (std::size_t head = 0; head < rows.num_q_heads; ++head) {
      for (std::size_t r = 0; r < rows.num_rows; ++r) {
        queries.emplace_back(rows.row(head, r), rows.row(head, r) + 6);
      }
    }
  }
  void on_hidden(std::size_t layer, const engine::HiddenRows& rows) override {
    calls += "h" + std::to_string(layer);
    hidden.assign(rows.data, rows.data + rows.num_rows * rows.hidden_size);
  }

  std::string calls;
  std::size_t num_attention_rows = 0;
  std::vector<std::vector<float>> attention;  // [num_q_heads * rows]
  std::vector<float> log_sums;                // the same
  std::vector<std::vector<float>> queries;
  std::vector<float> hidden;

 private:
  std::size_t attention_rows_;
  std::size_t query_rows_;
  std::size_t hidden_rows_;
};

TEST(Observer, IsCalledForWhatItWantsOnly) {
  Transformer transformer = tiny_model().transformer();
  const std::vector<Token> tokens = some_tokens(5);
  const auto calls = [&](Recorder recorder) {
    KvCache cache = transformer.make_cache();
    transformer.forward(tokens, cache, 1, &recorder);
    return recorder.calls;
  };
  EXPECT_EQ(calls(Recorder(0, 0, 0)), "");
  EXPECT_EQ(calls(Recorder(1, 0, 0)), "a1");
  EXPECT_EQ(calls(Recorder(0, 1, 0)), "q1");
  EXPECT_EQ(calls(Recorder(0, 0, 1)), "h1");
  EXPECT_EQ(calls(Recorder(9, 9, 9)), "a1q1h1");
}

// Rows and queries are handed out apart; each has to be what the other implies.
TEST(Observer, AttentionRowsAreTheSoftmaxOfTheQueriesOverRaggedLanes) {
  Transformer transformer = tiny_model().transformer();
  const std::vector<Token> tokens = some_tokens(110);
  KvCache cache = transformer.make_cache();
  transformer.forward(std::span(tokens).first(20), cache);
  cache.keep(1, 0, std::vector<std::uint32_t>{0, 3, 7});
  cache.keep(1, 1, std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Recorder recorder(70, 70, 0);  // more than one block of queries
  transformer.forward(std::span(tokens).last(90), cache, 1, &recorder);
  ASSERT_EQ(recorder.num_attention_rows, 70U);
  ASSERT_EQ(recorder.attention.size(), 4U * 70U);
  ASSERT_EQ(recorder.queries.size(), 4U * 70U);
  for (std::size_t head = 0; head < 4; ++head) {
    const engine::KvLane& lane = cache.lane(1, head / 2);
    EXPECT_EQ(lane.size(), head < 2 ? 93U : 101U);
    for (std::size_t r = 0; r < 70; ++r) {
      const std::size_t visible = lane.size() - (69 - r);
      const std::vector<float>& query = recorder.queries[head * 70 + r];
      const std::vector<float>& row = recorder.attention[head * 70 + r];
      std::vector<double> expected;
      double sum = 0.0;
      for (std::size_t slot = 0; slot < visible; ++slot) {
        double dot = 0.0;
        for (std::size_t c = 0; c < 6; ++c) {
          dot += static_cast<double>(query[c]) * static_cast<double>(lane.keys[slot * 6 + c]);
        }
        expected.push_back(std::exp(dot / std::sqrt(6.0)));
        sum += expected.back();
      }
      for (std::size_t slot = 0; slot < row.size(); ++slot) {
        const double value = slot < visible ? expected[slot] / sum : 0.0;
        ASSERT_NEAR(static_cast<double>(row[slot]), value, 1e-6) << head << " " << r << " " << slot;
      }
      ASSERT_NEAR(static_cast<double>(recorder.log_sums[head * 70 + r]), std::log(sum), 1e-5);
    }
  }
}

TEST(Observer, HiddenRowsAreTheNewestOfTheResidualStream) {
  const TinyModel model = tiny_model();
  Transformer transformer = model.transformer();
  KvCache cache = transformer.make_cache();
  Recorder recorder(0, 0, 3);
  const Matrix logits = transformer.forward(some_tokens(8), cache, 3, &recorder);
  ASSERT_EQ(recorder.hidden.size(), 3U * 20U);
  // Layer 1 is the last: its residual stream, normed and projected, is the logits.
  for (std::size_t r = 0; r < 3; ++r) {
    const auto first = recorder.hidden.begin() + static_cast<std::ptrdiff_t>(20 * r);
    const engine_test::Row expected =
        model.product("output.weight", model.norm("output_norm.weight", {first, first + 20}));
    for (std::size_t c = 0; c < expected.size(); ++c) {
      EXPECT_NEAR(
          static_cast<double>(logits(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(c))),
          expected[c], 1e-5);
    }
  }
}

TEST(KvCache, GrowsAndGivesMemoryBack) {
  KvCache cache(1, 2, 4);
  EXPECT_EQ(cache.bytes_held(), 0U);
  const std::size_t row_bytes = 2 * 4 * sizeof(float) + sizeof(std::int32_t);
  for (int i = 0; i < 1000; ++i)
    cache.append(0, 0, 1);
  EXPECT_EQ(cache.lane(0, 0).size(), 1000U);
  EXPECT_GE(cache.lane(0, 0).capacity(), 1000U);
  EXPECT_LE(cache.lane(0, 0).capacity(), 1065U);
  EXPECT_EQ(cache.bytes_held(), cache.lane(0, 0).capacity() * row_bytes);
  const std::size_t before = cache.bytes_held();
  cache.truncate(0, 0, 100);
  EXPECT_EQ(cache.bytes_held(), before);
  cache.reset_peak();
  cache.shrink();
  // 100 rows and 100 / 16 + 2 spare ones.
  EXPECT_EQ(cache.lane(0, 0).capacity(), 108U);
  EXPECT_EQ(cache.lane(0, 0).keys.capacity(), 432U);
  EXPECT_EQ(cache.bytes_held(), 108 * row_bytes);
  EXPECT_EQ(cache.peak_bytes(), before + 108 * row_bytes);
  cache.reset_peak();
  EXPECT_EQ(cache.peak_bytes(), 108 * row_bytes);
  // Nine more do not fit; the lane moves to where they and its headroom do.
  cache.append(0, 0, 9);
  EXPECT_EQ(cache.lane(0, 0).capacity(), 109U + 109 / 16 + 2);
}

TEST(KvCache, GrowingMovesFewRows) {
  KvCache cache(1, 1, 4);
  std::size_t moves = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::size_t capacity = cache.lane(0, 0).capacity();
    cache.append(0, 0, 1);
    moves += cache.lane(0, 0).capacity() != capacity ? 1 : 0;
  }
  EXPECT_LT(moves, 100U);
}

TEST(KvCache, SmallSlackStays) {
  KvCache cache(1, 1, 4);
  cache.append(0, 0, 100);
  const std::size_t capacity = cache.lane(0, 0).capacity();
  cache.truncate(0, 0, 95);
  cache.shrink();
  EXPECT_EQ(cache.lane(0, 0).capacity(), capacity);
}

TEST(KvCache, KeepMovesRowsAndPositions) {
  KvCache cache(1, 1, 2);
  cache.append(0, 0, 5);
  engine::KvLane& lane = cache.lane(0, 0);
  for (std::size_t slot = 0; slot < 5; ++slot) {
    lane.positions[slot] = static_cast<std::int32_t>(10 + slot);
    for (std::size_t c = 0; c < 2; ++c) {
      lane.keys[2 * slot + c] = static_cast<float>(2 * slot + c);
      lane.values[2 * slot + c] = -static_cast<float>(2 * slot + c);
    }
  }
  cache.keep(0, 0, std::vector<std::uint32_t>{0, 3, 4});
  EXPECT_EQ(lane.size(), 3U);
  EXPECT_EQ(lane.positions[1], 13);
  EXPECT_EQ(lane.keys[2], 6.0F);
  EXPECT_EQ(lane.values[5], -9.0F);
  EXPECT_EQ(cache.longest_lane(), 3U);
  EXPECT_THROW(cache.keep(0, 0, std::vector<std::uint32_t>{3}), std::invalid_argument);
  EXPECT_THROW(cache.keep(0, 0, std::vector<std::uint32_t>{1, 1}), std::invalid_argument);
  EXPECT_THROW(cache.truncate(0, 0, 4), std::invalid_argument);
  EXPECT_EQ(lane.size(), 3U);
}

TEST(KvCache, ACopyIsAFork) {
  Transformer transformer = tiny_model().transformer();
  const std::vector<Token> tokens = some_tokens(12);
  KvCache cache = transformer.make_cache();
  transformer.forward(std::span(tokens).first(10), cache);
  KvCache fork = cache;
  EXPECT_EQ(fork.bytes_held(), cache.bytes_held());
  const Matrix expected = transformer.forward(std::span(tokens).subspan(10, 1), cache);
  transformer.forward(std::span(tokens).subspan(11, 1), cache);
  EXPECT_EQ(fork.longest_lane(), 10U);
  EXPECT_EQ(Matrix(transformer.forward(std::span(tokens).subspan(10, 1), fork)), expected);
}

TEST(Forward, RefusesWhatMakesNoSense) {
  Transformer transformer = tiny_model().transformer();
  KvCache cache = transformer.make_cache();
  const std::vector<Token> tokens{0, 13};
  EXPECT_THROW(transformer.forward({}, cache, 0), std::invalid_argument);
  EXPECT_THROW(transformer.forward(tokens, cache), std::invalid_argument);
  EXPECT_THROW(transformer.forward(std::vector<Token>{-1}, cache), std::invalid_argument);
  EXPECT_THROW(transformer.forward(std::vector<Token>{1}, cache, 2), std::invalid_argument);
  EXPECT_EQ(cache.longest_lane(), 0U);
  EXPECT_EQ(cache.next_position(), 0);
  EXPECT_EQ(transformer.forward(std::vector<Token>{1}, cache, 0).rows(), 0);
}

TEST(Model, QuantisedWeightsAreTheFloatsTheyStandFor) {
  TinyModel model;
  model.num_q_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 16;
  model.rope_dim = 16;
  model.hidden_size = 32;
  model.feed_forward_size = 64;
  model.fill(3);
  GgufBuilder quantised = model.metadata();
  for (auto& [name, values] : model.weights) {
    if (model.dims[name].size() == 1) {
      quantised.tensor(name, model.dims[name], GgufBuilder::kF32, engine_test::floats(values));
      continue;
    }
    Bytes data;  // Q8_0 blocks with the scale 1/128
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 32 == 0)
        data.put(std::uint16_t{0x2000});
      const float quant = std::clamp(std::round(values[i] * 128.0F), -127.0F, 127.0F);
      data.put(static_cast<std::int8_t>(quant));
      values[i] = quant / 128.0F;
    }
    quantised.tensor(name, model.dims[name], 8, data);
  }
  Transformer plain = model.transformer();
  Transformer compact{Model(quantised.file())};
  KvCache plain_cache = plain.make_cache();
  KvCache compact_cache = compact.make_cache();
  const std::vector<Token> tokens = some_tokens(10);
  EXPECT_EQ(logits_in_chunks(compact, compact_cache, tokens, {9, 1}),
            logits_in_chunks(plain, plain_cache, tokens, {9, 1}));
  EXPECT_EQ(compact.model().layer(1).output.dequantise(),
            plain.model().layer(1).output.dequantise());
}

TEST(Model, RopeFrequenciesFollowBaseFactorsAndScaling) {
  TinyModel model = tiny_model();
  const auto frequencies = [](const GgufBuilder& builder) {
    return Model(builder.file()).config().rope_frequencies;
  };
  const std::vector<double> plain = frequencies(model.builder());
  ASSERT_EQ(plain.size(), 2U);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_DOUBLE_EQ(plain[1], 0.1);
  GgufBuilder linear = model.builder();
  linear.text("llama.rope.scaling.type", "linear").real("llama.rope.scaling.factor", 4.0F);
  EXPECT_DOUBLE_EQ(frequencies(linear)[1], 0.025);
  GgufBuilder factors = model.builder();
  factors.tensor("rope_freqs.weight", {2}, GgufBuilder::kF32, engine_test::floats({1.0F, 8.0F}));
  EXPECT_DOUBLE_EQ(frequencies(factors)[0], 1.0);
  EXPECT_DOUBLE_EQ(frequencies(factors)[1], 0.0125);
}

TEST(BadModel, SaysWhatIsWrong) {
  const auto error = [](const GgufBuilder& builder) {
    return error_of([&] { const Model model(builder.file()); });
  };
  TinyModel model = tiny_model();
  EXPECT_EQ(error(model.builder()), "no error");
  EXPECT_EQ(error(GgufBuilder()), "test.gguf: metadata key general.architecture is missing");

  TinyModel other = model;
  other.architecture = "mamba";
  EXPECT_EQ(error(other.builder()),
            "test.gguf: architecture mamba is not supported (llama and qwen2 are)");
  other = model;
  other.weights.erase("blk.1.ffn_up.weight");
  EXPECT_EQ(error(other.builder()), "test.gguf: tensor blk.1.ffn_up.weight is missing");
  other = model;
  other.num_layers = 2000000000;
  EXPECT_EQ(error(other.builder()), "test.gguf: tensor blk.2.attn_norm.weight is missing");
  other = model;
  other.hidden_size = 21;
  EXPECT_EQ(error(other.builder()),
            "test.gguf: tensor token_embd.weight is [13, 20], expected [13, 21]");
  other = model;
  other.num_kv_heads = 3;
  EXPECT_EQ(error(other.builder()),
            "test.gguf: the number of query heads is not a multiple of the number of KV heads");
  other = model;
  other.rope_dim = 8;
  EXPECT_EQ(error(other.builder()), "test.gguf: RoPE of 8 channels does not fit heads of 6");
  other = model;
  other.architecture = "qwen2";
  EXPECT_EQ(error(other.builder()), "test.gguf: tensor blk.0.attn_q.bias is missing");
  GgufBuilder yarn = model.builder();
  yarn.text("llama.rope.scaling.type", "yarn");
  EXPECT_EQ(error(yarn), "test.gguf: RoPE scaling yarn is not supported (linear and factors are)");
  other = model;
  other.rope_base = 0.0F;
  EXPECT_EQ(error(other.builder()), "test.gguf: RoPE's base or scaling is not positive");
  GgufBuilder tokens = model.builder();
  tokens.texts("tokenizer.ggml.tokens", std::vector<std::string>(14, "x"));
  EXPECT_EQ(error(tokens), "test.gguf: there are 14 tokens but only 13 embeddings");
  GgufBuilder values = model.builder();
  values.number("llama.attention.value_length", 8);
  EXPECT_EQ(error(values), "test.gguf: keys and values of different sizes are not supported");
}

}  // namespace
