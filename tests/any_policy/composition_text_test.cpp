// Policies composed by text.
#include "engine/policies.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  EXPECT_EQ(
      error_of("h2o(heavy=4,recent=4,scope=layer) + values"),
      "values, column 37: H2O has one set for several heads, and a part that reads values needs "
      "one for each (scope=head, where there is that option)");
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
            "forward_max, sum_to_one, z_scores, at_least_mean, layer_shares, protect, pyramid, "
            "layer_budgets, head_scores, compression_ratios, layer, model, ada, chunks, critical, "
            "twins");
  EXPECT_EQ(error_of("knorm + model + chunks + critics"),
            "make_policy: column 26: no part 'critics'; here fit: caote, fast_caote, values, pool, "
            "forward_max, sum_to_one, z_scores, at_least_mean, temporal, layer_shares, protect, "
            "layer_budgets, head_scores, compression_ratios, critical, twins");
  EXPECT_EQ(error_of("streaming_llm + protect + pin"),
            "make_policy: column 27: no part 'pin'; here fit: schedule");
  EXPECT_EQ(error_of("snapkv + ada(flor=1)"),
            "ada, column 10: no option 'flor'; valid: floor, rule, floor_of_whole");
  EXPECT_EQ(error_of("snapkv + ada(floor=2)"),
            "ada, column 10: floor = 2.000000 must be in [0, 1]");
  EXPECT_EQ(error_of("knorm + chunks(chunk_len=8"), "make_policy: column 15: '(' is never closed");
  EXPECT_EQ(error_of("knorm caote"), "make_policy: column 7: expected '+' or the end");
  EXPECT_EQ(error_of("knorm + "), "make_policy: column 9: expected a name");
  EXPECT_EQ(error_of(""), "make_policy: column 1: expected a name");
  EXPECT_EQ(error_of(" knorm\t+\n\tvalues "), "");
  EXPECT_NE(error_of("knorm + layer_budgets(tokens=10:20:)").find("tokens"), std::string::npos);
  EXPECT_EQ(error_of("fullkv + caote"), "caote, column 10: FullKV takes no parts");
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

// What a part reads is asked for where the policy is made, and checked in every view.
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

/// What stays of a prompt of 40 tokens whose last queries are given.
KeepMask cut_prompt(AnyPolicy policy) {
  WindowCache cache(kShape, 40);
  Random random(4);
  cache.fill(random);
  cache.append(40);
  policy.begin(40);
  policy.append(40);
  std::vector<float> queries(4 * 8 * 4);
  for (float& x : queries)
    x = static_cast<float>(random.bits() >> 40U) * 0x1p-23F - 1.0F;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    if (policy.wants_attention(layer))
      policy.observe_queries(layer, {queries.data(), 4, 8, 8 * 4, 4}, cache.view());
  }
  policy.observe_cache(cache.view());
  policy.end_prefill(cache.view());
  return policy.select(cache.view());
}

// Each part that has a policy of its own makes the same of the same base.
TEST(CompositionText, PartsAreThePoliciesThatAreMadeOfThem) {
  const std::string snapkv = "snapkv(budget=16,observation_window=8)";
  EXPECT_EQ(cut_prompt(make(snapkv + " + pyramid(beta=4)")),
            cut_prompt(make("pyramidkv(budget=16,observation_window=8,beta=4)")));
  EXPECT_EQ(cut_prompt(make(snapkv + " + layer_budgets(tokens=10:22)")),
            cut_prompt(make("evolkv(budget=16,observation_window=8,layer_budgets=10:22)")));
  EXPECT_EQ(
      cut_prompt(make("snapkv(budget=16,observation_window=8,pooling=max,pool_kernel_size=7) + "
                      "head_scores(scores=1:2:3:4)")),
      cut_prompt(make("headkv(budget=16,observation_window=8,head_scores=1:2:3:4)")));
  EXPECT_EQ(cut_prompt(make(snapkv + " + twins(similarity=.5,distance=1,recent_window=4)")),
            cut_prompt(make("twinkvsnapkv(budget=16,observation_window=8,twin_similarity=.5,"
                            "twin_distance=1,twin_recent=4)")));
  EXPECT_EQ(cut(make("knorm + compression_ratios(ratios=.5:.25:.75:.8)")),
            cut(make("lukvknorm(prune_ratios=.5:.25:.75:.8,num_sink_tokens=0,recent_window=0)")));
  EXPECT_EQ(cut_prompt(make("tova(budget=16) + temporal(rule=cumulative)")),
            cut_prompt(make("aggregatedtova(budget=16,temporal_rule=cumulative)")));
  EXPECT_EQ(cut(make("knorm(budget=12) + protect(num_sink_tokens=3,recent_window=2)")),
            cut(make("knorm(budget=12,num_sink_tokens=3,recent_window=2)")));
}

/// kModel with a random W_O.
ModelInfo with_output_projection() {
  std::vector<float> weight(2 * 16 * 8);
  Random random(5);
  for (float& x : weight)
    x = static_cast<float>(random.bits() >> 40U) * 0x1p-23F - 1.0F;
  auto projection = std::make_shared<OutputProjection>(kShape, 8, std::nullopt, true);
  for (std::size_t layer = 0; layer < 2; ++layer)
    projection->set_layer(layer, weight.data() + layer * 16 * 8);
  return {.shape = kShape, .output_projection = projection};
}

TEST(CompositionText, CriticalIsASecondStageOverAnySelection) {
  const ModelInfo model = with_output_projection();
  EXPECT_EQ(cut_prompt(make("snapkv(budget=16,observation_window=8) + critical", model)),
            cut_prompt(make("criticalkv(budget=16,observation_window=8)", model)));
  EXPECT_EQ(cut_prompt(make("adakv(budget=16,observation_window=8) + critical", model)),
            cut_prompt(make("criticaladakv(budget=16,observation_window=8)", model)));
  EXPECT_EQ(error_of("snapkv + critical"), "critical, column 10: output_projection is missing");
}

// A part is checked with the policy, which asks for the projection: a kernel of 1 pools nothing.
TEST(CompositionText, PoliciesThatReadTheOutputProjectionTakeParts) {
  const ModelInfo model = with_output_projection();
  for (const std::string name : {"laprox", "criticalkv", "criticaladakv", "defensivekv"}) {
    const std::string text = name + "(budget=16,observation_window=8)";
    EXPECT_EQ(cut_prompt(make(text + " + pool(kernel_size=1)", model)),
              cut_prompt(make(text, model)));
  }
}

// 8 tokens above the budget may gather, and the prompt is spared.
TEST(CompositionText, AScheduleIsForEveryPolicyThatCutsAtAnyTime) {
  WindowCache cache(kShape, 40);
  for (const bool spares_prompts : {false, true}) {
    AnyPolicy policy = make(std::string("tova(budget=4,scope=head) + schedule(slack=8") +
                            (spares_prompts ? ",cuts_prompts=false)" : ")"));
    policy.begin(14);
    policy.append(14);
    EXPECT_EQ(policy.should_evict(), !spares_prompts);
    AnyPolicy decode = make("tova(budget=4) + schedule(slack=8)");
    decode.append(12);
    EXPECT_FALSE(decode.should_evict());
    decode.append(1);
    EXPECT_TRUE(decode.should_evict());
  }
}

// A rule takes what stands before it as its samples: the largest neighbour in each step, or the
// neighbour that was largest over all.
TEST(CompositionText, ATemporalRuleStandsInItsPlace) {
  EXPECT_NE(cut_prompt(make("tova(budget=16,scope=head) + temporal + pool(kernel_size=3)")),
            cut_prompt(make("tova(budget=16,scope=head) + temporal")));
  AnyPolicy policy = make("knorm(budget=2) + temporal(rule=frozen)");
  EXPECT_TRUE(policy.wants_cache());
  EXPECT_FALSE(make("knorm(budget=2)").wants_cache());
  EXPECT_EQ(policy.describe(), "Knorm(budget=2) + temporal(rule=frozen)");
}

/// What stays of 40 tokens when the first 8 are a prompt and the rest comes one by one.
KeepMask cut_decoded(AnyPolicy policy) {
  constexpr std::size_t kHidden = 6;
  WindowCache cache(kShape, 40);
  Random random(6);
  cache.fill(random);
  const auto step = [&](std::size_t count) {
    cache.append(count);
    policy.append(count);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      std::vector<float> queries(4 * count * 4);
      std::vector<float> hidden(count * kHidden);
      for (auto* rows : {&queries, &hidden}) {
        for (float& x : *rows)
          x = static_cast<float>(random.bits() >> 40U) * 0x1p-23F - 1.0F;
      }
      if (policy.wants_attention(layer)) {
        const auto stride = static_cast<std::ptrdiff_t>(4 * count);
        policy.observe_queries(layer, {queries.data(), 4, count, stride, 4}, cache.view());
      }
      if (policy.wants_hidden(layer))
        policy.observe_hidden(layer, {hidden.data(), count, kHidden, 0, ElementType::kF32});
    }
    if (policy.wants_cache())
      policy.observe_cache(cache.view());
  };
  policy.begin(8);
  step(8);
  policy.end_prefill(cache.view());
  while (cache.seq_len() < 40)
    step(1);
  EXPECT_EQ(policy.counters().missing_signals, 0U) << policy.describe();
  EXPECT_EQ(policy.counters().non_finite, 0U) << policy.describe();
  return policy.select(cache.view());
}

// Policies whose scores have a course over steps are recipes as any others: windows as by their own
// options, and a rule that changes nothing changes nothing.
TEST(CompositionText, PartsFitPoliciesWithACourseOverSteps) {
  EXPECT_EQ(cut_decoded(make("streaming_llm(num_sink_tokens=2,recent_window=4) + "
                             "protect(num_sink_tokens=3,recent_window=6)")),
            cut_decoded(make("streaming_llm(num_sink_tokens=3,recent_window=6)")));
  EXPECT_EQ(cut_decoded(make("inertiakv(budget=12) + protect(recent_window=6)")),
            cut_decoded(make("inertiakv(budget=12,recent_window=6)")));
  // Of two layers the defaults are the same.
  for (const char* const start :
       {"epikv(layers_a=0,layers_b=1,", "epikv_raw(layers_a=0,layers_b=1,",
        "epikv_bands(layers_a=0,layers_b=1,", "epikv_key(", "epikv_value(", "epikv_lag(",
        "epikv_lag_key(", "epikv_attention(", "epikv_seg(layers_a=0,layers_b=1,",
        "epikv_segment_hs(layers_a=0,layers_b=1,"}) {
    const std::string name(start);
    const std::string policy = name + "budget=20,recent_window=2)";
    const KeepMask plain = cut_decoded(make(policy));
    EXPECT_EQ(plain.count(0, 0), 20U);
    EXPECT_EQ(cut_decoded(make(policy + " + temporal(rule=single)")), plain) << name;
    EXPECT_EQ(cut_decoded(make(policy + " + z_scores")), plain) << name;
    EXPECT_EQ(cut_decoded(make(policy + " + protect(recent_window=6)")),
              cut_decoded(make(name + "budget=20,recent_window=6)")))
        << name;
    EXPECT_NE(cut_decoded(make(policy + " + pool(kernel_size=5)")), plain) << name;
  }
  for (const char* const inertia : {"inertiakv(budget=12)", "inertiakv_value_norm(budget=12)"}) {
    const std::string policy(inertia);
    const KeepMask plain = cut_decoded(make(policy));
    EXPECT_EQ(cut_decoded(make(policy + " + temporal(rule=single) + sum_to_one")), plain);
    EXPECT_NE(cut_decoded(make(policy + " + temporal(rule=frozen)")), plain);
    EXPECT_NE(cut_decoded(make(policy + " + pool(kernel_size=5)")), plain);
  }
}

// The part has InertiaKV's meaning: what is not sampled is not asked for.
TEST(CompositionText, ATemporalRuleMaySampleSomeStepsAlone) {
  AnyPolicy policy = make("tova(budget=16) + temporal(refresh_interval=4)");
  EXPECT_EQ(policy.describe(), "TOVA(budget=16) + temporal(refresh_interval=4)");
  policy.begin(1);
  policy.append(1);
  for (std::size_t t = 1; t < 10; ++t) {
    policy.append(1);
    EXPECT_EQ(policy.wants_attention(0), t % 4 == 1);
    EXPECT_EQ(policy.wants_cache(), t % 4 == 1);
  }
  EXPECT_EQ(cut_decoded(make("tova(budget=16) + temporal(score_free=true,rule=single)")),
            cut_decoded(make("aggregatedtova(budget=16,temporal_rule=single,score_free=true)")));
  // Of the last scores alone it is the scores.
  EXPECT_EQ(cut_decoded(make("tova(budget=16) + temporal(rule=max,window=1)")),
            cut_decoded(make("tova(budget=16)")));
  EXPECT_NE(cut_decoded(make("tova(budget=16) + z_scores + temporal(rule=count)")),
            cut_decoded(make("tova(budget=16)")));
}

// A sample that was taken before the step's scores came would lack them; without a rule they may
// come at any time.
TEST(CompositionText, ARuleTakesItsSamplesBehindTheScores) {
  for (const bool has_rule : {false, true}) {
    AnyPolicy policy =
        make(has_rule ? "externalscores(budget=2) + temporal" : "externalscores(budget=2)",
             {.shape = kShape, .supplied = Inputs::kScores});
    WindowCache cache(kShape, 8);
    policy.append(2);
    cache.append(2);
    policy.observe_cache(cache.view());
    const std::vector<float> scores{1, 2};
    const auto hand_over = [&] { policy.observe_scores(0, 0, scores); };
    if (has_rule) {
      EXPECT_THROW(hand_over(), InvalidArgument);
    } else {
      EXPECT_NO_THROW(hand_over());
    }
  }
}

// Rule R9: what stays of five tokens is the same behind three slots of padding, whatever lies
// there.
struct PaddedCase {
  std::string text;
  std::vector<float> scores;   // of the tokens; keys have these norms
  std::vector<bool> kept;      // worked out by hand
  std::size_t num_behind = 0;  // tokens that come without a score, before the cut
};
std::vector<bool> kept_behind(std::size_t padding, float content, const PaddedCase& test) {
  constexpr CacheShape kOneHead{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  AnyPolicy policy =
      make(test.text, {.shape = kOneHead, .supplied = kModel.supplied | Inputs::kScores});
  WindowCache cache(kOneHead, 16);
  std::vector<float> scores(padding, content);
  scores.insert(scores.end(), test.scores.begin(), test.scores.end());
  cache.valid().assign(16, 1);
  std::fill_n(cache.valid().begin(), padding, std::uint8_t{0});
  for (std::size_t slot = 0; slot < scores.size(); ++slot)
    *cache.key(0, 0, slot) = scores[slot];
  policy.begin(scores.size());
  policy.append(scores.size());
  cache.append(scores.size());
  if (policy.wants_scores())
    policy.observe_scores(0, 0, scores);
  policy.observe_cache(cache.view());
  policy.end_prefill(cache.view());
  for (std::size_t token = 0; token < test.num_behind; ++token) {
    policy.append(1);
    cache.append(1);
    policy.observe_cache(cache.view());
  }
  const KeepMask mask = policy.select(cache.view());
  policy.apply(mask);
  EXPECT_EQ(policy.counters().non_finite, 0U);
  std::vector<bool> kept;
  for (std::size_t slot = padding; slot < cache.seq_len(); ++slot)
    kept.push_back(mask.keeps(0, 0, slot));
  return kept;
}
TEST(CompositionText, PaddingHasNoSayInAnyPart) {
  const std::vector<PaddedCase> cases = {
      // Minus the norms, means of three with zeros outside: -1, -2, -3, -4, -3: of the tied third
      // and fifth the third.
      {"knorm(budget=3) + pool(kernel_size=3)", {1, 2, 3, 4, 5}, {true, true, true, false, false}},
      {"knorm(budget=3) + temporal", {1, 2, 3, 4, 5}, {true, true, true, false, false}},
      // 1, 2, 3, 4, 3.
      {"externalscores(budget=3) + pool(kernel_size=3)",
       {1, 2, 3, 4, 5},
       {false, false, true, true, true}},
      // Means of what is there: 2, 2.07, 2.2, 1.87, 1.7.
      {"externalscores(budget=3) + pool(kernel_size=3,edge=shrink)",
       {2, 2, 2.2F, 2.4F, 1},
       {true, true, true, false, false}},
      // No less than their mean: 4, 3, 3, 5, 3, and of equals the first.
      {"externalscores(budget=3) + at_least_mean",
       {4, 2, 1, 5, 3},
       {true, true, false, true, false}},
      // The largest of two from each on: -1, -1, -4, -4, -5.
      {"externalscores(budget=3) + forward_max(width=2)",
       {-2, -1, -6, -4, -5},
       {true, true, true, false, false}},
      // Two that enter at the mean of the others, 3: of the three 3s the first.
      {"externalscores(budget=3) + temporal(score_free=true)",
       {1, 2, 3, 4, 5},
       {false, false, true, true, true, false, false},
       2},
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const PaddedCase& test : cases) {
    SCOPED_TRACE(test.text);
    EXPECT_EQ(kept_behind(0, 0.0F, test), test.kept);
    for (const float content :
         {0.0F, 1000.0F, -1000.0F, kInfinity, std::numeric_limits<float>::quiet_NaN()})
      EXPECT_EQ(kept_behind(3, content, test), test.kept) << content;
  }
}

// Behind the tokens 3, 1 and 2, of which two make 3, 2 and 2: with the 9 there the third would
// stay.
TEST(CompositionText, PaddingBehindTheTokensLeadsToNothing) {
  constexpr CacheShape kOneHead{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  AnyPolicy policy = make("externalscores(budget=1) + forward_max(width=2)",
                          {.shape = kOneHead, .supplied = Inputs::kScores});
  WindowCache cache(kOneHead, 4);
  cache.valid() = {1, 1, 1, 0};
  policy.append(4);
  cache.append(4);
  policy.observe_scores(0, 0, std::vector<float>{3, 1, 2, 9});
  const KeepMask mask = policy.select(cache.view());
  EXPECT_EQ(mask.total_count(), 1U);
  EXPECT_TRUE(mask.keeps(0, 0, 0));
}

// Errors name the part and its column.
TEST(CompositionText, RefusesPartsThatDoNotFitThePolicy) {
  EXPECT_EQ(error_of("snapkv + temporal"),
            "temporal, column 10: SnapKV scores once a prompt: there are no steps to aggregate");
  EXPECT_EQ(error_of("snapkv + schedule(slack=1)"),
            "schedule, column 10: SnapKV cuts once a prompt: there is nothing to schedule");
  EXPECT_EQ(error_of("knorm(slack=8) + schedule"),
            "schedule, column 18: Knorm has options for this: cuts_prompts, decode_interval, "
            "slack");
  EXPECT_EQ(error_of("h2o + layer_budgets(tokens=1:2)"),
            "layer_budgets, column 7: H2O has no budget that a table could share out");
  EXPECT_EQ(error_of("knorm + pyramid"),
            "pyramid, column 9: Knorm cuts at any time, and the part shares out the budget of a "
            "prompt");
  EXPECT_EQ(error_of("knorm(skip_layers=0) + layer_budgets(tokens=1:2)"),
            "layer_budgets, column 24: Knorm shares its budget out by itself, which the part would "
            "drop");
  EXPECT_EQ(error_of("knorm(skip_layers=0,budget=10) + model"),
            "model, column 34: Knorm has lanes without a budget, which cannot share one");
  EXPECT_EQ(error_of("chunkkv + ada").substr(0, 22), "ada, column 11: ChunkK");
  EXPECT_EQ(error_of("adakv + chunks"),
            "chunks, column 9: AdaKV has a selection of its own, which the part would drop");
  EXPECT_EQ(error_of("tova + twins"),
            "twins, column 8: TOVA has one set for several heads, and the part is for single "
            "heads (scope=head, where there is that option)");
  EXPECT_EQ(error_of("tova + ada"),
            "ada, column 8: TOVA has one set where the part would let several compete "
            "(scope=head, where there is that option)");
  EXPECT_EQ(error_of("snapkv(budget=40) + pyramid(beta=0.5)"),
            "pyramid, column 21: beta = 0.500000 must be >= 1");
  EXPECT_EQ(error_of("knorm + twins(similarity=1.5)"),
            "twins, column 9: similarity = 1.500000 must be in [-1, 1]");
  EXPECT_EQ(error_of("knorm + critical(first_stage=1.5)"),
            "critical, column 9: first_stage = 1.500000 must be in [0, 1]");
  EXPECT_EQ(error_of("snapkv + layer_budgets"),
            "layer_budgets, column 10: tokens.size() = 0 must be 2 (num_layers)");
  EXPECT_EQ(
      error_of("snapkv + ada + head_scores(scores=1:2:3)"),
      "head_scores, column 16: scores.size() = 3 must be 4 (layers x KV heads) or 8 (layers x "
      "query heads)");
  EXPECT_EQ(
      error_of("snapkv + compression_ratios(ratios=0.5)"),
      "compression_ratios, column 10: ratios.size() = 1 must be 2 (num_layers) or 4 (layers x "
      "KV heads)");
  EXPECT_EQ(error_of("snapkv + layer_budgets(tokens=0:0)"),
            "layer_budgets, column 10: sum of tokens = 0 must be > 0");
  EXPECT_EQ(error_of("streaming_llm + pool"),
            "pool, column 17: StreamingLLM goes by positions alone: it has no scores to change or "
            "to choose by");
  EXPECT_EQ(error_of("epikv + caote"),
            "caote, column 9: EpiKV has one set for several heads, and a part that reads values "
            "needs one for each (scope=head, where there is that option)");
  EXPECT_EQ(error_of("inertiakv + layer"),
            "layer, column 13: InertiaKV has one set where the part would let several compete "
            "(scope=head, where there is that option)");
  EXPECT_EQ(error_of("epikv_seg + chunks"),
            "chunks, column 13: EpiKVSeg has a selection of its own, which the part would drop");
  EXPECT_EQ(error_of("knorm + temporal(refresh_interval=0)"),
            "temporal, column 9: refresh_interval = 0 must be > 0");
  EXPECT_EQ(error_of("knorm + temporal(threshold=1)"),
            "temporal, column 9: threshold = 1.000000 has a meaning for rule = count and last_time "
            "alone");
  EXPECT_EQ(
      error_of("knorm + temporal(window=4)"),
      "temporal, column 9: window = 4 has a meaning for rule = cumulative, lifetime_mean, max "
      "and count alone");
  EXPECT_EQ(error_of("knorm + temporal(rule=cumulative,decay=0.3)"),
            "temporal, column 9: decay = 0.300000 has a meaning for rule = ema and decayed_sum "
            "alone");
  // Whose windows they are: those of the part, or the policy's own.
  const std::string windows = ": num_sink_tokens and recent_window, an observation window included";
  EXPECT_EQ(error_of("knorm(budget=4) + layer + protect(num_sink_tokens=1,recent_window=8)"),
            "protect, column 27: budget = 4 must be at least 9" + windows);
  EXPECT_EQ(error_of("h2o(heavy=4,recent=4) + protect(recent_window=9)"),
            "protect, column 25: budget = 8 must be at least 9" + windows);
  EXPECT_EQ(error_of("knorm(budget=total:16) + protect(recent_window=8)"),
            "protect, column 26: budget = 16 must be at least 32" + windows);
  EXPECT_EQ(error_of("knorm(budget=4,recent_window=8) + layer + protect"),
            "Knorm: budget = 4 must be at least 8" + windows);
  EXPECT_EQ(error_of("snapkv(budget=40) + pyramid + protect(num_sink_tokens=9)"),
            "protect, column 31: budget = 40 must be at least 41" + windows);
}

// What works on finished scores comes when they are finished, and selections in their order.
TEST(CompositionText, RefusesPartsInAnOrderThatIsNotRun) {
  const std::string why =
      ": 'layer_shares' comes when the scores are finished: nothing may be made of them behind it";
  EXPECT_EQ(error_of("knorm + layer_shares + z_scores"), "z_scores, column 24" + why);
  EXPECT_EQ(error_of("knorm + layer_shares + temporal"), "temporal, column 24" + why);
  EXPECT_EQ(error_of("knorm + z_scores + layer_shares"), "");
  EXPECT_EQ(error_of("knorm + twins + ada"),
            "ada, column 17: selections stand before 'critical', and both before 'twins'");
}

// Rule R15: head 1 of layer 1 has the longest keys by far, of which Knorm keeps none but the floor.
TEST(CompositionText, EveryHeadKeepsAnEntryWhoeverChooses) {
  const std::string zero = "num_sink_tokens=0,recent_window=0,distance=0,similarity=1";
  for (const std::string& parts : {std::string("model"), "model + twins(" + zero + ")",
                                   std::string("layer + twins(") + zero + ")",
                                   std::string("model + chunks(chunk_len=2,score=mean)")}) {
    AnyPolicy policy = make("knorm(budget=10) + " + parts);
    WindowCache cache(kShape, 40);
    Random random(3);
    cache.fill(random);
    cache.append(40);
    for (std::size_t slot = 0; slot < 40; ++slot) {
      for (std::size_t c = 0; c < 4; ++c)
        cache.key(1, 1, slot)[c] *= 1000.0F;
    }
    policy.append(40);
    const KeepMask& mask = policy.select(cache.view());
    EXPECT_GE(mask.count(1, 1), 1U) << parts;
    // Whole chunks may leave something of a budget.
    EXPECT_GE(mask.total_count(), parts.ends_with("mean)") ? 39U : 40U) << parts;
    EXPECT_LE(mask.total_count(), 40U) << parts;
  }
}

// A table is kept to exactly: what R-KV lets gather above its budget is no part of it.
TEST(CompositionText, ATableOverAPolicyThatCutsInBatches) {
  AnyPolicy policy =
      make("rkv(budget=16,buffer=8,observation_window=4) + layer_budgets(tokens=16:16)");
  WindowCache cache(kShape, 40);
  Random random(3);
  cache.fill(random);
  cache.append(17);
  policy.append(16);
  EXPECT_FALSE(policy.should_evict());
  policy.append(1);
  EXPECT_TRUE(policy.should_evict());
  EXPECT_EQ(policy.select(cache.view()).total_count(), 64U);
}

// The pyramid of 6 beside a window of 8, at beta 20, is 20 and 8: two sinks have no room in 8, so
// the first layer pays for them.
TEST(CompositionText, AddedWindowsHaveRoomInEveryLaneOfATable) {
  const std::string pyramid = "pyramidkv(budget=14,observation_window=8,beta=20)";
  const KeepMask alone = cut_prompt(make(pyramid));
  EXPECT_EQ(alone.count(0, 0), 20U);
  EXPECT_EQ(alone.count(1, 0), 8U);
  const KeepMask mask = cut_prompt(make(pyramid + " + protect(num_sink_tokens=2)"));
  for (std::size_t head = 0; head < 2; ++head) {
    EXPECT_EQ(mask.count(0, head), 18U);
    EXPECT_EQ(mask.count(1, head), 10U);
    EXPECT_TRUE(mask.keeps(1, head, 0) && mask.keeps(1, head, 1));
  }
}

// Sums over a window of 8 rows: epsilon is in units of attention, an eighth of them, but behind a
// part that makes something of the scores, here the same, it is what is added to them.
TEST(CompositionText, EpsilonOfCriticalIsInUnitsOfTheScores) {
  const ModelInfo model = with_output_projection();
  const std::string snapkv = "snapkv(budget=16,observation_window=8)";
  EXPECT_EQ(cut_prompt(make(snapkv + " + critical(epsilon=0.1)", model)),
            cut_prompt(make(snapkv + " + forward_max(width=1) + critical(epsilon=0.8)", model)));
}

// Where the policy has two stages already, the part's take their place, epsilon and all.
TEST(CompositionText, CriticalTakesThePlaceOfStagesThatThePolicyHas) {
  const ModelInfo model = with_output_projection();
  const std::string options = "(budget=16,observation_window=8) + critical(first_stage=0,epsilon=";
  for (const std::string& epsilon : {std::string("0.002)"), std::string("0.05)")}) {
    EXPECT_EQ(cut_prompt(make("criticalkv" + options + epsilon, model)),
              cut_prompt(make("snapkv" + options + epsilon, model)));
  }
  EXPECT_NE(cut_prompt(make("snapkv" + options + "0.05)", model)),
            cut_prompt(make("snapkv" + options + "0.00625)", model)));  // an eighth
}

// Samples in steps 1, 5, 9, cuts in steps 4, 8: each cut goes by scores of three steps before.
TEST(CompositionText, RefreshesAndCutsOfEqualIntervalsNeverMeet) {
  AnyPolicy policy =
      make("tova(budget=2) + temporal(refresh_interval=4) + schedule(decode_interval=4)");
  policy.begin(4);
  policy.append(4);
  for (std::size_t t = 1; t < 10; ++t) {
    policy.append(1);
    EXPECT_EQ(policy.wants_cache(), t % 4 == 1);
    EXPECT_EQ(policy.should_evict(), t % 4 == 0);
  }
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
