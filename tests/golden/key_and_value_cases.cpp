#include "golden/drivers.hpp"
#include "golden/prompt_runs.hpp"
#include "kvevict/policies/nestedkv.hpp"
#include "kvevict/policies/twinkv.hpp"
#include "kvevict/policies/vase.hpp"
#include "support/golden.hpp"

#include <stdexcept>

// Cases of `text policy nestedkv`, `twinkv` and `vase`, which look at keys or values, with
// attention or without.
namespace kvevict_test {

void run_nestedkv(const GoldenCase& golden, GoldenReport& report) {
  compare_prompt_runs<kvevict::NestedKV>(golden, report);
}
void run_vase(const GoldenCase& golden, GoldenReport& report) {
  compare_prompt_runs<kvevict::VaSE>(golden, report);
}
void run_twinkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.text("base") == "knorm") {
    compare_prompt_runs<kvevict::TwinKVKnorm>(golden, report);
  } else if (golden.text("base") == "snapkv") {
    compare_prompt_runs<kvevict::TwinKVSnapKV>(golden, report);
  } else {
    throw std::runtime_error("no base " + golden.text("base"));
  }
}

}  // namespace kvevict_test
