#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/run_options.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "support/golden.hpp"
#include "support/window_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy lagkv`: kvpress' fixed budget, and runs of the authors' recursive form.
namespace kvevict_test {
namespace {

/// One run with the prompt in pieces of `chunk` tokens, between which the cache is cut too.
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name,
         std::size_t chunk) {
  const GoldenCase::Tensor& keys = golden.tensor("keys");
  const GoldenCase::Tensor& values = golden.tensor("values");
  const std::size_t num_positions = keys.shape.at(1);
  const kvevict::CacheShape shape{.num_layers = 1,
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = golden.count("head_dim")};
  kvevict::LagKVOptions options;
  set_run_options<kvevict::LagKV>(golden, name, options);
  kvevict::LagKV policy(options, shape);
  report.covers(kvevict::LagKV::kName);
  WindowCache cache(shape, num_positions);
  std::size_t length = 0;
  const auto append = [&](std::size_t count) {
    policy.append(count);
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      const auto copy = [&](const std::vector<double>& from, float* to) {
        const auto first = from.begin() + static_cast<std::ptrdiff_t>(
                                              (head * num_positions + length) * shape.head_dim);
        std::transform(first, first + static_cast<std::ptrdiff_t>(count * shape.head_dim), to,
                       [](double x) { return static_cast<float>(x); });
      };
      copy(keys.values, cache.key(0, head, cache.seq_len(head)));
      copy(values.values, cache.value(0, head, cache.seq_len(head)));
    }
    cache.append(count);
    length += count;
  };
  std::size_t event = 0;
  const auto compare = [&](double step) {
    const std::string record = name + ".event." + std::to_string(event++) + ".";
    report.is_true(record + "step", golden.real(record + "step") == step);
    std::vector<double> kept;
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      for (std::size_t slot = 0; slot < policy.sequence().seq_len(head); ++slot)
        kept.push_back(policy.sequence().position(head, slot));
    }
    report.equal(record + "kept", golden.tensor(record + "kept").values, kept);
  };
  const std::size_t prompt_len = golden.count("num_prompt");
  bool was_cut = false;
  policy.begin(prompt_len);
  while (length < prompt_len) {
    append(std::min(chunk, prompt_len - length));
    if (length < prompt_len)
      was_cut = cut_if_due(policy, cache) || was_cut;
  }
  policy.end_prefill(cache.view());
  if (cut_if_due(policy, cache) || was_cut)
    compare(-1);
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    append(1);
    if (cut_if_due(policy, cache))
      compare(static_cast<double>(step));
  }
  report.is_true(name + ".num_events", golden.count(name + ".num_events") == event);
}

}  // namespace

void run_lagkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs")) {
    for (const std::string& name : golden.words("runs")) {
      run(golden, report, name, golden.count("num_prompt"));
      run(golden, report, name, 9);
      refuse_other_options(golden, name);
    }
    return;
  }
  WindowPrompt prompt(golden, std::size_t{0});
  // A case that is too short reads no rows and has none.
  prompt.keys.resize(prompt.shape.num_kv_heads * prompt.len * prompt.shape.head_dim);
  prompt.values.resize(prompt.keys.size());
  const auto make = [&](std::size_t budget, kvevict::LagComparison comparison) {
    return kvevict::LagKVBudget({.budget = budget,
                                 .num_sink_tokens = golden.count("n_sink"),
                                 .lag_len = golden.count("lag_size"),
                                 .comparison = comparison,
                                 .only_at_prefill_end = true},
                                prompt.shape);
  };
  const auto comparison = golden.count("cross_scoring") == 0 ? kvevict::LagComparison::kRanks
                                                             : kvevict::LagComparison::kScores;
  compare_ratios(golden, report, prompt,
                 [&](std::size_t budget) { return make(budget, comparison); });
  if (golden.has("scores_raw")) {
    auto raw = make(prompt.len, kvevict::LagComparison::kScores);
    prompt.feed(raw, prompt.ways().front());
    compare_scores(golden, report, "scores_raw", prompt.len, prompt.scores(raw, 0));
  }
}

}  // namespace kvevict_test
