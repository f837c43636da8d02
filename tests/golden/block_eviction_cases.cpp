#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/policies/block_eviction.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

// Cases of `text policy block_eviction`; a run with representatives is one of KVCrush.
namespace kvevict_test {
namespace {

/// One run with the prompt in pieces of `chunk` tokens.
template <class P>
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name, RowSource source,
         std::size_t chunk) {
  const PromptLogits logits(golden);
  typename P::Options options;
  set_run_options<P>(golden, name, options);
  P policy(options, logits.shape());
  report.covers(P::kName);
  PositionCache cache(logits.shape());
  std::size_t event = 0;
  const auto cut_and_compare = [&](double step) {
    if (!policy.should_evict())
      return;
    const std::string record = name + ".event." + std::to_string(event++) + ".";
    report.is_true(record + "step", golden.real(record + "step") == step);
    report.equal(record + "positions", golden.tensor(record + "positions").values,
                 cache.positions(0, 0));
    report.scores(record + "scores", golden.tensor(record + "scores").values,
                  lane_scores(policy, cache, 0));
    cut(policy, cache);
    report.equal(record + "kept", golden.tensor(record + "kept").values, cache.positions(0, 0));
  };
  policy.begin(logits.prompt_len());
  for (std::size_t done = 0; done < logits.prompt_len();) {
    const std::size_t count = std::min(chunk, logits.prompt_len() - done);
    policy.append(count);
    cache.append(count);
    done += count;
    logits.hand_over(policy, cache, done - 1, count, source);
  }
  policy.end_prefill(cache.view());
  cut_and_compare(-1);
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    logits.hand_over(policy, cache, logits.prompt_len() + step, 1, source);
    cut_and_compare(static_cast<double>(step));
  }
  report.is_true(name + ".num_events", golden.count(name + ".num_events") == event);
}

template <class P>
void run_all_ways(const GoldenCase& golden, GoldenReport& report, const std::string& name) {
  run<P>(golden, report, name, RowSource::kRows, golden.count("num_prompt"));
  run<P>(golden, report, name, RowSource::kQueries, golden.count("num_prompt"));
  run<P>(golden, report, name, RowSource::kQueries, 5);
  refuse_other_options(golden, name);
}

}  // namespace

void run_block_eviction(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    if (golden.has(name + ".num_representatives")) {
      run_all_ways<kvevict::KVCrush>(golden, report, name);
    } else {
      run_all_ways<kvevict::BlockEviction>(golden, report, name);
    }
  }
}

}  // namespace kvevict_test
