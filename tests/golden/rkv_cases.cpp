#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/rkv.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy rkv`: one selection over one layer.
namespace kvevict_test {

void run_rkv(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::RKV::kName);
  const WindowPrompt prompt(golden, "window");
  const std::size_t past = prompt.len - prompt.window;
  for (const std::string& name : golden.words("runs")) {
    if (name != "plain" && name != "official")
      throw std::runtime_error(golden.path() + ": no run " + name);
    for (const WindowPrompt::Way& way : prompt.ways()) {
      const auto fed = [&](double lambda) {
        kvevict::RKV policy({.budget = golden.count("budget"),
                             .buffer = 1,
                             .observation_window = prompt.window,
                             .lambda = lambda,
                             .charge_first = name == "official"},
                            prompt.shape);
        prompt.feed(policy, way);
        return policy;
      };
      const auto scores = [&](double lambda) {
        return prompt.first_slots(prompt.scores(fed(lambda), 0), past);
      };
      report.scores("importance", golden.tensor("importance").values, scores(1.0));
      std::vector<double> redundancy = scores(0.0);
      for (double& score : redundancy)
        score = -score;
      report.scores(name + ".redundancy", golden.tensor(name + ".redundancy").values, redundancy);
      const double lambda = golden.real("lambda");
      report.scores(name + ".scores", golden.tensor(name + ".scores").values, scores(lambda));
      report.equal("keep." + name, golden.tensor("keep." + name).values, prompt.keep(fed(lambda)));
    }
  }
}

}  // namespace kvevict_test
