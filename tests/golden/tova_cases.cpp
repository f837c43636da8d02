#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/step_logits.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/tova.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy tova`.
namespace kvevict_test {
namespace {

void run_steps(const GoldenCase& golden, GoldenReport& report, const std::string& name,
               RowSource source) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const kvevict::CacheShape shape{.num_layers = 1,
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = logits.shape.at(2)};
  if (name != "free" && name != "newest")
    throw std::runtime_error("no run " + name);
  kvevict::TOVA policy({.budget = golden.count("budget"), .protect_newest = name == "newest"},
                       shape);
  PositionCache cache(shape);
  const auto scores = [&] {
    const auto view = cache.view();
    const kvevict::ViewRef ref(view);
    kvevict::Scratch scratch;
    std::vector<float> row(policy.sequence().seq_len(0));
    policy.method().score({ref, policy.sequence(), kvevict::kernels::best(), scratch}, 0, row);
    return row;
  };
  policy.append(golden.count("num_prompt"));
  cache.append(golden.count("num_prompt"));
  std::vector<double> evicted;
  const std::size_t width = golden.tensor(name + ".evicted").shape.at(1);
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    hand_over_rows(policy, cache, 0, 1, source, [&](std::size_t head, std::size_t) {
      return logits.values.data() + (step * shape.num_q_heads + head) * shape.head_dim;
    });
    if (step == 0)
      report.scores(name + ".first_scores", golden.tensor(name + ".first_scores").values, scores());
    const std::vector<std::size_t> gone = cut(policy, cache)[0];
    for (std::size_t i = 0; i < width; ++i)
      evicted.push_back(i < gone.size() ? static_cast<double>(gone[i]) : -1);
  }
  report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, evicted);
  report.equal(name + ".kept", golden.tensor(name + ".kept").values, cache.positions(0, 0));
  report.scores(name + ".last_scores", golden.tensor(name + ".last_scores").values, scores());
}

}  // namespace

void run_tova(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs")) {
    for (const std::string& name : golden.words("runs")) {
      run_steps(golden, report, name, RowSource::kRows);
      run_steps(golden, report, name, RowSource::kQueries);
    }
    return;
  }
  const WindowPrompt prompt(golden, std::size_t{1});
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    return kvevict::TOVA({.budget = budget, .protect_newest = true}, prompt.shape);
  });
}

}  // namespace kvevict_test
