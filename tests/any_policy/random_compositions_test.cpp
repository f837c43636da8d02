// Policies put together at random by text: what holds for every policy holds for them.
#include "engine/policies.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/core/counters.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "support/layouts.hpp"
#include "support/random.hpp"
#include "support/test_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvevict {
namespace {

using kvevict_test::Random;
using Engine = kvevict_test::TestEngine<AnyPolicy>;

// GQA, odd widths, and layers enough for a table.
constexpr CacheShape kShape{
    .num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 5};
constexpr std::size_t kLanes = kShape.num_layers * kShape.num_kv_heads;
constexpr std::size_t kBudget = 10;  // tokens per KV head, of every policy here
constexpr std::size_t kPromptLen = 20;
constexpr std::size_t kSteps = 14;

/// Policies of kBudget tokens.
const std::vector<std::string>& policies() {
  static const std::vector<std::string> texts = {
      "AdaKV(budget=10,observation_window=4)",
      "AggregatedKeyDiff(budget=10)",
      "AggregatedTOVA(budget=10)",
      "AhaKV(budget=10,recent_window=3)",
      "CAKE(budget=10,observation_window=4)",
      "CapKV(budget=10)",
      "Compactor(budget=10,num_sink_tokens=2,recent_window=2)",
      "CriticalKV(budget=10,observation_window=4)",
      "CurDKV(budget=10)",
      "DefensiveKV(budget=10,observation_window=4)",
      "DropKV(budget=10,observation_window=4)",
      "EvolKV(budget=10,observation_window=4,layer_budgets=12:10:8)",
      "ExpectedAttention(budget=10)",
      "ExternalScores(budget=10,unscored=9)",
      "Finch(budget=10,observation_window=4)",
      "H2O(heavy=7,recent=3)",
      "H2O(heavy=7,recent=3,scope=layer)",
      "H2OCAOTE(heavy=7,recent=3)",
      "HeadKV(budget=10,observation_window=4,head_scores=1:2:3:1:2:3)",
      "KeyDiff(budget=10)",
      "Keyformer(heavy=7,recent=3,generation_len=8)",
      "Knorm(budget=10)",
      "LagKVBudget(budget=10,num_sink_tokens=2,lag_len=4)",
      "LaProx(budget=10,observation_window=4)",
      "LaProx(budget=10,observation_window=4,competition=model,normaliser=all_slots)",
      "LongFlow(budget=10)",
      "MeanCentredNorm(budget=10)",
      "NestedKV(budget=10)",
      "NonCausal(budget=10)",
      "PyramidKV(budget=10,observation_window=4)",
      "RandomAttention(budget=10,interval=1,recent_window=2)",
      "RandomEviction(budget=10)",
      "RKV(budget=10,buffer=1,observation_window=3)",
      "RocketKV(budget=10,split=false,observation_window=4,pool_kernel_size=5)",
      "SnapKV(budget=10,observation_window=4)",
      "TOVA(budget=10)",
      "TOVA(budget=10,scope=head)",
      "TwinKVKnorm(budget=10,twin_similarity=0.6,twin_distance=1,twin_recent=2)",
      "VaSE(budget=10,interval=1,num_sink_tokens=1,recent_window=2,observation_window=4)",
      "VATP(heavy=7,recent=3,num_sink_tokens=1)",
  };
  return texts;
}

struct Part {
  std::string text;
  bool keeps_exactly = true;  ///< the budget; else less may stay
  bool has_budgets = false;   ///< its own, in the place of the policy's
};
const std::vector<Part>& parts() {
  static const std::vector<Part> all = {
      {.text = "caote"},
      {.text = "fast_caote"},
      {.text = "values"},
      {.text = "pool(kernel_size=3)"},
      {.text = "pool(kernel_size=3,edge=shrink)"},
      {.text = "pool(kind=max,kernel_size=5)"},
      {.text = "forward_max(width=3)"},
      {.text = "sum_to_one"},
      {.text = "z_scores"},
      {.text = "at_least_mean"},
      {.text = "temporal(rule=ema,decay=0.5)"},
      {.text = "temporal(rule=lifetime_mean)"},
      {.text = "temporal(rule=max,refresh_interval=3)"},
      {.text = "temporal(score_free=true)"},
      {.text = "layer_shares"},
      {.text = "protect(num_sink_tokens=2,recent_window=4)"},
      {.text = "schedule(decode_interval=4)"},
      {.text = "schedule(slack=3)"},
      {.text = "schedule(cuts_prompts=false)"},
      {.text = "pyramid(beta=3)", .keeps_exactly = false},
      {.text = "layer_budgets(tokens=12:10:8)", .keeps_exactly = false},
      {.text = "head_scores(scores=1:2:3:1:2:3)", .keeps_exactly = false},
      {.text = "compression_ratios(ratios=0.5:0.4:0.3)", .has_budgets = true},
      {.text = "layer"},
      {.text = "model"},
      {.text = "ada(floor=0.3)"},
      {.text = "ada(rule=guarantee,floor=0.5)"},
      {.text = "chunks(chunk_len=3)", .keeps_exactly = false},
      {.text = "critical(first_stage=0.3)"},
      {.text = "critical(l2_norm=true)"},
      {.text = "twins(similarity=0.6,distance=1,num_sink_tokens=1,recent_window=2)"},
  };
  return all;
}

ModelInfo model_info() {
  constexpr std::size_t kHiddenSize = 8;
  auto projection = std::make_shared<OutputProjection>(kShape, kHiddenSize, std::nullopt, true);
  Random random(9);
  std::vector<float> weight(kShape.num_q_heads * kShape.value_size() * kHiddenSize);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (float& x : weight)
      x = random.eighths();
    projection->set_layer(layer, weight.data());
  }
  return {.shape = kShape,
          .supplied = ModelInfo{}.supplied | Inputs::kScores,
          .output_projection = projection,
          .rotary = RotaryEmbedding{.inv_freq = {1.0, 0.1, 0.01}}};
}

/// A policy and one to three parts.
struct Composition {
  std::string text;
  std::vector<std::size_t> chosen;  // policy, then parts
  bool keeps_exactly = true;
  bool has_budgets = false;
};
/// @param first_part  all get their turn
Composition draw(Random& random, std::size_t first_part) {
  Composition composition;
  composition.chosen = {random.below(policies().size()), first_part};
  for (std::size_t more = random.below(3); more > 0; --more)
    composition.chosen.push_back(random.below(parts().size()));
  composition.text = policies()[composition.chosen[0]];
  for (std::size_t i = 1; i < composition.chosen.size(); ++i) {
    const Part& part = parts()[composition.chosen[i]];
    composition.text += " + " + part.text;
    composition.keeps_exactly = composition.keeps_exactly && part.keeps_exactly;
    composition.has_budgets = composition.has_budgets || part.has_budgets;
  }
  return composition;
}

/// What a cut may leave: the budget of all lanes, and what was decoded where it comes on top.
std::size_t most_left(const Engine& engine) {
  std::size_t most = 0;
  std::size_t held = 0;
  for (const std::vector<std::size_t>& lane : engine.all_positions()) {
    const auto decoded = static_cast<std::size_t>(
        std::count_if(lane.begin(), lane.end(), [](std::size_t p) { return p >= kPromptLen; }));
    most += kBudget + (engine.policy.protection().after_prompt ? decoded : 0);
    held += lane.size();
  }
  return std::min(most, held);
}

/// Cuts if it is time to, and checks what the cut did.
bool cut(Engine& engine, const Composition& composition) {
  if (!engine.policy.should_evict())
    return false;
  const std::vector<std::byte> memory = engine.cache.memory();
  const AnyPolicy copy = engine.policy;
  const KeepMask mask = engine.select();
  EXPECT_EQ(engine.select(), mask);
  EXPECT_EQ(copy.select(engine.cache.view()), mask);
  EXPECT_EQ(engine.cache.memory(), memory);
  EXPECT_GT(mask.total_evicted(), 0U);
  if (!composition.has_budgets) {
    EXPECT_LE(mask.total_count(), most_left(engine));
    if (composition.keeps_exactly) {
      EXPECT_EQ(mask.total_count(), most_left(engine));
    }
  }
  const Protection windows = engine.policy.protection();
  const std::size_t end = windows.after_prompt ? kPromptLen : engine.length();
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      const std::vector<std::size_t>& positions = engine.positions(layer, head);
      EXPECT_GT(mask.count(layer, head), 0U);
      for (std::size_t slot = 0; slot < positions.size(); ++slot) {
        if (positions[slot] + windows.recent_window >= end ||
            positions[slot] < windows.num_sink_tokens) {
          EXPECT_TRUE(mask.keeps(layer, head, slot))
              << "layer " << layer << ", head " << head << ", position " << positions[slot];
        }
      }
    }
  }
  engine.evict(mask);
  EXPECT_FALSE(engine.policy.should_evict());
  const Sequence& sequence = engine.policy.sequence();
  for (std::size_t lane = 0; lane < sequence.num_lanes(); ++lane) {
    const std::vector<std::size_t>& positions =
        engine.all_positions()[lane * kLanes / sequence.num_lanes()];
    EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
    for (std::size_t slot = 0; slot < positions.size(); ++slot)
      EXPECT_EQ(static_cast<std::size_t>(sequence.position(lane, slot)), positions[slot]);
  }
  return true;
}

// More than half of what is drawn fits together, some of it for every policy and every part.
TEST(RandomCompositions, KeepWhatEveryPolicyKeeps) {
  const ModelInfo model = model_info();
  Random random(2026);
  std::map<std::string, std::size_t> used;  // by policy and by part
  for (std::size_t i = 0; i < 16 * parts().size(); ++i) {
    const Composition composition = draw(random, i % parts().size());
    std::optional<AnyPolicy> policy;
    try {
      policy = engine::make_policy(composition.text, "", model);
    } catch (const InvalidArgument&) {
      continue;  // parts that do not fit are other tests' matter
    }
    SCOPED_TRACE(composition.text);
    ++used[policies()[composition.chosen[0]]];
    for (std::size_t part = 1; part < composition.chosen.size(); ++part)
      ++used[parts()[composition.chosen[part]].text];
    const std::string description = policy->describe();
    const AnyPolicy read_back = engine::make_policy(description, "", model);
    EXPECT_EQ(read_back.describe(), description);

    const auto cache = kvevict_test::layouts::nhd(kShape, 64, ElementType::kF32);
    Engine engine(*policy, cache, {.seed = random.bits()});
    Engine twin(read_back, cache, engine.model);
    std::size_t num_cuts = 0;
    const auto step = [&] {
      num_cuts += cut(engine, composition) ? 1 : 0;
      twin.evict_if_due();
      ASSERT_EQ(engine.all_positions(), twin.all_positions());
    };
    engine.prompt(kPromptLen);
    twin.prompt(kPromptLen);
    step();
    for (std::size_t token = 0; token < kSteps; ++token) {
      engine.feed(1);
      twin.feed(1);
      step();
    }
    EXPECT_GT(num_cuts, 0U);
    EXPECT_TRUE(engine.cache_is_intact());
    if (testing::Test::HasFailure())
      return;  // one composition is enough to read
  }
  for (const std::string& text : policies())
    EXPECT_GT(used[text], 0U) << text;
  for (const Part& part : parts())
    EXPECT_GT(used[part.text], 0U) << part.text;
}

/// Policies by whose definition padding has a say.
const std::map<std::string, std::string>& minds_padding() {
  static const std::map<std::string, std::string> reasons = {
      {"Finch", "a row weighs as many slots as it sees"},
      {"Keyformer", "draws by position"},
      {"RandomAttention", "draws by position"},
      {"RandomEviction", "draws by position"},
      {"VaSE", "draws by position"},
  };
  return reasons;
}

std::string name_of(const std::string& text) {
  return text.substr(0, text.find('('));
}

/// What both have, the padded one's positions counted from its first token.
void expect_same_tokens(const Engine& plain, const Engine& padded) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::vector<std::size_t> expected = plain.all_positions()[lane];
    for (std::size_t& position : expected)
      position += padded.model.padding;
    std::vector<std::size_t> tokens = padded.all_positions()[lane];
    tokens.erase(tokens.begin(),
                 std::lower_bound(tokens.begin(), tokens.end(), padded.model.padding));
    EXPECT_EQ(tokens, expected) << "lane " << lane;
  }
}

// Rule R9: a run behind padding, whatever lies there, is the run without it.
TEST(RandomCompositions, NeitherReadNorCountPadding) {
  const ModelInfo model = model_info();
  Random random(9);
  std::map<std::string, std::size_t> used;
  for (std::size_t i = 0; i < 24 * parts().size(); ++i) {
    const Composition composition = draw(random, i % parts().size());
    std::optional<AnyPolicy> policy;
    try {
      policy = engine::make_policy(composition.text, "", model);
    } catch (const InvalidArgument&) {
      continue;
    }
    if (minds_padding().count(name_of(composition.text)) > 0)
      continue;
    // z-scores have a sum of nothing but rounding, which what divides by it makes large.
    const auto has = [&](const char* part) {
      return composition.text.find(part) != std::string::npos;
    };
    if (has("z_scores") && (has("caote") || has("sum_to_one")))
      continue;
    const auto cache = kvevict_test::layouts::nhd(kShape, 128, ElementType::kF32);
    const std::uint64_t seed = random.bits();
    // Within a word of slots and with a whole one.
    const std::size_t padding = random.below(4) == 0 ? 64 : 1 + random.below(5);
    const std::size_t len = 14 + random.below(15);
    const std::size_t num_waiting = random.below(4);  // tokens that come before the first cut
    SCOPED_TRACE(composition.text + ", padding " + std::to_string(padding) + ", prompt " +
                 std::to_string(len) + ", then " + std::to_string(num_waiting));
    Engine plain(*policy, cache, {.seed = seed});
    Engine padded(*policy, cache, {.seed = seed, .padding = padding});
    plain.prompt(len);
    padded.prompt(padding + len);
    for (std::size_t token = 0; token < num_waiting; ++token) {
      plain.feed(1);
      padded.feed(1);
    }
    if (!plain.policy.should_evict())
      continue;  // padding alone may make a cut due
    ++used[policies()[composition.chosen[0]]];
    for (std::size_t part = 1; part < composition.chosen.size(); ++part)
      ++used[parts()[composition.chosen[part]].text];
    for (std::size_t token = 0; token < 8; ++token) {
      EXPECT_EQ(plain.evict_if_due(), padded.evict_if_due());
      expect_same_tokens(plain, padded);
      plain.feed(1);
      padded.feed(1);
    }
    const Counters expected = plain.policy.counters();
    const Counters counters = padded.policy.counters();
    EXPECT_EQ(counters.non_finite, expected.non_finite);
    EXPECT_EQ(counters.missing_signals, expected.missing_signals);
    EXPECT_EQ(counters.protected_entries, expected.protected_entries);
    EXPECT_EQ(counters.budget_not_reached, expected.budget_not_reached);
    EXPECT_EQ(counters.kept, expected.kept);
    if (testing::Test::HasFailure())
      return;
  }
  for (const std::string& text : policies())
    EXPECT_EQ(used[text] > 0, minds_padding().count(name_of(text)) == 0) << text;
  for (const Part& part : parts())
    EXPECT_GT(used[part.text], 0U) << part.text;
}

}  // namespace
}  // namespace kvevict
