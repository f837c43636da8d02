#include "golden/drivers.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/policies/scissorhands.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy scissorhands`.
namespace kvevict_test {
namespace {

void run(const GoldenCase& golden, GoldenReport& report, RowSource source) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const kvevict::CacheShape shape{.num_layers = 1,
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = logits.shape.at(2)};
  kvevict::ScissorHands policy({.budget = golden.count("budget"),
                                .drop = golden.count("drop"),
                                .history = golden.count("history"),
                                .recent_window = golden.count("protect")},
                               shape);
  report.covers(kvevict::ScissorHands::kName);
  PositionCache cache(shape);
  policy.append(golden.count("num_prompt"));
  cache.append(golden.count("num_prompt"));
  std::size_t event = 0;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    hand_over_rows(policy, cache, 0, 1, source, [&](std::size_t head, std::size_t) {
      return logits.values.data() + (step * shape.num_q_heads + head) * shape.head_dim;
    });
    if (!policy.should_evict())
      continue;
    std::vector<std::vector<std::size_t>> positions;
    std::vector<std::vector<float>> scores;
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      positions.push_back(cache.positions(0, head));
      scores.push_back(lane_scores(policy, cache, head));
      for (float& score : scores.back())
        score = -score;  // how often below
    }
    const std::vector<std::vector<std::size_t>> gone = cut(policy, cache);
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head, ++event) {
      const std::string name = "event." + std::to_string(event);
      report.is_true(name + ".step", golden.count(name + ".step") == step);
      report.is_true(name + ".head", golden.count(name + ".head") == head);
      report.equal(name + ".positions", golden.tensor(name + ".positions").values, positions[head]);
      report.equal(name + ".low", golden.tensor(name + ".low").values, scores[head]);
      report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, gone[head]);
    }
  }
  report.is_true("num_events", golden.count("num_events") == event);
  std::vector<std::size_t> kept;
  for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
    for (const std::size_t position : cache.positions(0, head))
      kept.push_back(position);
  }
  report.equal("kept", golden.tensor("kept").values, kept);
}

}  // namespace

void run_scissorhands(const GoldenCase& golden, GoldenReport& report) {
  run(golden, report, RowSource::kRows);
  run(golden, report, RowSource::kQueries);
}

}  // namespace kvevict_test
