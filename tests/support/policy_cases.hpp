#ifndef KVEVICT_TESTS_SUPPORT_POLICY_CASES_HPP_
#define KVEVICT_TESTS_SUPPORT_POLICY_CASES_HPP_

#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "support/any_test_policy.hpp"
#include "support/layouts.hpp"
#include "support/test_engine.hpp"

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace kvevict_test {

/// GQA, odd widths, enough layers for the bands of the depth to differ.
inline constexpr kvevict::CacheShape kToyShape{
    .num_layers = 4, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 5};

using AnyEngine = TestEngine<AnyTestPolicy>;

/// A policy, or a variant that reads or chooses something else, as the common tests see it.
struct PolicyCase {
  std::string name;
  std::function<AnyTestPolicy(std::size_t budget, const kvevict::kernels::KernelSet& kernel)>
      make_with;
  /// Exactly min(budget, n) stay (rule R2); otherwise the policy may cut deeper by design.
  bool keeps_exactly = true;
  /// NaN in what it reads shows in its counters; otherwise the definition turns it into a score.
  bool counts_non_finite = true;
  /// Keeps a share of all tokens, or all of some lanes: its cache grows with the text, and a share
  /// takes something from the shortest prompt.
  bool grows = false;
  /// Takes samples of steps as they were made: several tokens in one are one sample, and what
  /// drafts added stays.
  bool samples_steps = false;

  [[nodiscard]] AnyTestPolicy make(std::size_t budget) const {
    return make_with(budget, kvevict::kernels::best());
  }
  [[nodiscard]] AnyEngine engine(std::size_t budget, ToyModel model = {},
                                 RowsFrom rows_from = RowsFrom::kQueries) const {
    return {make(budget), layouts::nhd(kToyShape, 100, kvevict::ElementType::kF32), model,
            rows_from};
  }
  friend std::ostream& operator<<(std::ostream& out, const PolicyCase& policy) {
    return out << policy.name;
  }
};

/// All of them; listed in policies/policy_cases_test.cpp, where a new one is a line.
[[nodiscard]] const std::vector<PolicyCase>& policy_cases();

/// A prompt and decode steps behind it in which the policy has something to cut.
struct Workload {
  std::size_t budget = 10;
  std::size_t prompt_len = 20;
  std::size_t num_steps = 20;
};
[[nodiscard]] inline Workload workload(const PolicyCase& policy) {
  // What fires while decoding may hold the whole prompt and then some.
  const bool in_decode = policy.make(64).trigger() == kvevict::Trigger::kDecodeSteps;
  return {.budget = in_decode ? 28U : 10U};
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_POLICY_CASES_HPP_
