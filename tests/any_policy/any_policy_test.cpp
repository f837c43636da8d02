#include "kvevict/any_policy.hpp"

#include "engine/policies.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using namespace kvevict;
using engine::make_policy;

constexpr CacheShape kShape{.num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

struct Cache {
  std::vector<float> rows = std::vector<float>(2 * 32 * 2 * 4, 0.5F);
  [[nodiscard]] views::ContiguousView view(std::size_t seq_len) {
    const auto tensor = views::Tensor::nhd(rows.data(), ElementType::kF32, 32, 2, 4);
    return {kShape, tensor, tensor, seq_len};
  }
};

std::string error_of(const std::string& name, const std::string& options,
                     const ModelInfo& model = {.shape = kShape}) {
  try {
    static_cast<void>(make_policy(name, options, model));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MakePolicy, UnknownNameListsEveryKnownOne) {
  const std::string error = error_of("snapvk", "");
  for (const char* name : {"snapvk", "FullKV", "RandomEviction", "StreamingLLM", "H2O", "SnapKV",
                           "EpiKV", "LaProx", "InertiaKV"}) {
    EXPECT_TRUE(contains(error, name)) << error;
  }
}

TEST(MakePolicy, UnknownKeyListsTheValidOnes) {
  const std::string error = error_of("streaming_llm", "num_sinks=4");
  EXPECT_TRUE(contains(error, "StreamingLLM: no option 'num_sinks'")) << error;
  EXPECT_TRUE(contains(error, "num_sink_tokens, recent_window")) << error;
}

TEST(MakePolicy, UnreadableValueSaysWhatIsExpected) {
  EXPECT_TRUE(contains(error_of("streaming_llm", "recent_window=many"),
                       "recent_window='many': expected a whole number"));
  EXPECT_TRUE(contains(error_of("streaming_llm", "recent_window=-1"), "expected a whole number"));
  EXPECT_TRUE(contains(error_of("streaming_llm", "recent_window="), "expected a whole number"));
  EXPECT_TRUE(contains(error_of("streaming_llm", "recent_window"), "expected a whole number"));
  EXPECT_TRUE(contains(error_of("random_eviction", "budget=120%"), "share to keep"));
  EXPECT_TRUE(contains(error_of("random_eviction", "shared=yes"), "true or false"));
}

TEST(MakePolicy, RefusedValueNamesClassFieldAndValue) {
  const std::string error =
      error_of("random_eviction", "budget=7,num_sink_tokens=4,recent_window=4");
  EXPECT_TRUE(contains(error, "RandomEviction")) << error;
  EXPECT_TRUE(contains(error, "budget = 7")) << error;
}

TEST(MakePolicy, MissingInputIsNamed) {
  const std::string error =
      error_of("epikv", "", {.shape = kShape, .supplied = Inputs::kAttention});
  EXPECT_TRUE(contains(error, "EpiKV: the engine does not supply hidden states")) << error;
}

TEST(MakePolicy, TablesOfTheModelReachThePolicy) {
  ModelInfo model{.shape = kShape};
  EXPECT_TRUE(contains(error_of("expected_attention", "", model), "ModelInfo.rotary"));
  EXPECT_TRUE(contains(error_of("qfilters", "", model), "query_filters"));
  model.rotary = RotaryEmbedding{.inv_freq = {1.0, 0.1}};
  EXPECT_TRUE(contains(error_of("capkv_stats", "", model), "query_statistics"));
  model.query_filters = std::make_shared<const QueryFilters>(kShape.num_layers *
                                                             kShape.num_kv_heads * kShape.head_dim);
  model.query_statistics = std::make_shared<const QueryStatistics>(kShape, true);
  for (const char* name : {"expected_attention", "expected_attention_stats", "capkv", "capkv_stats",
                           "qfilters", "leverage", "compactor", "noncausal", "lagkv", "chunkkv"}) {
    EXPECT_EQ(error_of(name, "", model), "") << name;
  }
}

TEST(MakePolicy, ScoresAreSuppliedOnlyWhereTheCallerSaysSo) {
  EXPECT_TRUE(contains(error_of("kvzip", "", {.shape = kShape}), "scores"));
  AnyPolicy policy = make_policy("external_scores", "budget=1,competition=lane",
                                 {.shape = kShape, .supplied = Inputs::kScores});
  EXPECT_TRUE(policy.wants_scores());
  Cache cache;
  policy.begin(3);
  const std::vector<float> scores = {0, 1, 0};
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
      policy.observe_scores(layer, head, scores);
  }
  policy.end_prefill(cache.view(3));
  const KeepMask& mask = policy.select(cache.view(3));
  EXPECT_TRUE(mask.keeps(1, 1, 1));
  EXPECT_EQ(mask.count(1, 1), 1U);
  // Others ignore them.
  AnyPolicy streaming = make_policy("streaming_llm", "", {.shape = kShape});
  EXPECT_FALSE(streaming.wants_scores());
  streaming.observe_scores(0, 0, scores);
}

TEST(MakePolicy, CaseAndSeparatorsInTheNameDoNotMatter) {
  for (const char* name : {"StreamingLLM", "streaming_llm", "Streaming-LLM", "streamingllm"}) {
    EXPECT_EQ(make_policy(name, "", {.shape = kShape}).name(), "StreamingLLM");
  }
}

TEST(MakePolicy, BudgetReadsTokensShareAndTotal) {
  Cache cache;
  // 20 tokens in 4 lanes: 5 tokens; a quarter of 20; 20 entries over 4 lanes. All keep 5 a lane.
  for (const char* budget : {"5", "25%", "total:20"}) {
    AnyPolicy policy =
        make_policy("random_eviction", std::string("budget=") + budget, {.shape = kShape});
    policy.begin(20);
    policy.end_prefill(cache.view(20));
    EXPECT_EQ(policy.select(cache.view(20)).count(1, 1), 5U) << budget;
  }
}

TEST(AnyPolicy, DecidesAsThePolicyInside) {
  Cache cache;
  StreamingLLM direct({.num_sink_tokens = 2, .recent_window = 3}, kShape);
  AnyPolicy any =
      make_policy("streaming_llm", "num_sink_tokens=2,recent_window=3", {.shape = kShape});
  for (auto* length : {"first", "second"}) {
    SCOPED_TRACE(length);
    direct.begin(10);
    any.begin(10);
    direct.append(10);
    any.append(10);
    const std::size_t n = direct.sequence().seq_len(0);
    direct.end_prefill(cache.view(n));
    any.end_prefill(cache.view(n));
    ASSERT_TRUE(any.should_evict());
    EXPECT_EQ(any.select(cache.view(n)), direct.select(cache.view(n)));
    const KeepMask mask = direct.select(cache.view(n));
    direct.apply(mask);
    any.apply(mask);
  }
  EXPECT_EQ(any.counters().evicted, direct.counters().evicted);
  EXPECT_EQ(any.length(), 20U);
}

// Options of every type come back as they were written.
TEST(AnyPolicy, EveryPolicyReadsItsOwnDescription) {
  ModelInfo model{.shape = kShape};
  model.rotary = RotaryEmbedding{.inv_freq = {1.0, 0.1}};
  for (const char* text :
       {"SnapKV(budget=total:4096,softmax_support=past)", "RandomEviction(budget=33.3333333%)",
        "InertiaKV(alpha=0.75)", "EvolKV(layer_budgets=3:5)", "AdaKV(floor=0.1)",
        "ExpectedAttention(budget=77)"}) {
    const AnyPolicy policy = make_policy(text, "", model);
    EXPECT_EQ(policy.describe(), text);
    EXPECT_EQ(make_policy(policy.describe(), "", model).describe(), text);
  }
}

TEST(AnyPolicy, CopyForksTheSequence) {
  Cache cache;
  AnyPolicy first = make_policy("streaming_llm", "", {.shape = kShape});
  first.append(3);
  AnyPolicy second = first;
  second.append(4);
  EXPECT_EQ(first.length(), 3U);
  EXPECT_EQ(second.length(), 7U);
  first = second;
  EXPECT_EQ(first.length(), 7U);
}

}  // namespace
