#include "golden/base_recipe.hpp"
#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/adakv.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::AdaKV;
using kvevict::FloorRule;

/// Kept slots of each head, of a mask [heads, len].
std::vector<std::size_t> head_counts(const std::vector<int>& keep, std::size_t len) {
  std::vector<std::size_t> counts;
  for (std::size_t first = 0; first < keep.size(); first += len) {
    const auto begin = keep.begin() + static_cast<std::ptrdiff_t>(first);
    counts.push_back(
        static_cast<std::size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(len), 1)));
  }
  return counts;
}

void run_paper(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, "window");
  const auto means = [&](std::vector<double> scores) {
    for (double& score : scores)
      score /= static_cast<double>(prompt.window);
    return scores;
  };
  for (const WindowPrompt::Way& way : prompt.ways()) {
    const auto fed = [&](const kvevict::AdaKVOptions& options) {
      AdaKV policy(options, prompt.shape);
      prompt.feed(policy, way);
      return policy;
    };
    // Beside the window, of each head.
    const auto caps = [&](const std::vector<int>& keep) {
      std::vector<std::size_t> counts = head_counts(keep, prompt.len);
      for (std::size_t& count : counts)
        count -= prompt.window;
      return counts;
    };
    const kvevict::AdaKVOptions options{.budget = golden.count("capacity"),
                                        .observation_window = prompt.window};
    const AdaKV policy = fed(options);
    report.scores("scores, " + way.name, golden.tensor("scores").values,
                  means(prompt.first_slots(prompt.scores(policy, 0), prompt.len - prompt.window)));
    kvevict::AdaKVOptions unbounded = options;
    unbounded.floor = 0;
    report.equal("counts", golden.tensor("counts").values, caps(prompt.keep(fed(unbounded))));
    for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
      const std::string number = "." + std::to_string(i);
      kvevict::AdaKVOptions variant = options;
      variant.floor = std::stod(golden.text("floor" + number));
      const std::vector<int> exact = prompt.keep(fed(variant));
      report.equal("keep.exact" + number, golden.tensor("keep.exact" + number).values, exact);
      report.equal("exact" + number, golden.tensor("exact" + number).values, caps(exact));
      variant.official_rounding = true;
      report.equal("official" + number, golden.tensor("official" + number).values,
                   caps(prompt.keep(fed(variant))));
      variant.floor_rule = FloorRule::kGuarantee;
      report.equal("keep.guarantee" + number, golden.tensor("keep.guarantee" + number).values,
                   prompt.keep(fed(variant)));
    }
  }
}

/// Runs over scores of keys.
void run_over_keys(const GoldenCase& golden, GoldenReport& report) {
  if (golden.text("base") == "knorm") {
    compare_prompt_runs<kvevict::AdaKVKnorm>(golden, report);
  } else if (golden.text("base") == "keydiff") {
    compare_prompt_runs<kvevict::AdaKVKeyDiff>(golden, report);
  } else {
    throw std::runtime_error("no base " + golden.text("base"));
  }
}

/// A case of kvpress; the scores of `make(budget)` are `factor` times the case's.
template <class Make>
void run_kvpress(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                 float factor, Make&& make) {
  for (const WindowPrompt::Way& way : prompt.ways()) {
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      report.covers(decltype(policy)::kName);
      prompt.feed(policy, way);
      std::vector<float> scores = prompt.scores(policy, 0);
      for (float& score : scores)
        score /= factor;
      compare_scores(golden, report, "scores", prompt.len, scores);
      const std::vector<int> keep = prompt.keep(policy);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
      report.equal("head_counts." + ratio, golden.tensor("head_counts." + ratio).values,
                   head_counts(keep, prompt.len));
    }
  }
}

}  // namespace

void run_adakv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs") && !golden.has("base"))
    return compare_prompt_runs<AdaKV>(golden, report);
  if (golden.has("runs"))
    return run_over_keys(golden, report);
  if (!golden.has("base"))
    return run_paper(golden, report);
  const double floor = golden.real("alpha_safeguard");
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    return run_kvpress(golden, report, prompt, static_cast<float>(prompt.window),
                       [&](std::size_t budget) {
                         return AdaKV({.budget = budget,
                                       .observation_window = prompt.window,
                                       .floor_rule = FloorRule::kGuarantee,
                                       .floor = floor,
                                       .floor_of_whole = true,
                                       .pooling = {.kernel_size = golden.count("kernel_size")},
                                       .pool_first = true},
                                      prompt.shape);
                       });
  }
  with_base_recipe(golden, [&]<class Base>(std::type_identity<Base>, const WindowPrompt& prompt) {
    using Ada = kvevict::AdaKVOver<Base>;
    run_kvpress(golden, report, prompt, 1.0F, [&](std::size_t budget) {
      typename Ada::Options options;
      set_base_options(golden, budget, options);
      options.floor = floor;
      return kvevict::Policy<kvevict::Composed<Ada>>(options, prompt.shape);
    });
  });
}

}  // namespace kvevict_test
