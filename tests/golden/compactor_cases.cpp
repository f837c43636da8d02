#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/compactor.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Cases of `text policy leverage`, `noncausal` and `compactor`.
namespace kvevict_test {
namespace {

/// As kvpress' scores: over all heads and slots, deviation with divisor n - 1.
std::vector<double> z_scores(const std::vector<float>& scores) {
  double mean = 0;
  for (const float score : scores)
    mean += static_cast<double>(score);
  mean /= static_cast<double>(scores.size());
  double squares = 0;
  for (const float score : scores)
    squares += std::pow(static_cast<double>(score) - mean, 2);
  const double deviation = std::sqrt(squares / static_cast<double>(scores.size() - 1));
  std::vector<double> result;
  for (const float score : scores)
    result.push_back((static_cast<double>(score) - mean) / deviation);
  return result;
}
template <class Make>
void compare(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
             Make&& make) {
  for (const WindowPrompt::Way& way : prompt.ways()) {
    auto whole = make(prompt.len);
    report.covers(decltype(whole)::kName);
    prompt.feed(whole, way);
    const std::vector<float> scores = prompt.scores(whole, 0);
    if (golden.has("leverage"))
      report.scores("leverage", golden.tensor("leverage").values, scores);
    report.scores("scores", golden.tensor("scores").values, z_scores(scores));
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      prompt.feed(policy, way);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
    }
  }
}

}  // namespace

void run_leverage(const GoldenCase& golden, GoldenReport& report) {
  WindowPrompt prompt(golden, std::size_t{0});
  prompt.keys = golden.tensor("keys_prerope").floats();  // as a model without RoPE has them
  const auto sketch = std::make_shared<const kvevict::KeySketch>(golden.tensor("sketch").floats());
  compare(golden, report, prompt, [&](std::size_t budget) {
    return kvevict::Leverage({.budget = budget,
                              .only_at_prefill_end = true,
                              .sketch_dim = golden.count("sketch_dimension"),
                              .key_sketch = sketch},
                             prompt.shape);
  });
}
void run_noncausal(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, "n");
  compare(golden, report, prompt, [&](std::size_t budget) {
    return kvevict::NonCausal(
        {.budget = budget, .chunk_len = golden.count("chunk_size"), .padded_last_chunk = true},
        prompt.shape);
  });
}

void run_compactor(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::Compactor::kName);
  const WindowPrompt prompt(golden, "n");
  kvevict::RotaryEmbedding rotary;
  const std::size_t dim = prompt.shape.head_dim;
  if (golden.has("inv_freq"))
    rotary.inv_freq = golden.tensor("inv_freq").values;
  // Else the default of Llama models.
  for (std::size_t pair = rotary.inv_freq.size(); pair < dim / 2; ++pair) {
    rotary.inv_freq.push_back(
        std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dim)));
  }
  std::vector<float> turned = golden.tensor("keys_prerope").floats();
  for (std::size_t row = 0; row < turned.size() / dim; ++row)
    rotary.turn(static_cast<double>(row % prompt.len), turned.data() + row * dim);
  report.scores("keys", golden.tensor("keys").values, turned);
  for (const WindowPrompt::Way& way : prompt.ways()) {
    for (const std::string& ratio : ratios_of(golden)) {
      kvevict::Compactor policy(
          {.budget = golden.count("n_kept." + ratio),
           .num_sink_tokens = golden.count("sink_size_start"),
           .recent_window = golden.count("sink_size_end"),
           .chunk_len = golden.count("chunk_size"),
           .blending = golden.real_or("blending", golden.real("ratio." + ratio)),
           .sketch_dim = golden.count("sketch_dimension"),
           .padded_last_chunk = true,
           .rotary = rotary,
           .key_sketch =
               std::make_shared<const kvevict::KeySketch>(golden.tensor("sketch").floats())},
          prompt.shape);
      prompt.feed(policy, way);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
      // The heads of the layer are brought together in the last stage.
      std::vector<float> scores = prompt.scores(policy, 0);
      std::vector<kvevict::ScoredLane> lanes;
      for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head)
        lanes.push_back({head, std::span(scores).subspan(head * prompt.len, prompt.len), {}, {}});
      const auto view = prompt.view(prompt.len);
      const kvevict::ViewRef ref(view);
      kvevict::Scratch scratch;
      policy.method().normalise(lanes, {ref, policy.sequence(), kvevict::kernels::best(), scratch});
      compare_scores(golden, report, golden.has("blending") ? "scores" : "scores." + ratio,
                     prompt.len, scores);
    }
  }
}

}  // namespace kvevict_test
