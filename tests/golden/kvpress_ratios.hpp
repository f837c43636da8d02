#ifndef KVEVICT_TESTS_GOLDEN_KVPRESS_RATIOS_HPP_
#define KVEVICT_TESTS_GOLDEN_KVPRESS_RATIOS_HPP_

#include "golden/window_prompt.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace kvevict_test {

/// The ratios of a kvpress case: "a", "b", ..
[[nodiscard]] inline std::vector<std::string> ratios_of(const GoldenCase& golden) {
  std::vector<std::string> ratios;
  for (char ratio = 'a'; golden.has(std::string("ratio.") + ratio); ++ratio)
    ratios.emplace_back(1, ratio);
  return ratios;
}

/// Compares scores [num_kv_heads, n] where kvpress did not write an artificial one.
inline void compare_scores(const GoldenCase& golden, GoldenReport& report,
                           const std::string& record, std::size_t len,
                           const std::vector<float>& actual) {
  const std::vector<double>& all = golden.tensor(record).values;
  std::vector<double> expected;
  std::vector<double> scores;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (golden.has("protected") && golden.tensor("protected").values[i % len] != 0)
      continue;
    expected.push_back(all[i]);
    scores.push_back(static_cast<double>(actual.at(i)));
  }
  report.scores(record, expected, scores);
}

/// The usual case: one set of scores, and a mask for each ratio, compared where it is defined
/// (equal scores on both sides of the threshold leave only the kept scores so). `make(budget)` is
/// the policy.
template <class Make>
void compare_ratios(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                    Make&& make) {
  for (const WindowPrompt::Way& way : prompt.ways()) {
    auto whole = make(prompt.len);
    report.covers(decltype(whole)::kName);
    prompt.feed(whole, way);
    if (golden.has("scores"))
      compare_scores(golden, report, "scores", prompt.len, prompt.scores(whole, 0));
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      prompt.feed(policy, way);
      const std::vector<int> keep = prompt.keep(policy);
      if (golden.real_or("gap." + ratio, 1.0) > 0) {
        report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
        continue;
      }
      const auto kept = [&](const auto& mask) {
        std::vector<double> scores;
        for (std::size_t i = 0; i < mask.size(); ++i) {
          if (static_cast<int>(mask[i]) != 0)
            scores.push_back(golden.tensor("scores").values[i]);
        }
        std::sort(scores.begin(), scores.end());
        return scores;
      };
      report.scores("kept scores of " + ratio, kept(golden.tensor("keep." + ratio).values),
                    kept(keep));
    }
  }
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_KVPRESS_RATIOS_HPP_
