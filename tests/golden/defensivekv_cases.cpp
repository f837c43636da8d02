#include "golden/drivers.hpp"
#include "golden/output_projections.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/defensivekv.hpp"
#include "support/golden.hpp"

#include <string>

// Cases of `text policy defensivekv`.
namespace kvevict_test {

void run_defensivekv(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt = prompt_of_runs(golden);
  const auto projection = projection_of_layers(golden, prompt.shape);
  for (const std::string& run : golden.words("runs")) {
    compare_prompt_run<kvevict::DefensiveKV>(golden, report, prompt, run,
                                             {.output_projection = projection});
  }
}

}  // namespace kvevict_test
