#include "golden/drivers.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/defensivekv.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <memory>
#include <string>

// Cases of `text policy defensivekv`.
namespace kvevict_test {

void run_defensivekv(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt = prompt_of_runs(golden);
  const auto projection = std::make_shared<kvevict::OutputProjection>(
      prompt.shape, golden.count("hidden_size"), kvevict::GroupReading::kMeanNorms, true);
  for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
    projection->set_layer(layer,
                          golden.tensor("L" + std::to_string(layer) + ".W_O").floats().data());
  }
  for (const std::string& run : golden.words("runs")) {
    compare_prompt_run<kvevict::DefensiveKV>(golden, report, prompt, run,
                                             {.output_projection = projection});
  }
}

}  // namespace kvevict_test
