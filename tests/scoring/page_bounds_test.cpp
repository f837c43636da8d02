#include "kvevict/scoring/page_bounds.hpp"

#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::MaskScope;
using kvevict::PageWeight;
using kvevict::QueryRows;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2};
constexpr CacheShape kGroups{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 3};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Weights = std::vector<std::vector<double>>;  // [tokens of the step][decoded pages]

/// The bounds, and the sequence and cache that they look at.
struct Session {
  kvevict::Sequence sequence;
  WindowCache cache;
  kvevict::PageBounds bounds;
  std::size_t non_finite = 0;

  explicit Session(const CacheShape& shape, std::size_t page_size = 2)
      : sequence("test", shape, MaskScope::kLayer), cache(shape, 64), bounds(shape, {page_size}) {}

  void prompt(std::size_t count) {
    sequence.begin(count, {});
    append(count);
    sequence.end_prompt();
  }
  void append(std::size_t count) {
    sequence.append(count);
    cache.append(count);
  }
  /// Appends tokens of one head, whose keys these are.
  void keys(const std::vector<std::array<float, 2>>& keys) {
    append(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::copy(keys[i].begin(), keys[i].end(), cache.key(0, 0, cache.seq_len() - keys.size() + i));
    }
  }
  void evict(const std::string& lane) {
    const CacheShape& shape = sequence.shape();
    const kvevict::KeepMask mask = mask_of(MaskScope::kLayer, shape.num_layers, shape.num_kv_heads,
                                           std::vector<std::string>(shape.num_layers, lane));
    cache.evict(mask);
    sequence.apply(mask);
    std::get<0>(bounds.state()).apply(mask);
  }
  void truncate(std::size_t length) {
    sequence.truncate(length);
    cache.truncate(sequence.seq_len(0));
    std::get<0>(bounds.state()).truncate(sequence);
  }
  Weights observe(const QueryRows& rows, std::size_t layer = 0) {
    Weights weights;
    const auto view = cache.view();
    non_finite += bounds.observe_query_rows(
        layer, rows, sequence, kvevict::ViewRef(view), kvevict::kernels::best(),
        [&](std::size_t position, std::span<const PageWeight> pages) {
          EXPECT_EQ(position, sequence.length() - rows.num_rows + weights.size());
          weights.emplace_back();
          for (const PageWeight& page : pages)
            weights.back().push_back(page.weight);
        });
    return weights;
  }
  /// Of one token, whose logits are not scaled.
  std::vector<double> observe(std::array<float, 2> query) { return observe(unscaled(query))[0]; }
  static QueryRows unscaled(const std::array<float, 2>& query) {
    return {.data = query.data(),
            .num_q_heads = 1,
            .num_rows = 1,
            .head_stride = 2,
            .row_stride = 2,
            .scale = 1};
  }
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

// Query (1, -2); the keys (0, 2) and (3, -1) have channels in [0, 3] and [-1, 2]: the bound is
// max(0, 3) + max(2, -4) = 5. The page of one key, (1, 1), has its dot product, 1 - 2 = -1.
TEST(PageBounds, TheBoundOfThePapersAlgorithm) {
  Session session(kOneHead);
  session.keys({{0, 2}, {3, -1}, {1, 1}});
  const std::vector<double> weights = session.observe({1, -2});
  expect_near(weights, {1 / (1 + std::exp(-6.0)), 1 / (1 + std::exp(6.0))});
}

// Logits ln 2 (of -1 and ln 2), ln 3 in the prompt, which is three tokens long, and ln 4 (of ln 4
// and 0), ln 1: what the prompt gets is in the sum, 2 + 3 + 4 + 1. A page weighs the same whatever
// number of tokens it holds.
TEST(PageBounds, PromptPagesTakeTheirShare) {
  Session session(kOneHead);
  session.sequence.begin(3, {});
  session.keys({{-1, 0}, {std::log(2.0F), 0}, {std::log(3.0F), 0}});
  session.sequence.end_prompt();
  session.keys({{std::log(4.0F), 0}, {0, 0}, {0, 0}});
  expect_near(session.observe({1, 0}), {.4, .1});
}

// The default scale is 1 / sqrt(2): logits 4 / sqrt(2) and 0. A cap of 2 makes 2 tanh(sqrt(2)) of
// the first, a sink of ln 3 adds 3 to the denominator.
TEST(PageBounds, LogitsAreTheEngines) {
  Session session(kOneHead, 1);
  session.keys({{4, 0}, {0, 0}});
  const std::array<float, 2> query{1, 0};
  const std::array<float, 1> sink{std::log(3.0F)};
  QueryRows rows = Session::unscaled(query);
  rows.scale = 0;
  const double first = std::exp(4 / std::sqrt(2.0));
  expect_near(session.observe(rows)[0], {first / (first + 1), 1 / (first + 1)});
  rows.soft_cap = 2;
  rows.sink_logits = sink;
  const double capped = std::exp(2 * std::tanh(std::sqrt(2.0)));
  expect_near(session.observe(rows)[0], {capped / (capped + 4), 1 / (capped + 4)});
}

// Logits 1 (slot 1 alone: slot 0 is padding), 2 (slot 3: NaN says nothing), 0 and none: {6, 7} is
// all padding. NaN in every key of a channel leaves nothing to bound: counted, no weight.
TEST(PageBounds, PaddingAndNaN) {
  Session session(kOneHead);
  session.keys({{9, 0}, {1, 0}, {kNaN, 1}, {2, 1}, {0, 0}, {0, 0}, {9, 0}, {9, 0}});
  session.cache.valid() = {0, 1, 1, 1, 1, 1, 0, 0};
  const double sum = std::exp(1.0) + std::exp(2.0) + 1;
  expect_near(session.observe({1, 0}), {std::exp(1.0) / sum, std::exp(2.0) / sum, 1 / sum, 0});
  EXPECT_EQ(session.non_finite, 0U);
  Session nan(kOneHead);
  nan.keys({{kNaN, 1}, {kNaN, 2}, {5, 5}});
  expect_near(nan.observe({1, 0}), {0, 1});
  EXPECT_EQ(nan.non_finite, 1U);
  expect_near(nan.observe({kNaN, 0}), {0, 0});
  EXPECT_EQ(nan.non_finite, 3U);
}

// An engine may turn what stays to new positions when tokens go: it is read again.
TEST(PageBounds, KeysAreReadAnewWhenTokensGo) {
  Session session(kOneHead);
  session.keys({{1, 0}, {1, 0}, {2, 0}, {2, 0}, {3, 0}});
  session.observe({1, 0});
  session.evict("11001");
  session.cache.key(0, 0, 0)[0] = -1;
  session.cache.key(0, 0, 1)[0] = -2;
  session.keys({{4, 0}});
  const double sum = std::exp(-1.0) + std::exp(4.0);
  expect_near(session.observe({1, 0}), {std::exp(-1.0) / sum, std::exp(4.0) / sum});
}

/// The formula in double, from the keys alone: weights of the decoded pages for row r.
std::vector<double> reference(Session& session, const QueryRows& rows, std::size_t r,
                              std::size_t layer, std::size_t page_size) {
  const CacheShape& shape = session.sequence.shape();
  const std::size_t visible = session.cache.seq_len(layer * 2) - (rows.num_rows - 1 - r);
  struct Page {
    bool is_decoded;
    std::size_t number;
    std::vector<std::size_t> slots;
  };
  std::vector<Page> pages;
  for (std::size_t slot = 0; slot < visible; ++slot) {
    const auto position = static_cast<std::size_t>(session.sequence.position(layer, slot));
    const std::size_t prompt_len = session.sequence.prompt_end();
    const bool is_decoded = position >= prompt_len;
    const std::size_t number = (is_decoded ? position - prompt_len : position) / page_size;
    if (pages.empty() || pages.back().is_decoded != is_decoded || pages.back().number != number)
      pages.push_back({is_decoded, number, {}});
    pages.back().slots.push_back(slot);
  }
  std::vector<double> mean(pages.size());
  for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
    const float* query = rows.row(head, r);
    std::vector<double> powers;
    double sum = 0.0;
    for (const Page& page : pages) {
      double bound = 0.0;
      for (std::size_t c = 0; c < shape.head_dim; ++c) {
        double best = -1e9;
        for (const std::size_t slot : page.slots) {
          best =
              std::max(best, static_cast<double>(query[c]) *
                                 static_cast<double>(session.cache.key(layer, head / 2, slot)[c]));
        }
        bound += best;
      }
      powers.push_back(std::exp(bound / std::sqrt(static_cast<double>(shape.head_dim))));
      sum += powers.back();
    }
    for (std::size_t page = 0; page < pages.size(); ++page)
      mean[page] += powers[page] / sum / static_cast<double>(shape.num_q_heads);
  }
  std::vector<double> decoded;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    if (pages[page].is_decoded)
      decoded.push_back(mean[page]);
  }
  return decoded;
}

// What is kept over steps never shows: layers, groups, drafts, drafts that are taken back (into a
// page, to its edge, over several) and evictions, whole pages and parts.
TEST(PageBounds, AgreesWithItsFormulaThroughTheLifeOfACache) {
  constexpr std::size_t kPage = 4;
  Random random(29);
  Session session(kGroups, kPage);
  session.cache.fill(random);
  session.prompt(6);
  const auto step = [&](std::size_t count) {
    session.append(count);
    const WindowQueries queries(kGroups, count, random);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      // What follows in the cache is garbage of before, so each step brings new keys.
      for (std::size_t head = 0; head < 2; ++head) {
        const std::size_t len = session.cache.seq_len();
        for (std::size_t slot = len - count; slot < len; ++slot) {
          for (std::size_t c = 0; c < 3; ++c)
            session.cache.key(layer, head, slot)[c] = random.eighths();
        }
      }
      const QueryRows rows = queries.rows(layer, 0, count);
      const Weights found = session.observe(rows, layer);
      ASSERT_EQ(found.size(), count);
      for (std::size_t r = 0; r < count; ++r)
        expect_near(found[r], reference(session, rows, r, layer, kPage));
    }
  };
  for (const std::size_t count : {1, 3, 1, 4, 2})
    step(count);
  session.truncate(16);  // inside {14, .., 17}
  step(1);
  session.truncate(14);  // the edge
  step(6);
  session.truncate(11);  // three pages back
  step(1);
  step(5);
  session.evict("11111100001111001");  // slots 6 .. 9 are a page, 14 and 15 half of one
  step(1);
  step(3);
  session.truncate(15);  // in the page that lost tokens
  step(2);
  step(1);
  EXPECT_EQ(session.non_finite, 0U);
}

}  // namespace
}  // namespace kvevict_test
