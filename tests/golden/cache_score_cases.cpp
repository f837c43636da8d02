#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/qfilters.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>

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

void run_cur(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  const std::map<std::string, kvevict::CurLeverage> leverages = {
      {"key", kvevict::CurLeverage::kKeys},
      {"value", kvevict::CurLeverage::kValues},
      {"kv_avg", kvevict::CurLeverage::kMean},
      {"kv_product", kvevict::CurLeverage::kProduct}};
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    const bool local = golden.count("use_local_approximation") != 0;
    const std::size_t window = golden.count("local_window_size");
    return kvevict::CurDKV({.budget = budget,
                            .num_sink_tokens = golden.count("num_sinks"),
                            .only_at_prefill_end = true,
                            .leverage = leverages.at(golden.text("leverage_type")),
                            .block_len = local ? window : 0},
                           prompt.shape);
  });
}
void run_qfilter(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  const auto filters =
      std::make_shared<const kvevict::QueryFilters>(golden.tensor("q_filter").floats());
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    return kvevict::QFilters(
        {.budget = budget, .only_at_prefill_end = true, .query_filters = filters}, prompt.shape);
  });
}

}  // namespace kvevict_test
