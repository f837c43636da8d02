#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/rerotated_keys.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/finch.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace kvevict_test {

// Cases of `text policy finch`.
void run_finch(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::Finch::kName);
  const std::size_t chunk_len = golden.count("chunk_length");
  const WindowPrompt prompt(golden, "window_size");
  for (const WindowPrompt::Way& way : prompt.ways()) {
    for (const std::string& ratio : ratios_of(golden)) {
      const kvevict::Budget budget =
          chunk_len > 0 ? kvevict::Budget::compression_ratio(golden.real("ratio." + ratio))
                        : kvevict::Budget::tokens(golden.count("n_kept." + ratio));
      kvevict::Finch policy({.budget = budget,
                             .observation_window = prompt.window,
                             .undo_dilution = golden.count("normalize_scores") != 0,
                             .chunk_len = chunk_len},
                            prompt.shape);
      prompt.feed(policy, way);
      std::vector<float> scores = prompt.scores(policy, 0);
      for (float& score : scores)
        score /= static_cast<float>(prompt.window);  // kvpress: mean over rows
      compare_scores(golden, report, "scores", prompt.len, scores);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
      compare_rerotated(golden, report, ratio, prompt, policy.sequence(),
                        policy.select(prompt.view(prompt.len)));
    }
  }
}

}  // namespace kvevict_test
