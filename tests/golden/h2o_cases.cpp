#include "golden/drivers.hpp"
#include "golden/heavy_and_recent_runs.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/keyformer.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "support/golden.hpp"

#include <cstddef>

// Cases of `text policy h2o`, `vatp` and `keyformer`, and of the lifetime mean that kvpress calls
// observed_attention.
namespace kvevict_test {

void run_h2o(const GoldenCase& golden, GoldenReport& report) {
  compare_heavy_and_recent_runs<kvevict::H2O>(golden, report);
}
void run_vatp(const GoldenCase& golden, GoldenReport& report) {
  compare_heavy_and_recent_runs<kvevict::VATP>(golden, report);
}
void run_keyformer(const GoldenCase& golden, GoldenReport& report) {
  compare_heavy_and_recent_runs<kvevict::Keyformer>(golden, report);
}

void run_observed_attention(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, "n");
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    return kvevict::H2O({.heavy = budget, .recent = std::size_t{0}, .lifetime_mean = true},
                        prompt.shape);
  });
}

}  // namespace kvevict_test
