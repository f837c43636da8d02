#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/policies/aggregated.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy aggregated_tova`: scores over steps.
namespace kvevict_test {
namespace {

/// One run with the prompt in pieces of `chunk` tokens.
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name, RowSource source,
         std::size_t chunk) {
  const PromptLogits logits(golden);
  kvevict::AggregatedTOVA::Options options;
  set_run_options<kvevict::AggregatedTOVA>(golden, name, options);
  kvevict::AggregatedTOVA policy(options, logits.shape());
  report.covers(kvevict::AggregatedTOVA::kName);
  PositionCache cache(logits.shape());
  const std::size_t num_lanes = policy.sequence().num_lanes();
  const auto append = [&](std::size_t done, std::size_t count) {
    policy.append(count);
    cache.append(count);
    logits.hand_over(policy, cache, done + count - 1, count, source);
    policy.observe_cache(cache.view());
  };
  const auto compare_kept = [&](const std::string& record) {
    std::vector<std::size_t> kept;
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const std::vector<std::size_t> positions = cache.positions(0, lane);
      kept.insert(kept.end(), positions.begin(), positions.end());
    }
    report.equal(record, golden.tensor(record).values, kept);
  };
  policy.begin(logits.prompt_len());
  for (std::size_t done = 0; done < logits.prompt_len(); done += chunk)
    append(done, std::min(chunk, logits.prompt_len() - done));
  policy.end_prefill(cache.view());
  cut(policy, cache);
  compare_kept(name + ".prefill_kept");
  std::vector<double> evicted;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    append(logits.prompt_len() + step, 1);
    cut_one(policy, cache, evicted);
  }
  report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, evicted);
  compare_kept(name + ".kept");
  std::vector<float> scores;
  for (std::size_t lane = 0; lane < num_lanes; ++lane) {
    const std::vector<float> of_lane = lane_scores(policy, cache, lane);
    scores.insert(scores.end(), of_lane.begin(), of_lane.end());
  }
  report.scores(name + ".scores", golden.tensor(name + ".scores").values, scores);
}

}  // namespace

void run_aggregated_tova(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    run(golden, report, name, RowSource::kRows, golden.count("num_prompt"));
    run(golden, report, name, RowSource::kQueries, golden.count("num_prompt"));
    refuse_other_options(golden, name);
  }
}

}  // namespace kvevict_test
