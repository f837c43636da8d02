#include "kvevict/views/merge_values.hpp"

#include "kvevict/views/ragged_view.hpp"
#include "support/errors.hpp"
#include "support/layouts.hpp"
#include "support/masks.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::LayoutCache;
using kvevict_test::mask_of;
using kvevict_test::Part;
using kvevict_test::refuses;

constexpr CacheShape kPlain{
    .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 2, .value_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Values of one lane after a merge.
std::vector<float> merged(std::vector<float> keys, std::vector<float> values,
                          const std::string& mask, const MergeOptions& options = {},
                          const std::vector<std::uint8_t>& valid = {}) {
  MutableLane lane = views::RaggedView::dense_lane(kPlain, values.size(), keys.data(),
                                                   values.data(), ElementType::kF32);
  lane.valid = valid;
  ValueMerge(options).run(views::RaggedView(kPlain, {&lane, 1}), mask_of(mask));
  return values;
}

// Slot 2 goes. Its key has the cosines .6 and .8 with those of slots 0 and 1, whatever their
// lengths, so it joins slot 1 with the weight .8 * 3 / (3 + 1) = .6: (1 + .6 * 3) / 1.6 = 1.75.
TEST(ValueMerge, AValueJoinsTheNearestKeptKey) {
  const std::vector<float> values = merged({1, 0, 0, 5, 3, 4}, {2, 1, 3}, "110");
  EXPECT_EQ(values[0], 2.0F);
  EXPECT_NEAR(values[1], 1.75F, 1e-6);
  EXPECT_EQ(values[2], 3.0F);  // left as it is, to be evicted
}

// Two of them: weights .6 and 1 * 1 / (1 + 1); (1 + 1.8 + .5) / 2.1.
TEST(ValueMerge, SeveralShareATarget) {
  EXPECT_NEAR(merged({1, 0, 0, 5, 3, 4, 0, 1}, {2, 1, 3, 1}, "1100")[1], 3.3F / 2.1F, 1e-6);
}

TEST(ValueMerge, WhatIsTooDifferentIsLost) {
  EXPECT_EQ(merged({1, 0, 0, 5, 3, 4}, {2, 1, 3}, "110", {.similarity_threshold = .81F})[1], 1.0F);
  // Opposite keys: the cosine is -1 and the weight 0, even where the threshold lets it in.
  EXPECT_EQ(merged({1, 0, -1, 0}, {2, 3}, "10", {.similarity_threshold = -1})[0], 2.0F);
}

// Cosines 1, .8, .6 with the one kept key. Half of them: the quantile is .8, the two above take
// part; a third: .8 + .333 * .2 = .8667, the first alone.
TEST(ValueMerge, AShareOfThemIsFolded) {
  const auto count = [](double fraction, float threshold) {
    std::vector<float> keys = {1, 0, 1, 0, 4, 3, 3, 4};
    std::vector<float> values = {1, 1, 1, 1};
    const MutableLane lane =
        views::RaggedView::dense_lane(kPlain, 4, keys.data(), values.data(), ElementType::kF32);
    ValueMerge merge({.similarity_threshold = threshold, .merge_fraction = fraction});
    return merge.run(views::RaggedView(kPlain, {&lane, 1}), mask_of("1000"));
  };
  EXPECT_EQ(count(1.0, 0), 3U);
  EXPECT_EQ(count(.5, 0), 2U);
  EXPECT_EQ(count(.3, 0), 1U);
  EXPECT_EQ(count(.5, .9F), 1U);  // the quantile is -infinity: the threshold alone decides
  EXPECT_EQ(count(1.0, .7F), 2U);
}

// Equal cosines: the lower slot.
TEST(ValueMerge, OfEqualTargetsTheFirst) {
  const std::vector<float> values = merged({0, 1, 0, 2, 0, 3}, {1, 1, 3}, "110");
  EXPECT_NEAR(values[0], (1 + .75 * 3) / 1.75, 1e-6);
  EXPECT_EQ(values[1], 1.0F);
}

TEST(ValueMerge, WhatIsNotFiniteStaysOut) {
  EXPECT_EQ(merged({1, 0, kNaN, 0}, {2, 3}, "10")[0], 2.0F);
  EXPECT_EQ(merged({1, 0, 1, 0}, {2, kNaN}, "10")[0], 2.0F);
  EXPECT_EQ(merged({kNaN, 0, 1, 0}, {2, 3}, "10")[0], 2.0F);
  EXPECT_EQ(merged({1, 0, 0, 0}, {2, 3}, "10")[0], 2.0F);  // a key without a direction: cosine 0
}

TEST(ValueMerge, PaddingHasNoValue) {
  EXPECT_EQ(merged({1, 0, 1, 0}, {9, 2}, "01", {}, {0, 1})[1], 2.0F);
}

TEST(ValueMerge, NothingToFold) {
  EXPECT_EQ(merged({1, 0, 1, 0}, {2, 3}, "11"), (std::vector<float>{2, 3}));
  EXPECT_EQ(merged({1, 0, 1, 0}, {2, 3}, "00"), (std::vector<float>{2, 3}));
}

/// The definition, in double, over the values that a lane has in memory.
std::vector<std::vector<double>> reference(const std::vector<std::vector<float>>& keys,
                                           const std::vector<std::vector<float>>& values,
                                           const std::string& mask) {
  const auto dot = [](const auto& a, const auto& b) {
    double sum = 0;
    for (std::size_t c = 0; c < a.size(); ++c)
      sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
  };
  std::vector<std::vector<double>> sums;
  for (const auto& value : values)
    sums.emplace_back(value.begin(), value.end());
  std::vector<double> totals(values.size(), 1.0);
  for (std::size_t e = 0; e < keys.size(); ++e) {
    if (mask[e] == '1')
      continue;
    double best = -2;
    std::size_t target = 0;
    for (std::size_t t = 0; t < keys.size(); ++t) {
      const double cosine =
          dot(keys[e], keys[t]) / std::sqrt(dot(keys[e], keys[e]) * dot(keys[t], keys[t]));
      if (mask[t] == '1' && cosine > best + 1e-7) {
        best = cosine;
        target = t;
      }
    }
    const double ours = std::sqrt(dot(values[e], values[e]));
    const double theirs = std::sqrt(dot(values[target], values[target]));
    const double weight = std::max(best, 0.0) * ours / (ours + theirs + 1e-6);
    totals[target] += weight;
    for (std::size_t c = 0; c < values[e].size(); ++c)
      sums[target][c] += weight * static_cast<double>(values[e][c]);
  }
  for (std::size_t t = 0; t < sums.size(); ++t) {
    for (double& x : sums[t])
      x /= totals[t];
  }
  return sums;
}

// Every layout and type, lanes of different lengths, more tokens than are compared at a time; no
// byte but those of kept values changes.
class MergeLayouts : public testing::TestWithParam<kvevict_test::Layout> {};

TEST_P(MergeLayouts, GiveTheDefinition) {
  constexpr CacheShape kShape{
      .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 5};
  LayoutCache cache = GetParam().make(GetParam().fitting(kShape), 160);
  kvevict_test::Random random(5);
  const std::vector<std::size_t> lengths = {160, 0, 1, 97};
  std::vector<std::string> lanes;
  std::vector<std::vector<std::vector<float>>> keys(4);
  std::vector<std::vector<std::vector<float>>> values(4);
  for (std::size_t lane = 0; lane < 4; ++lane) {
    cache.length(lane / 2, lane % 2) = lengths[lane];
    std::string text;
    for (std::size_t slot = 0; slot < lengths[lane]; ++slot) {
      text += random.below(2) ? '1' : '0';
      for (const Part part : {Part::kKeys, Part::kValues}) {
        std::vector<float> row(cache.dim(part));
        for (float& x : row)
          x = random.eighths() + .125F;
        row[0] += 1.0F;  // no key of norm 0
        cache.set(part, lane / 2, lane % 2, slot, row);
        (part == Part::kKeys ? keys : values)[lane].push_back(row);
      }
    }
    lanes.push_back(text);
  }
  const KeepMask mask = mask_of(MaskScope::kHead, 2, 2, lanes);
  if (GetParam().name == "callback") {
    EXPECT_TRUE(refuses([&] { ValueMerge().run(cache.view(), mask); },
                        {"ValueMerge", "load_row", "cannot be written"}));
    return;
  }
  ValueMerge().run(cache.view(), mask);
  const float tolerance = cache.type() == ElementType::kF32   ? 1e-5F
                          : cache.type() == ElementType::kF16 ? 2e-3F
                                                              : 2e-2F;
  for (std::size_t lane = 0; lane < 4; ++lane) {
    const auto expected = reference(keys[lane], values[lane], lanes[lane]);
    for (std::size_t slot = 0; slot < lengths[lane]; ++slot) {
      EXPECT_EQ(cache.row(Part::kKeys, lane / 2, lane % 2, slot), keys[lane][slot]);
      const std::vector<float> row = cache.row(Part::kValues, lane / 2, lane % 2, slot);
      if (lanes[lane][slot] == '0') {
        EXPECT_EQ(row, values[lane][slot]);
        continue;
      }
      for (std::size_t c = 0; c < row.size(); ++c)
        EXPECT_NEAR(row[c], expected[slot][c], tolerance) << lane << ' ' << slot;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MergeLayouts, testing::ValuesIn(kvevict_test::all_layouts()),
                         [](const auto& layout) { return layout.param.name; });
INSTANTIATE_TEST_SUITE_P(Q8Layouts, MergeLayouts, testing::ValuesIn(kvevict_test::q8_0_layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST(ValueMerge, RefusesWhatCannotWork) {
  EXPECT_TRUE(refuses([] { ValueMerge({.similarity_threshold = 1.5F}); },
                      {"ValueMerge", "similarity_threshold = 1.5"}));
  EXPECT_TRUE(
      refuses([] { ValueMerge({.merge_fraction = 0}); }, {"ValueMerge", "merge_fraction = 0"}));
  std::vector<float> keys = {1, 0};
  const MutableLane lane =
      views::RaggedView::dense_lane(kPlain, 1, keys.data(), nullptr, ElementType::kF32);
  EXPECT_TRUE(refuses(
      [&] {
        ValueMerge().run(views::RaggedView(kPlain, {&lane, 1}), mask_of("1"));
      },
      {"ValueMerge", "keys and values"}));
  EXPECT_TRUE(refuses(
      [&] {
        ValueMerge().run(views::RaggedView(kPlain, {&lane, 1}), mask_of("11"));
      },
      {"ValueMerge", "seq_len", "2"}));
}

}  // namespace
}  // namespace kvevict
