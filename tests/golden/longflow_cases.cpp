#include "golden/drivers.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <vector>

// Cases of `text policy longflow`.
namespace kvevict_test {
namespace {

void run(const GoldenCase& golden, GoldenReport& report, RowSource source) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const kvevict::CacheShape shape{.num_layers = 1,
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = logits.shape.at(2)};
  GoldenCase::Tensor values = golden.tensor("values");
  values.shape.insert(values.shape.begin(), 1);  // layers
  // The cache's rows are as long as there are positions, filled up with zeros.
  const double mean_scale =
      static_cast<double>(shape.head_dim) / static_cast<double>(golden.count("head_dim"));
  kvevict::LongFlow policy({.budget = golden.count("budget")}, shape);
  report.covers(kvevict::LongFlow::kName);
  PositionCache cache(shape, values);
  policy.append(golden.count("num_prompt"));
  cache.append(golden.count("num_prompt"));
  std::vector<double> evicted;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    hand_over_rows(policy, cache, 0, 1, source, [&](std::size_t head, std::size_t) {
      return logits.values.data() + (step * shape.num_q_heads + head) * shape.head_dim;
    });
    if (step == 0) {
      std::vector<double> scores;
      for (const float score : lane_scores(policy, cache, 0))
        scores.push_back(static_cast<double>(score) * mean_scale);
      report.scores("first_scores", golden.tensor("first_scores").values, scores);
    }
    const std::vector<std::size_t> gone = cut(policy, cache)[0];
    report.is_true("one token at most goes in a step", gone.size() <= 1);
    evicted.push_back(gone.empty() ? -1 : static_cast<double>(gone[0]));
  }
  report.equal("evicted", golden.tensor("evicted").values, evicted);
  report.equal("kept", golden.tensor("kept").values, cache.positions(0, 0));
}

}  // namespace

void run_longflow(const GoldenCase& golden, GoldenReport& report) {
  run(golden, report, RowSource::kRows);
  run(golden, report, RowSource::kQueries);
}

}  // namespace kvevict_test
