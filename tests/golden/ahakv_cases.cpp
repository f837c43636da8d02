#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/ahakv.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <tuple>
#include <vector>

// Cases of `text policy ahakv`: one selection over one layer.
namespace kvevict_test {
namespace {

/// The attention side alone.
std::vector<float> gained_attention(const WindowPrompt& prompt, std::size_t budget) {
  std::vector<float> sums;
  kvevict::StepGainAttention signal("AhaKV", prompt.shape, prompt.window, budget);
  kvevict::Sequence sequence("AhaKV", prompt.shape, kvevict::MaskScope::kHead);
  sequence.append(prompt.len);
  std::apply([&](auto& rows) { rows.append(prompt.len); }, signal.state());
  prompt.visit_rows(0, [&](const kvevict::GroupRows& rows) {
    signal.observe_rows(rows, sequence, kvevict::kernels::best());
  });
  const auto view = prompt.view(prompt.len);
  const kvevict::ViewRef ref(view);
  kvevict::Scratch scratch;
  const kvevict::ScoreInput input{ref, sequence, kvevict::kernels::best(), scratch};
  for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
    kvevict::LaneScores scores(input, head);
    signal.score(input, scores);
    sums.insert(sums.end(), scores.array(0).begin(), scores.array(0).end());
  }
  return sums;
}

}  // namespace

void run_ahakv(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::AhaKV::kName);
  const WindowPrompt prompt(golden, "recent");
  const std::size_t budget = golden.count("budget");
  const std::vector<float> sums = gained_attention(prompt, budget);
  report.scores("S", golden.tensor("S").values, sums);
  for (const WindowPrompt::Way& way : prompt.ways()) {
    kvevict::AhaKV policy({.budget = budget,
                           .recent_window = prompt.window,
                           .pooling = {.kernel_size = golden.count("kernel")}},
                          prompt.shape);
    prompt.feed(policy, way);
    const std::vector<float> scores = prompt.scores(policy, 0);
    report.scores("scores", golden.tensor("scores").values, scores);
    std::vector<double> prior;
    for (std::size_t i = 0; i < scores.size(); ++i)
      prior.push_back(static_cast<double>(scores[i]) / static_cast<double>(sums[i]));
    report.scores("value_prior", golden.tensor("value_prior").values, prior);
    report.equal("keep.mask", golden.tensor("keep.mask").values, prompt.keep(policy));
  }
}

}  // namespace kvevict_test
