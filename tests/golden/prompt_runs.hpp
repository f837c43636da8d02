#ifndef KVEVICT_TESTS_GOLDEN_PROMPT_RUNS_HPP_
#define KVEVICT_TESTS_GOLDEN_PROMPT_RUNS_HPP_

#include "golden/run_options.hpp"
#include "golden/window_prompt.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace kvevict_test {

/// The prompt of a case with runs; `int window` says how many queries there are, if any.
[[nodiscard]] inline WindowPrompt prompt_of_runs(const GoldenCase& golden) {
  return {golden, golden.has("window") ? golden.count("window") : 0};
}

/// One run of a policy over a prompt, in every way in which it may be fed: Ll.RUN.scores
/// [num_kv_heads, the first slots, those that compete], without heads where they share a set,
/// RUN.budgets, entries of every KV head, and keep.RUN [num_layers, num_kv_heads, n].
/// @param options  those that the case does not have
template <class P>
void compare_prompt_run(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                        const std::string& run, typename P::Options options = {}) {
  report.covers(P::kName);
  if constexpr (requires { options.observation_window; })
    options.observation_window = prompt.window;
  set_run_options<P>(golden, run, options);
  for (const WindowPrompt::Way& way : prompt.ways()) {
    P policy(options, prompt.shape);
    prompt.feed(policy, way);
    const std::vector<float> scores = prompt.finished_scores(policy);
    const std::size_t slots = scores.size() / prompt.shape.num_layers;
    for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
      const std::string record = "L" + std::to_string(layer) + "." + run + ".scores";
      const GoldenCase::Tensor& expected = golden.tensor(record);
      const auto first = scores.begin() + static_cast<std::ptrdiff_t>(layer * slots);
      report.scores(record + ", " + way.name, expected.values,
                    prompt.first_slots({first, first + static_cast<std::ptrdiff_t>(slots)},
                                       expected.shape.back()));
    }
    const std::vector<int> keep = prompt.keep(policy);
    report.equal("keep." + run + ", " + way.name, golden.tensor("keep." + run).values, keep);
    if (!golden.has(run + ".budgets"))
      continue;
    std::vector<std::size_t> budgets;
    for (auto lane = keep.begin(); lane != keep.end();) {
      const auto end = lane + static_cast<std::ptrdiff_t>(prompt.len);
      budgets.push_back(static_cast<std::size_t>(std::count(lane, end, 1)));
      lane = end;
    }
    report.equal(run + ".budgets", golden.tensor(run + ".budgets").values, budgets);
  }
  refuse_other_options(golden, run);
}

/// All runs of a policy that takes everything from its case.
template <class P>
void compare_prompt_runs(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt = prompt_of_runs(golden);
  for (const std::string& run : golden.words("runs"))
    compare_prompt_run<P>(golden, report, prompt, run);
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_PROMPT_RUNS_HPP_
