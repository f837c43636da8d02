#ifndef KVEVICT_TESTS_GOLDEN_HEAVY_AND_RECENT_RUNS_HPP_
#define KVEVICT_TESTS_GOLDEN_HEAVY_AND_RECENT_RUNS_HPP_

#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/types.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Cases of H2O and of the policies that have a heavy and a recent part as it has.
namespace kvevict_test {

/// One run with the prompt in pieces of `chunk` tokens.
template <class P>
void compare_heavy_and_recent_run(const GoldenCase& golden, GoldenReport& report,
                                  const std::string& name, const typename P::Options& options,
                                  RowSource source, std::size_t chunk) {
  const PromptLogits logits(golden);
  const std::size_t prompt_len = logits.prompt_len();
  P policy(options, logits.shape());
  report.covers(P::kName);
  const std::size_t num_lanes = policy.sequence().num_lanes();
  const auto append_scores = [&](PositionCache& cache, std::vector<double>& scores) {
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const std::vector<float> sums = lane_scores(policy, cache, lane);
      scores.insert(scores.end(), sums.begin(), sums.end());
    }
  };
  const auto append_positions = [&](const PositionCache& cache, std::vector<double>& kept) {
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const std::vector<std::size_t> positions = cache.positions(0, lane);
      kept.insert(kept.end(), positions.begin(), positions.end());
    }
  };

  std::optional<GoldenCase::Tensor> values;
  if (golden.has("values")) {
    values = golden.tensor("values");
    values->shape.insert(values->shape.begin(), 1);  // layers
  }
  PositionCache cache(logits.shape(), std::move(values));
  policy.begin(prompt_len);
  for (std::size_t done = 0; done < prompt_len;) {
    const std::size_t count = std::min(chunk, prompt_len - done);
    policy.append(count);
    cache.append(count);
    report.is_true(name + ": every row is wanted", policy.wanted_attention_rows(0) == count);
    done += count;
    logits.hand_over(policy, cache, done - 1, count, source);
    report.is_true(name + ": no cut inside the prompt",
                   done == prompt_len || !policy.should_evict());
  }
  policy.end_prefill(cache.view());
  std::vector<double> scores;
  append_scores(cache, scores);
  report.scores(name + ".prefill_scores", golden.tensor(name + ".prefill_scores").values, scores);
  cut(policy, cache);
  std::vector<double> kept;
  append_positions(cache, kept);
  report.equal(name + ".prefill_kept", golden.tensor(name + ".prefill_kept").values, kept);

  std::vector<double> evicted;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    logits.hand_over(policy, cache, prompt_len + step, 1, source);
    cut_one(policy, cache, evicted);
  }
  report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, evicted);
  kept.clear();
  append_positions(cache, kept);
  report.equal(name + ".kept", golden.tensor(name + ".kept").values, kept);
  scores.clear();
  append_scores(cache, scores);
  report.scores(name + ".scores", golden.tensor(name + ".scores").values, scores);
}

/// All runs: "shared" has one set for all heads, "per_head" one for each unless it says otherwise.
template <class P>
void compare_heavy_and_recent_runs(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    typename P::Options options;
    if (golden.has("heavy")) {  // for all runs
      options.heavy = golden.count("heavy");
      options.recent = golden.count("recent");
    }
    if (name == "shared")
      options.scope = kvevict::MaskScope::kModel;
    const std::size_t num_options = set_run_options<P>(golden, name, options);
    if (num_options == 0 && name != "shared" && name != "per_head")
      throw std::runtime_error("no run " + name);
    refuse_other_options(golden, name);
    const std::size_t prompt_len = golden.count("num_prompt");
    compare_heavy_and_recent_run<P>(golden, report, name, options, RowSource::kRows, prompt_len);
    compare_heavy_and_recent_run<P>(golden, report, name, options, RowSource::kQueries, prompt_len);
    compare_heavy_and_recent_run<P>(golden, report, name, options, RowSource::kQueries, 5);
  }
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_HEAVY_AND_RECENT_RUNS_HPP_
