#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"

#include <cstddef>

// Cases of policies that score what the cache holds.
namespace kvevict_test {
namespace {

template <class P>
void run(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    return P({.budget = budget, .only_at_prefill_end = true}, prompt.shape);
  });
}

}  // namespace

void run_knorm(const GoldenCase& golden, GoldenReport& report) {
  run<kvevict::Knorm>(golden, report);
}
void run_keydiff(const GoldenCase& golden, GoldenReport& report) {
  run<kvevict::KeyDiff>(golden, report);
}

}  // namespace kvevict_test
