#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "support/golden.hpp"

#include <cstddef>

namespace kvevict_test {

// Cases of `text policy lagkv`: kvpress' fixed budget.
void run_lagkv(const GoldenCase& golden, GoldenReport& report) {
  WindowPrompt prompt(golden, std::size_t{0});
  // A case that is too short reads no rows and has none.
  prompt.keys.resize(prompt.shape.num_kv_heads * prompt.len * prompt.shape.head_dim);
  prompt.values.resize(prompt.keys.size());
  const auto make = [&](std::size_t budget, kvevict::LagComparison comparison) {
    return kvevict::LagKVBudget({.budget = budget,
                                 .num_sink_tokens = golden.count("n_sink"),
                                 .lag_len = golden.count("lag_size"),
                                 .comparison = comparison,
                                 .only_at_prefill_end = true},
                                prompt.shape);
  };
  const auto comparison = golden.count("cross_scoring") == 0 ? kvevict::LagComparison::kRanks
                                                             : kvevict::LagComparison::kScores;
  compare_ratios(golden, report, prompt,
                 [&](std::size_t budget) { return make(budget, comparison); });
  if (golden.has("scores_raw")) {
    auto raw = make(prompt.len, kvevict::LagComparison::kScores);
    prompt.feed(raw, prompt.ways().front());
    compare_scores(golden, report, "scores_raw", prompt.len, prompt.scores(raw, 0));
  }
}

}  // namespace kvevict_test
