#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/layer_preference.hpp"
#include "kvevict/allocation/pyramid.hpp"
#include "kvevict/policies/pyramidkv.hpp"
#include "kvevict/selection/head_floors.hpp"
#include "support/golden.hpp"
#include "support/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

// Cases of budgets: what each layer or head gets, without scores, and PyramidKV.
namespace kvevict_test {
namespace {

using kvevict::Budget;
using kvevict::PyramidRounding;

kvevict::CacheShape layers_of_one_head(std::size_t num_layers) {
  return {.num_layers = num_layers, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
}

std::vector<double> decimals(const std::string& text) {
  std::istringstream stream(text);
  std::vector<double> numbers;
  for (double x = 0; stream >> x;)
    numbers.push_back(x);
  return numbers;
}

/// What lanes keep of `len` tokens.
std::vector<std::size_t> kept(const kvevict::Allocation& allocation, std::size_t len) {
  std::vector<std::size_t> tokens(allocation.lane_budgets.begin(), allocation.lane_budgets.end());
  for (std::size_t& count : tokens)
    count = std::min(count, len);
  return tokens;
}

void run_kvpress_budgets(const GoldenCase& golden, GoldenReport& report) {
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const std::string number = std::to_string(i);
    const std::vector<double>& numbers = golden.tensor("case." + number).values;
    const auto len = static_cast<std::size_t>(numbers.at(0));
    const kvevict::PyramidBudgets budgets(
        layers_of_one_head(static_cast<std::size_t>(numbers.at(2))),
        Budget::compression_ratio(golden.real("ratio." + number)),
        static_cast<std::size_t>(numbers.at(1)), numbers.at(3), PyramidRounding::kKvpress);
    report.equal("budgets." + number, golden.tensor("budgets." + number).values,
                 kept(budgets.budgets(len), len));
  }
}

}  // namespace

void run_pyramidkv_budgets(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("ratio.0"))
    return run_kvpress_budgets(golden, report);
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const std::string number = "." + std::to_string(i);
    const std::size_t len = golden.count("n" + number);
    const auto check = [&](const std::string& name, PyramidRounding rounding) {
      const kvevict::PyramidBudgets budgets(layers_of_one_head(golden.count("num_layers" + number)),
                                            golden.count("capacity" + number),
                                            golden.count("window" + number),
                                            golden.real("beta" + number), rounding);
      report.equal(name + number, golden.tensor(name + number).values,
                   kept(budgets.budgets(len), len));
    };
    check("exact", PyramidRounding::kExact);
    check("official", PyramidRounding::kOfficial);
  }
}

void run_pyramidkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_prompt_runs<kvevict::PyramidKV>(golden, report);
  const WindowPrompt prompt(golden, "window_size");
  for (const std::string& ratio : ratios_of(golden)) {
    for (const WindowPrompt::Way& way : prompt.ways()) {
      kvevict::PyramidKV policy({.budget = Budget::compression_ratio(golden.real("ratio." + ratio)),
                                 .observation_window = prompt.window,
                                 .beta = golden.real("beta"),
                                 .kvpress_budgets = true,
                                 .pooling = {.kernel_size = golden.count("kernel_size")},
                                 .pool_first = true},
                                prompt.shape);
      prompt.feed(policy, way);
      report.is_true("should_evict, " + way.name, policy.should_evict());
      const std::vector<int> keep = prompt.keep(policy);
      std::vector<std::size_t> budgets;
      for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
        const std::string name = "L" + std::to_string(layer) + ".";
        std::vector<float> scores = prompt.scores(policy, layer);
        for (float& score : scores)
          score /= static_cast<float>(prompt.window);
        compare_scores(golden, report, name + "scores", prompt.len, scores);
        const std::size_t slots = prompt.shape.num_kv_heads * prompt.len;
        const auto first = keep.begin() + static_cast<std::ptrdiff_t>(layer * slots);
        const std::vector<int> of_layer(first, first + static_cast<std::ptrdiff_t>(slots));
        report.equal(name + "keep." + ratio, golden.tensor(name + "keep." + ratio).values,
                     of_layer);
        budgets.push_back(
            static_cast<std::size_t>(std::count(of_layer.begin(), of_layer.end(), 1)) /
            prompt.shape.num_kv_heads);
      }
      report.equal("budgets." + ratio, golden.tensor("budgets." + ratio).values, budgets);
    }
  }
}

void run_allocation_tables(const GoldenCase& golden, GoldenReport& report) {
  const auto heads = [&](const std::string& name) {
    const auto check = [&](const std::string& record, bool official) {
      const std::vector<double> scores = decimals(golden.text(name + "scores"));
      const std::size_t b = golden.count(name + "b");
      const kvevict::HeadTable table("test", "table", layers_of_one_head(scores.size()), b, 0,
                                     scores, 1.0, std::stod(golden.text(name + "beta")), official);
      report.equal(name + record, golden.tensor(name + record).values,
                   kept(table.budgets(1000), 1000));
    };
    check("official", true);
    check("exact", false);
  };
  const auto floors = [&](const std::string& name) {
    const std::vector<double>& counts = golden.tensor(name + "counts").values;
    const std::size_t b = golden.count(name + "b");
    const auto check = [&](const std::string& record, bool official) {
      // Head h owns the best counts[h] scores, all others are the same.
      std::vector<Lane> lanes;
      for (const double count : counts) {
        std::vector<float> scores(200, 0.0F);
        std::fill_n(scores.begin(), static_cast<std::size_t>(count), 1.0F);
        lanes.emplace_back(scores);
        lanes.back().protect(199);
      }
      std::vector<kvevict::ScoredLane> views;
      for (std::size_t h = 0; h < lanes.size(); ++h)
        views.push_back({h, lanes[h].scores, lanes[h].candidates, lanes[h].keep});
      const kvevict::HeadFloors rule(kvevict::FloorRule::kInterpolate,
                                     std::stod(golden.text(name + "floor")), official, false);
      rule.choose(views, b * counts.size(), 0);
      std::vector<std::size_t> numbers;
      for (const Lane& lane : lanes)
        numbers.push_back(lane.kept().size() - 1);
      report.equal(name + record, golden.tensor(name + record).values, numbers);
    };
    check("official", true);
    check("exact", false);
  };
  for (std::size_t i = 0; i < golden.count("num_headkv"); ++i)
    heads("headkv." + std::to_string(i) + ".");
  for (std::size_t i = 0; i < golden.count("num_ada"); ++i)
    floors("ada." + std::to_string(i) + ".");
  for (std::size_t i = 0; i < golden.count("num_cake"); ++i) {
    const std::string name = "cake." + std::to_string(i) + ".";
    const std::vector<double> preference = decimals(golden.text(name + "preference"));
    const auto check = [&](const std::string& record, bool official) {
      std::vector<double> shares = preference;
      std::vector<std::size_t> numbers(shares.size());
      kvevict::share_by_preference(shares, golden.count(name + "total"), golden.count(name + "cap"),
                                   official, numbers);
      report.equal(name + record, golden.tensor(name + record).values, numbers);
    };
    check("official", true);
    check("exact", false);
  }
}

}  // namespace kvevict_test
