// Policies composed by text.
#include "engine/policies.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvevict {
namespace {

using engine::make_policy;
using kvevict_test::Random;
using kvevict_test::WindowCache;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
const ModelInfo kModel{.shape = kShape};

AnyPolicy make(const std::string& text, const ModelInfo& model = kModel) {
  return make_policy(text, "", model);
}

std::string error_of(const std::string& text, const ModelInfo& model = kModel) {
  try {
    static_cast<void>(make(text, model));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

/// What stays of 40 cached tokens.
KeepMask cut(AnyPolicy policy) {
  WindowCache cache(kShape, 40);
  Random random(3);
  cache.fill(random);
  cache.append(40);
  policy.append(40);
  return policy.select(cache.view());
}

TEST(CompositionText, PartsMakeThePolicyThatIsComposedInCode) {
  EXPECT_EQ(cut(make("knorm(budget=12) + ada(rule=guarantee, floor=0.3, floor_of_whole=true)")),
            cut(make("AdaKVKnorm(budget=12,floor=0.3)")));
  EXPECT_NE(cut(make("knorm(budget=12) + ada")), cut(make("knorm(budget=12)")));
}

TEST(CompositionText, LanesCompeteWhereTheyAreToldTo) {
  const KeepMask layer = cut(make("knorm(budget=12)+layer"));
  EXPECT_EQ(layer.count(0, 0) + layer.count(0, 1), 24U);
  EXPECT_EQ(layer.count(1, 0) + layer.count(1, 1), 24U);
  EXPECT_EQ(cut(make("knorm(budget=12)+model")).total_count(), 48U);
}

// Chunks of 4 from slot 0: what stays is whole.
TEST(CompositionText, ChunksStayWhole) {
  const KeepMask mask = cut(make("knorm(budget=12) + chunks(chunk_len=4,score=mean)"));
  EXPECT_EQ(mask.count(1, 1), 12U);
  for (std::size_t slot = 0; slot < 40; ++slot)
    EXPECT_EQ(mask.keeps(1, 1, slot), mask.keeps(1, 1, slot / 4 * 4));
}

// A kernel of 1 pools nothing; the order of parts is the order of the stages.
TEST(CompositionText, StagesWorkInTheOrderInWhichTheyStand) {
  EXPECT_EQ(cut(make("knorm(budget=12) + pool(kernel_size=1)")), cut(make("knorm(budget=12)")));
  EXPECT_NE(cut(make("knorm(budget=12) + pool(kernel_size=3) + values")),
            cut(make("knorm(budget=12) + values + pool(kernel_size=3)")));
}

// A lane that competes with nobody is its own layer: the order does not change.
TEST(CompositionText, LayerSharesOfSingleLanesChangeNothing) {
  EXPECT_EQ(cut(make("knorm(budget=12) + values + layer_shares")).count(0, 0), 12U);
  EXPECT_EQ(cut(make("tova(budget=12) + layer_shares")), cut(make("tova(budget=12)")));
  EXPECT_EQ(cut(make("knorm(budget=12) + values + layer_shares + model")).total_count(), 48U);
}

// The values of a set that heads share are several, its scores are one.
TEST(CompositionText, PartsThatReadValuesNeedSetsPerHead) {
  EXPECT_EQ(error_of("h2o(heavy=4,recent=4,scope=layer) + values"),
            "H2O: a part that reads values needs scope = head");
  EXPECT_EQ(error_of("h2o(heavy=4,recent=4,scope=layer) + pool(kernel_size=3)"), "");
}

TEST(CompositionText, DescribesItselfAsItReadsBack) {
  const std::string text =
      "SnapKV(budget=12.5%,observation_window=16) + pool(kind=max,kernel_size=7) + caote + "
      "ada(floor=0.1)";
  EXPECT_EQ(make(text).describe(), text);
  EXPECT_EQ(make(" snap-kv ( observation_window=16,budget=12.5% )+POOL(kind=max,kernel_size=7) "
                 "+caote(raw=false) +ada(floor=.1)")
                .describe(),
            text);
  // Options behind the name come on top.
  EXPECT_EQ(make_policy("knorm(budget=7)", "recent_window=2", kModel).describe(),
            "Knorm(budget=7,recent_window=2)");
  EXPECT_EQ(make("epikv").describe(), "EpiKV");
  EXPECT_EQ(AnyPolicy(Knorm({.budget = 3}, kShape)).describe(), "Knorm");
}

TEST(CompositionText, ErrorsPointAtTheColumnAndListWhatFits) {
  EXPECT_EQ(error_of("snapkv + caot"),
            "make_policy: column 10: no part 'caot'; here fit: caote, fast_caote, values, pool, "
            "sum_to_one, layer_shares, layer, model, ada, chunks");
  EXPECT_EQ(error_of("snapkv + ada(flor=1)"),
            "ada, column 10: no option 'flor'; valid: floor, rule, floor_of_whole");
  EXPECT_EQ(error_of("snapkv + ada(floor=2)"), "ada: floor = 2.000000 must be in [0, 1]");
  EXPECT_EQ(error_of("knorm + chunks(chunk_len=8"), "make_policy: column 15: '(' is never closed");
  EXPECT_EQ(error_of("knorm caote"), "make_policy: column 7: expected '+' or the end");
  EXPECT_EQ(error_of("knorm + "), "make_policy: column 9: expected a name");
  EXPECT_EQ(error_of(""), "make_policy: column 1: expected a name");
  EXPECT_EQ(error_of("epikv + caote"), "EpiKV: takes no parts, column 9");
}

// One of them would have no effect.
TEST(CompositionText, PartsThatDecideTheSameAreRefused) {
  const std::string why = ": a part before it has decided the same";
  EXPECT_EQ(error_of("knorm + model + layer"), "layer, column 17" + why);
  EXPECT_EQ(error_of("knorm + model + ada"), "ada, column 17" + why);
  EXPECT_EQ(error_of("snapkv + ada + ada"), "ada, column 16" + why);
  EXPECT_EQ(error_of("knorm + chunks + ada"), "ada, column 18" + why);
  EXPECT_EQ(error_of("knorm + chunks + layer"), "");
  EXPECT_EQ(error_of("knorm(budget=64,recent_window=1,budget=65)"),
            "Knorm, column 1: option 'budget' comes twice");
  EXPECT_NE(error_of("knorm(budget=64,)").find("no option ''"), std::string::npos);
}

// What a part reads is asked for where the policy is made, and checked in every view (R20).
TEST(CompositionText, PartsSayWhatTheyRead) {
  EXPECT_EQ(make("knorm").required_inputs(), Inputs::kKeys);
  EXPECT_EQ(make("knorm + values").required_inputs(), Inputs::kKeys | Inputs::kValues);
  EXPECT_EQ(error_of("knorm + values", {.shape = kShape, .supplied = Inputs::kKeys}),
            "Knorm: the engine does not supply values");
  EXPECT_NE(error_of("knorm + values(factor=projected)"), "");  // no projection in the model
  AnyPolicy policy = make("knorm(budget=2) + values");
  policy.append(4);
  std::vector<float> rows(2 * 2 * 4 * 4);
  const views::ContiguousView keys_only(
      kShape, views::Tensor::hnd(rows.data(), ElementType::kF32, 4, 2, 4), {}, 4);
  EXPECT_THROW(static_cast<void>(policy.select(keys_only)), InvalidArgument);
}

TEST(CompositionText, CopiesKeepTheirDescription) {
  AnyPolicy first = make("knorm + ada");
  const AnyPolicy second = first;
  first = make("tova");
  EXPECT_EQ(second.describe(), "Knorm + ada");
  EXPECT_EQ(first.describe(), "TOVA");
}

}  // namespace
}  // namespace kvevict
