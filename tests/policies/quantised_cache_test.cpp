// A cache of q8_0 blocks gives the masks of the same values as floats, in every layout and
// instruction set: its rows are exact, so every score has the same bits.
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/caote.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/views/ragged_view.hpp"
#include "support/any_test_policy.hpp"
#include "support/errors.hpp"
#include "support/layouts.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

constexpr kvevict::CacheShape kWideShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 96, .value_dim = 32};

struct Quantised {
  std::string name;
  std::function<AnyTestPolicy(const kvevict::kernels::KernelSet& kernel)> make;
};
template <class P>
Quantised case_of(const std::string& name, typename P::Options options) {
  return {name, [=](const kvevict::kernels::KernelSet& kernel) {
            return AnyTestPolicy(P(options, kWideShape, kernel));
          }};
}

std::shared_ptr<const kvevict::OutputProjection> output_projection() {
  constexpr std::size_t kHiddenSize = 40;
  auto projection = std::make_shared<kvevict::OutputProjection>(kWideShape, kHiddenSize);
  Random random(9);
  std::vector<float> weight(kWideShape.num_q_heads * kWideShape.value_size() * kHiddenSize);
  for (std::size_t layer = 0; layer < kWideShape.num_layers; ++layer) {
    for (float& x : weight)
      x = random.eighths();
    projection->set_layer(layer, weight.data());
  }
  return projection;
}

/// One for each way in which rows are read: products, norms, differences, variances, bands, norms
/// behind a projection, weighted sums, leverage.
std::vector<Quantised> quantised_cases() {
  constexpr std::size_t kBudget = 12;
  kvevict::TriAttentionOptions tri;
  tri.budget = kBudget;
  tri.rotary.inv_freq.assign(kWideShape.head_dim / 2, 0.25);
  tri.interval = 1;
  tri.protect_prompt = false;
  tri.recent_window = 2;
  tri.min_queries = 6;
  kvevict::H2OCAOTE::Options caote;
  caote.heavy = kBudget - 3;
  caote.recent = std::size_t{3};
  kvevict::LaProxOptions laprox;
  laprox.budget = kBudget;
  laprox.observation_window = 4;
  laprox.output_projection = output_projection();
  return {case_of<kvevict::SnapKV>("SnapKV", {.budget = kBudget, .observation_window = 4}),
          case_of<kvevict::Knorm>("Knorm", {.budget = kBudget}),
          case_of<kvevict::KeyDiff>("KeyDiff", {.budget = kBudget}),
          case_of<kvevict::LagKV>("LagKV", {.num_sink_tokens = 1, .lag_len = 4}),
          case_of<kvevict::TriAttention>("TriAttention", tri),
          case_of<kvevict::LaProx>("LaProx", laprox),
          case_of<kvevict::H2OCAOTE>("H2OCAOTE", caote),
          case_of<kvevict::CurDKV>("CurDKV", {.budget = kBudget}),
          case_of<kvevict::RKV>("RKV", {.budget = kBudget, .buffer = 2, .observation_window = 4})};
}

/// Every mask that a run applies, and what is left of the prompt and the text.
std::vector<kvevict::KeepMask> masks_of(const Quantised& policy,
                                        const kvevict::kernels::KernelSet& kernel,
                                        LayoutCache cache) {
  TestEngine<AnyTestPolicy> engine(policy.make(kernel), std::move(cache));
  std::vector<kvevict::KeepMask> masks;
  const auto evict = [&] {
    if (!engine.policy.should_evict())
      return;
    masks.push_back(engine.select());
    engine.evict(masks.back());
  };
  engine.prompt(24);
  evict();
  for (std::size_t step = 0; step < 12; ++step) {
    engine.feed(1);
    evict();
  }
  EXPECT_TRUE(engine.cache_is_intact());
  return masks;
}

class QuantisedCache : public testing::TestWithParam<Quantised> {};
INSTANTIATE_TEST_SUITE_P(Policies, QuantisedCache, testing::ValuesIn(quantised_cases()),
                         [](const auto& policy) { return policy.param.name; });

TEST_P(QuantisedCache, GivesTheMasksOfItsValuesAsFloats) {
  using kvevict::kernels::Isa;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!kvevict::kernels::is_available(isa))
      continue;
    const auto& kernel = kvevict::kernels::get(isa);
    const auto expected =
        masks_of(GetParam(), kernel, layouts::nhd(kWideShape, 48, kvevict::ElementType::kF32));
    ASSERT_FALSE(expected.empty());
    EXPECT_GT(expected[0].total_evicted(), 0U);
    for (const Layout& layout : q8_0_layouts()) {
      EXPECT_EQ(masks_of(GetParam(), kernel, layout.make(kWideShape, 48)), expected)
          << layout.name << ", instruction set " << static_cast<int>(isa);
    }
  }
}

// Blocks hold 32 elements of a row, so rows are whole blocks and are never transposed.
TEST(QuantisedCacheRefusals, RowsThatAreNotBlocks) {
  std::vector<std::byte> memory(4096);
  const auto select = [&](std::size_t value_dim, std::ptrdiff_t dim_stride_bytes) {
    kvevict::CacheShape shape = kWideShape;
    shape.value_dim = value_dim;
    kvevict::Knorm policy({.budget = 1}, shape);
    std::vector<kvevict::MutableLane> lanes(
        4, kvevict::views::RaggedView::dense_lane(shape, 2, memory.data(), memory.data(),
                                                  kvevict::ElementType::kQ8_0));
    for (kvevict::MutableLane& lane : lanes)
      lane.keys.dim_stride_bytes = dim_stride_bytes;
    policy.append(2);
    static_cast<void>(policy.select(kvevict::views::RaggedView(shape, lanes)));
  };
  select(64, 0);
  EXPECT_TRUE(refuses([&] { select(40, 0); }, {"value_dim = 40", "multiple of 32", "q8_0"}));
  EXPECT_TRUE(refuses([&] { select(64, 34); }, {"dim_stride_bytes = 34", "cannot be transposed"}));
}

TEST(QuantisedCacheRefusals, HiddenStatesAndWeightsInBlocks) {
  std::vector<std::byte> memory(4096);
  kvevict::EpiKV policy({.budget = 4}, kWideShape);
  policy.append(1);
  EXPECT_TRUE(refuses(
      [&] {
        policy.observe_hidden(0, {.data = memory.data(),
                                  .num_rows = 1,
                                  .hidden_size = 64,
                                  .type = kvevict::ElementType::kQ8_0});
      },
      {"HiddenRows.type", "must be kF32, kF16 or kBF16"}));
  kvevict::OutputProjection projection(kWideShape, 64);
  EXPECT_TRUE(refuses([&] { projection.set_layer(0, memory.data(), kvevict::ElementType::kQ8_0); },
                      {"OutputProjection", "type", "must be kF32, kF16 or kBF16"}));
}

}  // namespace
}  // namespace kvevict_test
