#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/caote.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy caote`: one selection over one layer.
namespace kvevict_test {
namespace {

template <class P>
void compare(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
             const std::string& name, const P& policy) {
  report.covers(P::kName);
  report.scores(name + ".scores", golden.tensor(name + ".scores").values, prompt.scores(policy, 0));
  report.equal(name + ".keep", golden.tensor(name + ".keep").values, prompt.keep(policy));
}

template <class P>
void run_over_tova(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                   const std::string& name) {
  for (const WindowPrompt::Way& way : prompt.ways()) {
    P policy({.budget = golden.count("budget"), .scope = kvevict::MaskScope::kHead}, prompt.shape);
    prompt.feed(policy, way);
    compare(golden, report, prompt, name, policy);
  }
}

/// The sums come as the last row of a prompt whose other rows are zero.
template <class P>
void run_over_h2o(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
                  const std::string& name) {
  P policy({.heavy = golden.count("budget"), .recent = 0}, prompt.shape);
  const std::vector<float> sums = golden.tensor("accumulated").floats();
  const std::size_t len = prompt.len;
  std::vector<float> rows(prompt.shape.num_q_heads * len * len);
  for (std::size_t head = 0; head < prompt.shape.num_q_heads; ++head) {
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(head * len), len,
                rows.begin() + static_cast<std::ptrdiff_t>((head * len + len - 1) * len));
  }
  policy.begin(len);
  policy.observe_attention(0, {.data = rows.data(),
                               .num_q_heads = prompt.shape.num_q_heads,
                               .num_rows = len,
                               .head_stride = static_cast<std::ptrdiff_t>(len * len),
                               .row_stride = static_cast<std::ptrdiff_t>(len)});
  policy.end_prefill(prompt.view(len));
  compare(golden, report, prompt, name, policy);
}

}  // namespace

void run_caote(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{1});
  run_over_tova<kvevict::TOVACAOTE>(golden, report, prompt, "tova.exact");
  run_over_tova<kvevict::TOVAFastCAOTE>(golden, report, prompt, "tova.fast");
  run_over_h2o<kvevict::H2OCAOTE>(golden, report, prompt, "h2o.exact");
  run_over_h2o<kvevict::H2OFastCAOTE>(golden, report, prompt, "h2o.fast");
}

}  // namespace kvevict_test
