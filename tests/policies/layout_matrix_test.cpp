// The same content through every layout gives the same masks, bit by bit, and so it does through
// every instruction set.
#include "kvevict/kernels/kernels.hpp"
#include "support/policy_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

/// Every mask that a run applies, in order, and what is kept in the end.
struct Outcome {
  std::vector<kvevict::KeepMask> masks;
  std::vector<std::vector<std::size_t>> positions;
  bool cache_is_intact = false;
};

Outcome run_with(const PolicyCase& policy, const LayoutCache& cache,
                 const kvevict::kernels::KernelSet& kernel) {
  const Workload load = workload(policy);
  AnyEngine engine(policy.make_with(load.budget, kernel), cache);
  Outcome run;
  const auto evict = [&] {
    if (!engine.policy.should_evict())
      return;
    run.masks.push_back(engine.select());
    engine.evict(run.masks.back());
  };
  engine.prompt(load.prompt_len);
  evict();
  for (std::size_t step = 0; step < load.num_steps; ++step) {
    engine.feed(1);
    evict();
  }
  run.positions = engine.all_positions();
  run.cache_is_intact = engine.cache_is_intact();
  return run;
}

class LayoutMatrix : public testing::TestWithParam<PolicyCase> {};
INSTANTIATE_TEST_SUITE_P(Policies, LayoutMatrix, testing::ValuesIn(policy_cases()),
                         [](const auto& policy) { return policy.param.name; });

std::vector<const kvevict::kernels::KernelSet*> kernel_sets() {
  using kvevict::kernels::Isa;
  std::vector<const kvevict::kernels::KernelSet*> sets;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (kvevict::kernels::is_available(isa))
      sets.push_back(&kvevict::kernels::get(isa));
  }
  return sets;
}

// No two scores of the toy model that decide something are within rounding of each other, so what
// the instruction sets compute in their own order decides alike (rule R18).
TEST_P(LayoutMatrix, EveryLayoutAndInstructionSetGivesTheSameMasks) {
  const std::vector<Layout> layouts = all_layouts();
  const auto& scalar = kvevict::kernels::get(kvevict::kernels::Isa::kScalar);
  const Outcome expected = run_with(GetParam(), layouts[0].make(kToyShape, 48), scalar);
  EXPECT_TRUE(expected.cache_is_intact);
  if (GetParam().name != "FullKV") {
    ASSERT_FALSE(expected.masks.empty());
    EXPECT_GT(expected.masks[0].total_evicted(), 0U);
  }
  for (const auto* kernel : kernel_sets()) {
    for (const Layout& layout : layouts) {
      const Outcome run = run_with(GetParam(), layout.make(kToyShape, 48), *kernel);
      const auto where = [&] {
        return layout.name + ", instruction set " + std::to_string(static_cast<int>(kernel->isa));
      };
      EXPECT_EQ(run.masks, expected.masks) << where();
      EXPECT_EQ(run.positions, expected.positions) << where();
      EXPECT_TRUE(run.cache_is_intact) << where();
    }
  }
}

/// A view that also says which slots are valid.
class ValidView {
 public:
  ValidView(const LayoutCache::View& view, const std::vector<std::uint8_t>& valid)
      : view_(view), valid_(&valid) {}
  [[nodiscard]] kvevict::CacheShape shape() const { return view_.shape(); }
  [[nodiscard]] kvevict::Lane lane(std::size_t layer, std::size_t head) const {
    kvevict::Lane lane = view_.lane(layer, head);
    lane.valid = *valid_;
    return lane;
  }

 private:
  LayoutCache::View view_;
  const std::vector<std::uint8_t>* valid_;
};

TEST_P(LayoutMatrix, AMaskThatCallsAllSlotsValidChangesNothing) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  if (engine.policy.trigger() == kvevict::Trigger::kDecodeSteps)
    engine.feed(12);
  const kvevict::KeepMask expected = engine.select();
  const std::vector<std::uint8_t> valid(100, 1);
  EXPECT_EQ(engine.policy.select(ValidView(engine.cache.view(), valid)), expected);
}

// R9: slots that hold no token are never kept, whatever the policy thinks of them.
TEST_P(LayoutMatrix, SlotsThatAreNotValidAreNeverKept) {
  const Workload load = workload(GetParam());
  AnyEngine engine = GetParam().engine(load.budget);
  engine.prompt(load.prompt_len);
  if (engine.policy.trigger() == kvevict::Trigger::kDecodeSteps)
    engine.feed(12);
  std::vector<std::uint8_t> valid(100, 1);
  for (const std::size_t slot : {0U, 3U, 8U})
    valid[slot] = 0;
  const kvevict::KeepMask& mask = engine.policy.select(ValidView(engine.cache.view(), valid));
  for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kToyShape.num_kv_heads; ++head) {
      for (const std::size_t slot : {0U, 3U, 8U})
        EXPECT_FALSE(mask.keeps(layer, head, slot));
    }
  }
  if (GetParam().name != "FullKV" && GetParam().keeps_exactly) {
    EXPECT_EQ(mask.total_count(), engine.select().total_count());
  }
}

/// Cases whose definition lets padding have a say, and why.
const std::map<std::string, std::string>& policies_that_mind_padding() {
  static const std::map<std::string, std::string> reasons = {
      {"Finch", "a row weighs as many slots as it sees"},
      {"FinchChunks", "a row weighs as many slots as it sees"},
      {"InertiaKVLazy", "counts in the mean at which a token enters, until the first cut"},
      {"Keyformer", "draws by position"},
      {"RaaSBounds", "pages of a prompt begin at its first slot"},
      {"Random", "draws by position"},
      {"RandomAtPrefillEnd", "draws by position"},
      {"RandomAttention", "draws by position"},
      {"ScissorHands", "an even share is one of the slots that a row sees"},
      {"TableScore", "scores by slot"},
      {"VaSE", "draws by position"},
  };
  return reasons;
}

// R9: a run behind left padding, whatever lies there, is the run without it.
TEST_P(LayoutMatrix, LeftPaddingIsNotThere) {
  if (policies_that_mind_padding().count(GetParam().name) > 0)
    return;
  const Workload load = workload(GetParam());
  for (const std::size_t padding : {1U, 3U, 64U}) {
    SCOPED_TRACE(padding);
    const auto cache = layouts::nhd(kToyShape, 128, kvevict::ElementType::kF32);
    AnyEngine plain(GetParam().make(load.budget), cache);
    AnyEngine padded(GetParam().make(load.budget), cache, {.padding = padding});
    // Padding alone may make a cut due, which then takes nothing else.
    const auto cut = [&] {
      plain.evict_if_due();
      padded.evict_if_due();
      for (std::size_t lane = 0; lane < plain.all_positions().size(); ++lane) {
        std::vector<std::size_t> expected = plain.all_positions()[lane];
        for (std::size_t& position : expected)
          position += padding;
        std::vector<std::size_t> tokens = padded.all_positions()[lane];
        tokens.erase(tokens.begin(), std::lower_bound(tokens.begin(), tokens.end(), padding));
        ASSERT_EQ(tokens, expected) << "lane " << lane;
      }
    };
    plain.prompt(load.prompt_len);
    padded.prompt(padding + load.prompt_len);
    cut();
    for (std::size_t step = 0; step < load.num_steps && !HasFatalFailure(); ++step) {
      plain.feed(1);
      padded.feed(1);
      cut();
    }
    EXPECT_EQ(padded.policy.counters().non_finite, plain.policy.counters().non_finite);
    EXPECT_EQ(padded.policy.counters().missing_signals, plain.policy.counters().missing_signals);
  }
}

}  // namespace
}  // namespace kvevict_test
