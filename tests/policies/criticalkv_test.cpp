#include "kvevict/policies/criticalkv.hpp"

#include "kvevict/policies/defensivekv.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/selection/top_k.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/row_session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::CacheShape;
using kvevict::CriticalKV;
using kvevict::ElementType;
using kvevict::OutputProjection;
using kvevict::Position;
using Positions = std::vector<Position>;

constexpr CacheShape kOneHead{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// W_O of one layer and one channel per head: 1.
std::shared_ptr<const OutputProjection> identity() {
  auto projection = std::make_shared<OutputProjection>(kOneHead, 1, std::nullopt, true);
  const float one = 1;
  projection->set_layer(0, &one);
  return projection;
}
CriticalKV::Options options_of(std::size_t budget, double first_stage) {
  return {.base = {.budget = budget, .observation_window = 1, .pooling = {.kernel_size = 1}},
          .critical = {.first_stage = first_stage, .epsilon = 0},
          .output_projection = identity()};
}
/// Five tokens of size 1, 1, 1, 4, 5 and the one whose row this is.
RowSession<CriticalKV> session_of(const CriticalKV::Options& options) {
  RowSession<CriticalKV> session(options, kOneHead);
  session.policy.begin(6);
  session.append(6);
  const std::vector<float> values = {1, -1, 1, -4, 5, 1};
  for (std::size_t slot = 0; slot < 6; ++slot)
    *session.cache.value(0, 0, slot) = values[slot];
  session.rows(0, {{{.35F, .30F, .15F, .10F, .10F, 0}}});
  session.policy.end_prefill(session.cache.view());
  return session;
}
Positions kept(const CriticalKV::Options& options) {
  auto session = session_of(options);
  session.cut();
  return session.kept();
}

// Products .35, .30, .15, .40, .50, two entries beside the window: the plain product takes 3 and 4,
// two stages take the best score and the best product of the others, one stage the best scores.
TEST(CriticalKV, TheFirstStageIsTheBasePolicy) {
  EXPECT_EQ(kept(options_of(3, 0.0)), (Positions{3, 4, 5}));
  EXPECT_EQ(kept(options_of(3, 0.5)), (Positions{0, 4, 5}));
  EXPECT_EQ(kept(options_of(3, 1.0)), (Positions{0, 1, 5}));
}

// The share is of three entries: 1.5 without the window, which would be two of four with it, one of
// them the window itself.
TEST(CriticalKV, TheFirstStageMayCountTheWindow) {
  CriticalKV::Options options = options_of(4, 0.5);
  EXPECT_EQ(kept(options), (Positions{0, 3, 4, 5}));
  options.critical.first_stage = 0.75;  // 2 of 3
  EXPECT_EQ(kept(options), (Positions{0, 1, 4, 5}));
  options.critical.first_stage = 0.5;  // 2 of 4: the window and one more
  options.first_stage_counts_window = true;
  EXPECT_EQ(kept(options), (Positions{0, 3, 4, 5}));
  options.critical.first_stage = 0.25;  // the window alone
  EXPECT_EQ(kept(options), (Positions{0, 3, 4, 5}));
  options.critical.first_stage = 1;
  EXPECT_EQ(kept(options), (Positions{0, 1, 2, 5}));
}

// With one channel both norms are |v w|.
TEST(CriticalKV, BothNormsAreSizes) {
  CriticalKV::Options options = options_of(3, 0.5);
  options.critical.l2_norm = true;
  EXPECT_EQ(kept(options), (Positions{0, 4, 5}));
}

// A large epsilon leaves the second stage to the values: 4 and then 3.
TEST(CriticalKV, EpsilonLetsValuesDecide) {
  CriticalKV::Options options = options_of(3, 0.0);
  options.critical.epsilon = 100;
  EXPECT_EQ(kept(options), (Positions{3, 4, 5}));
}

// R9: what lies in padding is not looked at, and R4: a value of NaN goes first.
TEST(CriticalKV, PaddingAndNaN) {
  auto session = session_of(options_of(3, 0.5));
  session.cache.valid() = {1, 1, 1, 1, 0, 1};
  *session.cache.value(0, 0, 4) = kNaN;
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 3, 5}));
  auto nan = session_of(options_of(4, 0.5));
  *nan.cache.value(0, 0, 4) = kNaN;
  nan.cut();
  EXPECT_EQ(nan.kept(), (Positions{0, 1, 3, 5}));
}

TEST(CriticalKV, KeepsAllUpToTheBudgetAndThatManyBeyond) {
  for (const std::size_t budget : {1U, 2U, 5U, 6U, 7U})
    EXPECT_EQ(kept(options_of(budget, 0.5)).size(), std::min<std::size_t>(budget, 6));
}

// Any recipe can be the base.
TEST(CriticalKV, WrapsPoliciesOfOtherKinds) {
  using CriticalKnorm =
      kvevict::Policy<kvevict::Composed<kvevict::CriticalKVRecipe<kvevict::KnormRecipe>>>;
  RowSession<CriticalKnorm> session({.base = {.budget = 2}, .output_projection = identity()},
                                    kOneHead);
  session.append(4);
  const std::vector<float> keys = {2, 3, 1, 4};
  for (std::size_t slot = 0; slot < 4; ++slot) {
    *session.cache.key(0, 0, slot) = keys[slot];
    *session.cache.value(0, 0, slot) = 1;
  }
  // -|k|: the best score is 2's; then the best of the others.
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2}));
}

// Sums 1.8, 1.2, .6, .4 and sizes 1, 1, 4, 1. The newest stays, the best sum is 0's; of the others
// the product is 1.2 for 1 and 2.4 for 2. What is recent is the allocator's matter here, so that
// there is no number of windows to count in.
TEST(CriticalKV, WrapsHeavyHitters) {
  using CriticalH2O =
      kvevict::Policy<kvevict::Composed<kvevict::CriticalKVRecipe<kvevict::H2ORecipe>>>;
  CriticalH2O::Options options = {.base = {.heavy = 2, .recent = 1},
                                  .critical = {.epsilon = 0},
                                  .output_projection = identity()};
  RowSession<CriticalH2O> session(options, kOneHead);
  session.policy.begin(4);
  session.append(4);
  const std::vector<float> values = {1, 1, -4, 1};
  for (std::size_t slot = 0; slot < 4; ++slot)
    *session.cache.value(0, 0, slot) = values[slot];
  session.rows(0, {{{1}, {.5F, .5F}, {.2F, .5F, .3F}, {.1F, .2F, .3F, .4F}}});
  session.policy.end_prefill(session.cache.view());
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 2, 3}));

  options.first_stage_counts_window = true;
  EXPECT_TRUE(refuses([&] { CriticalH2O(options, kOneHead); },
                      {"CriticalH2O", "first_stage_counts_window = 1"}));
}

// A base that selects by its signal. Largest attention .35, .3, .15, .1, .1, lifted to the mean .2:
// the base keeps 0 and 1. Of what is left behind 0 the products are .3, .2, .8 and 1.
TEST(CriticalKV, WrapsASelectorThatReadsTheSignal) {
  using CriticalDefensiveKV =
      kvevict::Policy<kvevict::Composed<kvevict::CriticalKVRecipe<kvevict::DefensiveKVRecipe>>>;
  RowSession<CriticalDefensiveKV> session({.base = {.budget = 3,
                                                    .observation_window = 1,
                                                    .pooling = {.kernel_size = 1},
                                                    .first_stage_mass = 0,
                                                    .output_projection = identity()},
                                           .critical = {.epsilon = 0},
                                           .output_projection = identity()},
                                          kOneHead);
  session.policy.begin(6);
  session.append(6);
  const std::vector<float> values = {1, -1, 1, -4, 5, 1};
  for (std::size_t slot = 0; slot < 6; ++slot)
    *session.cache.value(0, 0, slot) = values[slot];
  session.rows(0, {{{.35F, .30F, .15F, .10F, .10F, 0}}});
  session.policy.end_prefill(session.cache.view());
  session.cut();
  EXPECT_EQ(session.kept(), (Positions{0, 4, 5}));
}

/// SnapKV whose heads share the layer's budget: the best of all heads win.
struct BestOfLayer {
  template <class Input>
  void choose(std::span<kvevict::ScoredLane> lanes, std::size_t quota, const Input&) const {
    kvevict::select_top_k(lanes, quota);
  }
};
struct SharedSnapKVRecipe : kvevict::SnapKVRecipe {
  static kvevict::Allocation allocation(const kvevict::SnapKVOptions& options) {
    return {.budget = options.budget, .competition = kvevict::Competition::kLayer};
  }
  static BestOfLayer selector(const kvevict::SnapKVOptions&) { return {}; }
};

// Two heads share a budget of 2 x 3, window included: of four entries the first head wins the three
// at .4, .35 and .25, the second one at .3. Within these numbers two stages: the first head keeps
// its best and then what has the largest values, the second its only one by its score.
TEST(CriticalKV, TheBaseSaysHowManyEachHeadKeeps) {
  constexpr CacheShape kTwo{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  auto projection = std::make_shared<OutputProjection>(kTwo, 1, std::nullopt, true);
  const std::vector<float> ones = {1, 1};
  projection->set_layer(0, ones.data());
  using Shared = kvevict::Policy<kvevict::Composed<kvevict::CriticalKVRecipe<SharedSnapKVRecipe>>>;
  RowSession<Shared> session(
      {.base = {.budget = 3, .observation_window = 1, .pooling = {.kernel_size = 1}},
       .critical = {.epsilon = 1},
       .output_projection = projection},
      kTwo);
  session.policy.begin(6);
  session.append(6);
  for (std::size_t slot = 0; slot < 6; ++slot) {
    for (std::size_t head = 0; head < 2; ++head)
      *session.cache.value(0, head, slot) = static_cast<float>(slot + 1);
  }
  session.rows(0, {{{.4F, .35F, .25F, 0, 0, 0}}, {{.1F, .3F, .2F, .1F, .1F, .2F}}});
  session.policy.end_prefill(session.cache.view());
  session.cut();
  EXPECT_EQ(session.kept(0), (Positions{0, 3, 4, 5}));
  EXPECT_EQ(session.kept(1), (Positions{1, 5}));
}

// Of several critical policies in one program an error says which.
TEST(CriticalKV, IsNamedAfterItsBase) {
  EXPECT_EQ(CriticalKV::kName, "CriticalKV");
  EXPECT_EQ(kvevict::CriticalAdaKV::kName, "CriticalAdaKV");
  EXPECT_EQ(kvevict::CriticalKVRecipe<kvevict::KnormRecipe>::kName, "CriticalKnorm");
}

TEST(CriticalKV, RefusesWhatItCannotUse) {
  CriticalKV::Options options = options_of(3, 1.5);
  EXPECT_TRUE(
      refuses([&] { CriticalKV(options, kOneHead); }, {"CriticalKV", "first_stage", "1.5"}));
  options = options_of(3, 0.5);
  options.critical.epsilon = -1;
  EXPECT_TRUE(refuses([&] { CriticalKV(options, kOneHead); }, {"CriticalKV", "epsilon", "-1"}));
  options = options_of(3, 0.5);
  options.output_projection = nullptr;
  EXPECT_TRUE(refuses([&] { CriticalKV(options, kOneHead); }, {"CriticalKV", "output_projection"}));
  auto factors_only = std::make_shared<OutputProjection>(kOneHead, 1);
  const float one = 1;
  factors_only->set_layer(0, &one);
  options.output_projection = factors_only;
  EXPECT_TRUE(refuses([&] { CriticalKV(options, kOneHead); }, {"CriticalKV", "keep_weight"}));
  options.critical.l2_norm = true;
  CriticalKV(options, kOneHead);
}

// |v W|_1 against the plain sum, for element types, row strides and blocks of values.
TEST(ProjectedL1Norms, AreSumsOfAbsoluteProducts) {
  constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 5};
  constexpr std::size_t kHidden = 37;
  constexpr std::size_t kNumValues = 35;
  constexpr std::size_t kStride = kHidden + 3;
  Random random(3);
  std::vector<float> weight(kShape.num_q_heads * kShape.head_dim * kStride);
  for (float& x : weight)
    x = random.eighths();
  std::vector<std::uint16_t> bf16(weight.size());  // eighths are exact in it
  for (std::size_t i = 0; i < weight.size(); ++i) {
    bf16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weight[i]) >> 16U);
  }
  WindowCache cache(kShape, kNumValues);
  cache.append(kNumValues);
  cache.fill(random);
  for (const bool narrow : {false, true}) {
    OutputProjection projection(kShape, kHidden, std::nullopt, true);
    if (narrow) {
      projection.set_layer(0, bf16.data(), ElementType::kBF16, kStride * 2);
    } else {
      projection.set_layer(0, weight.data(), ElementType::kF32, kStride * 4);
    }
    std::vector<float> gathered;
    std::vector<float> widened;
    std::vector<float> scratch;
    for (std::size_t head = 0; head < kShape.num_q_heads; ++head) {
      std::vector<float> norms(kNumValues - 2);
      kvevict::projected_l1_norms(cache.view().lane(0, 0).values, kShape.head_dim, 2, kNumValues,
                                  projection.transposed(0, head), kvevict::kernels::best(),
                                  gathered, widened, scratch, norms);
      for (std::size_t i = 0; i < norms.size(); ++i) {
        double expected = 0;
        for (std::size_t j = 0; j < kHidden; ++j) {
          double product = 0;
          for (std::size_t c = 0; c < kShape.head_dim; ++c) {
            product += static_cast<double>(cache.value(0, 0, i + 2)[c]) *
                       static_cast<double>(weight[(head * kShape.head_dim + c) * kStride + j]);
          }
          expected += std::abs(product);
        }
        EXPECT_NEAR(norms[i], expected, 1e-5 * expected) << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvevict_test
