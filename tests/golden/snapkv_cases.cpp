#include "golden/drivers.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvevict_test {
namespace {

/// "max5.pool_first": pooling and kernel, then what comes first or the group's maximum.
kvevict::SnapKVOptions read_variant(const GoldenCase& golden, const std::string& variant) {
  const auto fail = [&] {
    throw std::runtime_error(golden.path() + ": unknown variant " + variant);
  };
  kvevict::SnapKVOptions options;
  const std::size_t dot = variant.find('.');
  const std::size_t digit = variant.find_first_of("0123456789");
  if (dot == std::string::npos || digit > dot)
    fail();
  const std::string pool = variant.substr(0, digit);
  const std::string order = variant.substr(dot + 1);
  options.pooling.kernel_size = std::stoul(variant.substr(digit, dot - digit));
  if (pool == "max") {
    options.pooling.kind = kvevict::PoolKind::kMax;
  } else if (pool == "shrink") {
    options.pooling.edge = kvevict::kernels::PoolEdge::kShrink;
  } else if (pool != "avg") {
    fail();
  }
  if (order == "group_max") {
    options.group_reduce = kvevict::GroupReduce::kMax;
  } else if (order == "pool_first") {
    options.pool_first = true;
  } else if (order != "reduce_first") {
    fail();
  }
  return options;
}

void check_scores(GoldenReport& report, const WindowPrompt& prompt, const std::string& record,
                  const std::vector<double>& expected, const kvevict::SnapKVOptions& options,
                  double factor) {
  const std::size_t prefix = prompt.len - prompt.window;
  for (const WindowPrompt::Way& way : prompt.ways()) {
    kvevict::SnapKV policy(options, prompt.shape);
    prompt.feed(policy, way);
    std::vector<double> scores = prompt.first_slots(prompt.scores(policy, 0), prefix);
    for (double& score : scores)
      score *= factor;
    report.scores(record + ", " + way.name, expected, scores);
  }
}

void check_keep(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                const std::string& record, kvevict::SnapKVOptions options, std::size_t budget) {
  options.budget = budget;
  for (const WindowPrompt::Way& way : prompt.ways()) {
    kvevict::SnapKV policy(options, prompt.shape);
    prompt.feed(policy, way);
    report.is_true(record + ": should_evict", policy.should_evict() == (budget < prompt.len));
    report.equal(record + ", " + way.name, golden.tensor(record).values, prompt.keep(policy));
  }
}

/// A case of kvpress: means over rows, pooled before the group's mean.
void run_kvpress(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, "window_size");
  kvevict::SnapKVOptions options{.budget = prompt.len,
                                 .observation_window = prompt.window,
                                 .pooling = {.kernel_size = golden.count("kernel_size")},
                                 .pool_first = true};
  const std::vector<double> expected =
      prompt.first_slots(golden.tensor("scores").floats(), prompt.len - prompt.window);
  check_scores(report, prompt, "scores", expected, options,
               1.0 / static_cast<double>(prompt.window));
  for (char ratio = 'a'; golden.has(std::string("ratio.") + ratio); ++ratio) {
    check_keep(golden, report, prompt, std::string("keep.") + ratio, options,
               golden.count(std::string("n_kept.") + ratio));
  }
}

}  // namespace

void run_snapkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_prompt_runs<kvevict::SnapKV>(golden, report);
  if (!golden.has("variants"))
    return run_kvpress(golden, report);
  const WindowPrompt prompt(golden, "window");
  for (const std::string& variant : golden.words("variants")) {
    kvevict::SnapKVOptions options = read_variant(golden, variant);
    options.budget = prompt.len;
    options.observation_window = prompt.window;
    const std::string record = variant + ".scores";
    check_scores(report, prompt, record, golden.tensor(record).values, options, 1);
    for (std::size_t i = 0; i < golden.count("num_budgets"); ++i) {
      const std::string number = std::to_string(i);
      check_keep(golden, report, prompt, "keep." + variant + "." + number, options,
                 golden.count("budget." + number));
    }
  }
}

}  // namespace kvevict_test
