#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/policies/fastgen.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

// Cases of `text policy fastgen`.
namespace kvevict_test {
namespace {

std::vector<kvevict::TokenLabel> labels_of(const GoldenCase& golden) {
  std::vector<kvevict::TokenLabel> labels;
  for (const double label : golden.tensor("labels").values)
    labels.push_back(static_cast<kvevict::TokenLabel>(label));
  return labels;
}

/// One run with the prompt in pieces of `chunk` tokens.
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name, RowSource source,
         std::size_t chunk) {
  const PromptLogits logits(golden);
  const std::vector<kvevict::TokenLabel> labels = labels_of(golden);
  kvevict::FastGenOptions options;
  set_run_options<kvevict::FastGen>(golden, name, options);
  kvevict::FastGen policy(options, logits.shape());
  report.covers(kvevict::FastGen::kName);
  PositionCache cache(logits.shape());
  const std::size_t num_heads = logits.shape().num_kv_heads;
  const auto append = [&](std::size_t done, std::size_t count) {
    policy.append(count);
    policy.observe_labels(std::span(labels).subspan(done, count));
    cache.append(count);
    logits.hand_over(policy, cache, done + count - 1, count, source);
  };
  const auto compare = [&](const std::string& record, std::size_t length) {
    std::vector<int> keep(num_heads * length);
    for (std::size_t head = 0; head < num_heads; ++head) {
      for (const std::size_t position : cache.positions(0, head))
        keep[head * length + position] = 1;
    }
    report.equal(record, golden.tensor(record).values, keep);
  };
  policy.begin(logits.prompt_len());
  for (std::size_t done = 0; done < logits.prompt_len(); done += chunk)
    append(done, std::min(chunk, logits.prompt_len() - done));
  policy.end_prefill(cache.view());
  const auto& profile = policy.method().parts().signal();
  std::vector<int> keeps;
  for (std::size_t head = 0; head < num_heads; ++head)
    keeps.push_back(static_cast<int>(profile.keeps(head)));
  report.equal(name + ".profile", golden.tensor(name + ".profile").values, keeps);
  cut(policy, cache);
  compare("keep." + name + ".prefill", logits.prompt_len());
  std::vector<double> evicted;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    append(logits.prompt_len() + step, 1);
    cut_one(policy, cache, evicted);
  }
  report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, evicted);
  compare("keep." + name, logits.num_positions());
}

}  // namespace

void run_fastgen(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    run(golden, report, name, RowSource::kRows, golden.count("num_prompt"));
    run(golden, report, name, RowSource::kQueries, golden.count("num_prompt"));
    run(golden, report, name, RowSource::kRows, 5);
    refuse_other_options(golden, name);
  }
}

}  // namespace kvevict_test
