// With an executor every policy decides as without one, bit by bit, however many workers there are.
#include "kvevict/core/executor.hpp"
#include "kvevict/selection/projection.hpp"
#include "kvevict/views/compact.hpp"
#include "support/policy_cases.hpp"
#include "support/threads.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

/// What can be seen of a run from outside.
struct Outcome {
  std::vector<kvevict::KeepMask> masks;
  /// One set for all: the slots by the sum of their scores over heads and layers, so that a score
  /// that differs shows where a lane's own order does not.
  std::vector<kvevict::KeepMask> projected;
  std::vector<std::array<std::size_t, 8>> counters;
  std::vector<std::vector<std::size_t>> positions;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::array<std::size_t, 8> numbers_of(const kvevict::Counters& c) {
  return {c.steps,           c.firings,    c.evicted,           c.kept, c.protected_entries,
          c.missing_signals, c.non_finite, c.budget_not_reached};
}

Outcome run_with(const PolicyCase& policy, const kvevict::Executor& executor, ToyModel model) {
  // Several blocks of rows for a policy that wants all, and something to choose for all.
  constexpr std::size_t kPromptLen = 70;
  AnyEngine engine(policy.make(38),
                   layouts::paged(kToyShape, 160, kvevict::ElementType::kF16, 8, true, false),
                   model);
  engine.policy.use_executor(executor);
  kvevict::Projection projection({.scope = kvevict::MaskScope::kModel}, kToyShape);
  Outcome run;
  const auto look = [&] {
    if (run.masks.empty())  // while lanes are of one length
      run.projected.push_back(engine.policy.select(engine.cache.view(), projection));
    run.masks.push_back(engine.select());
    if (engine.policy.should_evict())
      engine.evict(run.masks.back());
    run.counters.push_back(numbers_of(engine.policy.counters()));
  };
  engine.prompt(kPromptLen, 41);
  look();
  for (std::size_t step = 0; step < 6; ++step) {
    engine.feed(step == 3 ? 2 : 1);
    look();
  }
  run.positions = engine.all_positions();
  return run;
}

class Workers : public testing::TestWithParam<PolicyCase> {};
INSTANTIATE_TEST_SUITE_P(Policies, Workers, testing::ValuesIn(policy_cases()),
                         [](const auto& policy) { return policy.param.name; });

TEST_P(Workers, DecideAsOneDoes) {
  for (const std::optional<std::size_t> nan_position :
       {std::optional<std::size_t>(), std::optional<std::size_t>(5)}) {
    const ToyModel model{.nan_position = nan_position};
    const Outcome expected = run_with(GetParam(), {}, model);
    if (GetParam().name != "FullKV") {
      EXPECT_GT(expected.counters.back()[1], 0U) << "nothing was cut";
    }
    for (const std::size_t num_workers : {1U, 2U, 3U, 7U}) {
      EXPECT_TRUE(run_with(GetParam(), threads(num_workers), model) == expected)
          << num_workers << " workers" << (nan_position ? ", a token of NaN" : "");
    }
  }
}

// Forks that go on at the same time share the executor and nothing else.
TEST_P(Workers, SurviveACopy) {
  AnyEngine engine = GetParam().engine(20);
  engine.policy.use_executor(threads(3));
  engine.prompt(30);
  AnyEngine fork = engine;
  const kvevict::KeepMask mask = engine.select();
  engine = GetParam().engine(20);  // nothing of the first is left
  EXPECT_EQ(fork.select(), mask);
}

}  // namespace
}  // namespace kvevict_test
