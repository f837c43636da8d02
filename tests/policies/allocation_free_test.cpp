// Policies allocate only while the cache grows: counted by a global operator new that counts on
// this thread, and only while a library call runs.
#include "kvevict/any_policy.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/plan.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/selection/projection.hpp"
#include "kvevict/views/compact.hpp"
#include "support/count_allocations.hpp"
#include "support/policy_cases.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

using Counts = std::map<std::string, std::size_t>;  // by call, those that allocated

/// Counts as long as it lives.
class Counting {
 public:
  Counting(Counts& counts, const char* call) : counts_(&counts), call_(call) {}
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  ~Counting() {
    if (const std::size_t count = allocations_.stop(); count > 0)
      (*counts_)[call_] += count;
  }

 private:
  Counts* counts_;
  const char* call_;
  CountedAllocations allocations_;
};

/// Stands between an engine and its policy.
class CountingPolicy {
 public:
  CountingPolicy(AnyTestPolicy policy, Counts& counts)
      : policy_(std::move(policy)), counts_(&counts) {}

  // Where a request starts and ends memory may be taken.
  void begin(std::size_t count, std::span<const kvevict::PositionSpan> pinned) {
    policy_.begin(count, pinned);
  }
  void truncate(std::size_t length) { policy_.truncate(length); }
  void reset() { policy_.reset(); }
  void use_executor(const kvevict::Executor& executor) { policy_.use_executor(executor); }

  void append(std::size_t count) {
    const Counting counting(*counts_, "append");
    policy_.append(count);
  }
  [[nodiscard]] std::size_t wanted_attention_rows(std::size_t layer) const {
    const Counting counting(*counts_, "wanted_attention_rows");
    return policy_.wanted_attention_rows(layer);
  }
  [[nodiscard]] kvevict::AttentionUse attention_use() const { return policy_.attention_use(); }
  [[nodiscard]] bool wants_hidden(std::size_t layer) const {
    const Counting counting(*counts_, "wants_hidden");
    return policy_.wants_hidden(layer);
  }
  void observe_attention(std::size_t layer, const kvevict::AttentionRows& rows) {
    const Counting counting(*counts_, "observe_attention");
    policy_.observe_attention(layer, rows);
  }
  template <class View>
  void observe_queries(std::size_t layer, const kvevict::QueryRows& rows, const View& view) {
    const Counting counting(*counts_, "observe_queries");
    policy_.observe_queries(layer, rows, view);
  }
  void observe_hidden(std::size_t layer, const kvevict::HiddenRows& rows) {
    const Counting counting(*counts_, "observe_hidden");
    policy_.observe_hidden(layer, rows);
  }
  template <class View>
  void observe_cache(const View& view) {
    const Counting counting(*counts_, "observe_cache");
    policy_.observe_cache(view);
  }
  template <class View>
  void end_prefill(const View& view) {
    const Counting counting(*counts_, "end_prefill");
    policy_.end_prefill(view);
  }
  [[nodiscard]] bool should_evict() const {
    const Counting counting(*counts_, "should_evict");
    return policy_.should_evict();
  }
  template <class View>
  [[nodiscard]] const kvevict::KeepMask& select(const View& view) const {
    const Counting counting(*counts_, "select");
    return policy_.select(view);
  }
  void apply(const kvevict::KeepMask& mask) {
    const Counting counting(*counts_, "apply");
    policy_.apply(mask);
  }

 private:
  AnyTestPolicy policy_;
  Counts* counts_;
};

class AllocationFree : public testing::TestWithParam<std::tuple<PolicyCase, RowsFrom>> {
 protected:
  Counts counts;

  TestEngine<CountingPolicy> make_engine() {
    const auto& [policy, rows_from] = GetParam();
    return {CountingPolicy(policy.make(workload(policy).budget), counts),
            rows_from == RowsFrom::kEngine
                ? layouts::nhd(kToyShape, 200, kvevict::ElementType::kF32)
                : layouts::paged(kToyShape, 200, kvevict::ElementType::kF16, 8, true, false),
            {},
            rows_from};
  }
  static void run(TestEngine<CountingPolicy>& engine) {
    const Workload load = workload(std::get<0>(GetParam()));
    engine.prompt(load.prompt_len, 6);
    engine.evict_if_due();
    engine.decode(load.num_steps);
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, AllocationFree,
                         testing::Combine(testing::ValuesIn(policy_cases()),
                                          testing::Values(RowsFrom::kQueries, RowsFrom::kEngine)),
                         [](const auto& policy) {
                           const bool queries = std::get<1>(policy.param) == RowsFrom::kQueries;
                           return std::get<0>(policy.param).name + (queries ? "_queries" : "_rows");
                         });

// The counter counts: the first request has to take memory somewhere.
TEST_P(AllocationFree, TheFirstRequestTakesMemory) {
  if (std::get<0>(GetParam()).name == "FullKV")
    GTEST_SKIP() << "keeps no state";
  TestEngine<CountingPolicy> engine = make_engine();
  run(engine);
  EXPECT_FALSE(counts.empty());
}

TEST_P(AllocationFree, ASecondRequestOfTheSameLengthTakesNone) {
  TestEngine<CountingPolicy> engine = make_engine();
  run(engine);
  engine.reset();
  counts.clear();
  run(engine);
  EXPECT_EQ(counts, Counts{});
}

// Three workers on this thread, whose allocations are seen. Each time another one is the first and
// takes most lanes: one that meets a longer lane than ever needs no memory for it.
TEST_P(AllocationFree, NorDoWorkers) {
  if (std::get<1>(GetParam()) == RowsFrom::kEngine)
    GTEST_SKIP() << "selects as with queries";
  std::size_t first = 0;
  const kvevict::Executor workers(3, [&](std::size_t n, kvevict::Executor::Task task) {
    for (std::size_t i = 0; i < n; ++i)
      task((first + i) % n);
    ++first;
  });
  TestEngine<CountingPolicy> engine = make_engine();
  engine.policy.use_executor(workers);
  run(engine);
  engine.reset();
  counts.clear();
  run(engine);
  EXPECT_EQ(counts, Counts{});
}

TEST_P(AllocationFree, ACacheThatNoLongerGrowsTakesNone) {
  const PolicyCase& policy = std::get<0>(GetParam());
  const bool grows = policy.grows || policy.name == "FullKV" || policy.name == "LagKV" ||
                     policy.make(64).trigger() == kvevict::Trigger::kPrefillEnd;
  if (grows)
    GTEST_SKIP() << "keeps what is decoded, or a share of it";
  TestEngine<CountingPolicy> engine = make_engine();
  run(engine);
  counts.clear();
  engine.decode(100);
  EXPECT_EQ(counts, Counts{});
}

// What is around a policy: AnyPolicy, a projection, compaction, plans of a mask.
TEST(AllocationFreeAround, ProjectionCompactionAndPlansTakeNone) {
  Counts counts;
  TestEngine<kvevict::AnyPolicy> engine(
      kvevict::AnyPolicy(kvevict::Knorm({.budget = 24}, kToyShape)),
      layouts::paged(kToyShape, 200, kvevict::ElementType::kF16, 8, true, false));
  kvevict::Projection projection({.scope = kvevict::MaskScope::kLayer}, kToyShape);
  LayoutCache copy = layouts::paged(kToyShape, 200, kvevict::ElementType::kF16, 8, true, false);
  std::vector<std::uint32_t> pages(200 / 8);
  std::vector<std::int32_t> slots(200);
  std::size_t seen = 0;
  const auto steps = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      engine.feed(1);
      if (!engine.policy.should_evict())
        continue;
      for (std::size_t layer = 0; layer < kToyShape.num_layers; ++layer) {
        for (std::size_t head = 0; head < kToyShape.num_kv_heads; ++head)
          copy.length(layer, head) = engine.cache.length(layer, head);
      }
      const kvevict::KeepMask* mask = nullptr;
      {
        const Counting counting(counts, "select, compact, plans");
        mask = &engine.policy.select(engine.cache.view(), projection);
        kvevict::compact(copy.view(), *mask);
        const auto see = [&](std::size_t, std::size_t, std::size_t) { ++seen; };
        kvevict::for_each_move(*mask, 0, 0, see);
        mask->for_each_evicted_run(0, 0, [&](std::size_t, std::size_t) { ++seen; });
        seen += kvevict::kept_pages(*mask, 0, 0, 8, pages);
        mask->slot_map(0, 0, slots);
      }
      engine.evict(*mask);
    }
  };
  engine.prompt(40);
  steps(20);
  EXPECT_GT(seen, 0U);
  counts.clear();
  seen = 0;
  steps(20);
  EXPECT_GE(seen, 20U);
  EXPECT_EQ(counts, Counts{});
}

}  // namespace
}  // namespace kvevict_test
