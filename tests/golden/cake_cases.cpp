#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/cake.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace kvevict_test {

void run_cake(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::CAKE::kName);
  const WindowPrompt prompt(golden, "window");
  const auto check = [&](const WindowPrompt::Way& way, bool official) {
    kvevict::CAKE policy({.budget = golden.count("capacity"),
                          .observation_window = prompt.window,
                          .gamma = golden.real("gamma"),
                          .tau1 = golden.real("tau1"),
                          .tau2 = golden.real("tau2"),
                          .official_rounding = official},
                         prompt.shape);
    prompt.feed(policy, way);
    const auto& signal = policy.method().parts().signal();
    const std::vector<int> keep = prompt.keep(policy);
    std::vector<std::size_t> budgets;
    for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
      const std::string name = "L" + std::to_string(layer) + ".";
      const auto value = [&](const std::string& record, double actual) {
        report.scores(name + record, {golden.real(name + record)}, std::vector<double>{actual});
      };
      const double entropy = signal.attention_entropy(layer);
      const double variance = signal.attention_variance(layer);
      value("entropy", entropy);
      value("variance", variance);
      value("preference", policy.method().allocator().preference(entropy, variance));
      report.scores(name + "indicator, " + way.name, golden.tensor(name + "indicator").values,
                    prompt.first_slots(prompt.scores(policy, layer), prompt.len - prompt.window));
      const std::size_t slots = prompt.shape.num_kv_heads * prompt.len;
      const auto first = keep.begin() + static_cast<std::ptrdiff_t>(layer * slots);
      if (official) {
        report.equal(name + "keep, " + way.name, golden.tensor(name + "keep").values,
                     std::vector<int>(first, first + static_cast<std::ptrdiff_t>(slots)));
      }
      budgets.push_back(policy.method()
                            .allocation(policy.sequence())
                            .lane_budgets[layer * prompt.shape.num_kv_heads] -
                        prompt.window);
    }
    const std::string record = official ? "budgets.official" : "budgets.exact";
    report.equal(record, golden.tensor(record).values, budgets);
  };
  for (const WindowPrompt::Way& way : prompt.ways()) {
    check(way, true);
    check(way, false);
  }
}

}  // namespace kvevict_test
