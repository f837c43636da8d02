#include "golden/drivers.hpp"
#include "golden/prompt_runs.hpp"
#include "kvevict/policies/offline_budgets.hpp"
#include "kvevict/policies/rocketkv.hpp"
#include "support/golden.hpp"

// Cases of `text policy rocketkv`, `headkv` and `evolkv`: SnapKV's scores and other budgets.
namespace kvevict_test {

void run_rocketkv(const GoldenCase& golden, GoldenReport& report) {
  compare_prompt_runs<kvevict::RocketKV>(golden, report);
}
void run_headkv(const GoldenCase& golden, GoldenReport& report) {
  compare_prompt_runs<kvevict::HeadKV>(golden, report);
}
void run_evolkv(const GoldenCase& golden, GoldenReport& report) {
  compare_prompt_runs<kvevict::EvolKV>(golden, report);
}

}  // namespace kvevict_test
