#include "golden/drivers.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/dropkv.hpp"
#include "support/golden.hpp"

#include <string>

// Cases of `text policy dropkv`; a run with a floor lets the heads of a layer compete.
namespace kvevict_test {
void run_dropkv(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt = prompt_of_runs(golden);
  for (const std::string& run : golden.words("runs")) {
    if (golden.has(run + ".floor")) {
      compare_prompt_run<kvevict::AdaKVDropKV>(golden, report, prompt, run);
    } else {
      compare_prompt_run<kvevict::DropKV>(golden, report, prompt, run);
    }
  }
}

}  // namespace kvevict_test
