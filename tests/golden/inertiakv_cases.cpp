#include "golden/drivers.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/temporal/running_scores.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy inertiakv`, `ema` and `inertiakv_budget`.
namespace kvevict_test {
namespace {

[[nodiscard]] inline kvevict::Aggregator aggregator_of(const std::string& rule) {
  for (const auto& [name, aggregator] : enum_names(kvevict::Aggregator{})) {
    if (name == rule)
      return aggregator;
  }
  throw std::runtime_error("no rule " + rule);
}

[[nodiscard]] inline kvevict::Budget budget_of(const std::string& rho) {
  std::size_t used = 0;
  const double value = std::stod(rho, &used);
  if (used != rho.size())
    throw std::runtime_error("not a number: " + rho);
  return kvevict::Budget::compression_ratio(value);
}

[[nodiscard]] inline kvevict::InertiaKVOptions read_options(const GoldenCase& golden,
                                                            const std::string& run) {
  kvevict::InertiaKVOptions options;
  options.budget = budget_of(golden.text("rho"));
  options.alpha = golden.real(run + ".alpha");
  options.aggregator = aggregator_of(golden.text(run + ".rule"));
  options.per_step = golden.count(run + ".per_step") != 0;
  options.score_free = golden.count(run + ".refresh") == 0;
  options.refresh_interval = std::max<std::size_t>(1, golden.count(run + ".refresh"));
  for (const double layer : golden.tensor(run + ".layers").values) {
    options.layers.push_back(static_cast<std::size_t>(layer));
  }
  options.num_sink_tokens = golden.count(run + ".sinks");
  options.recent_window = golden.count(run + ".recent");
  const std::string& scorer = golden.text(run + ".scorer");
  options.entropy_weighted = scorer == "entropy";
  if (scorer != "attention" && scorer != "value_norm" && scorer != "entropy") {
    throw std::runtime_error("no scorer " + scorer);
  }
  return options;
}

/// One run, as an engine would do it. Where values count, the cache is shown after the attention
/// when rows are given, as the engine's last act of a step, and before it otherwise.
template <class P>
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name,
         const kvevict::InertiaKVOptions& options, RowSource source) {
  const kvevict::CacheShape shape{.num_layers = golden.count("num_layers"),
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = golden.tensor("logits").shape.at(3)};
  const std::size_t prompt_len = golden.count("prefill_length");
  const std::size_t steps = golden.count("steps");
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  PositionCache cache(shape, golden.tensor("values"));
  P policy(options, shape);
  report.covers(P::kName);
  policy.begin(prompt_len);
  cache.append(prompt_len);
  policy.end_prefill(cache.view());
  report.is_true(name + ": no cut at the end of the prompt", !policy.should_evict());

  std::vector<double> kept;
  std::vector<double> m;
  std::vector<double> evicted;
  std::size_t num_layers_shown = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    policy.append(1);
    cache.append(1);
    if (source == RowSource::kQueries)
      policy.observe_cache(cache.view());
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::size_t wanted = policy.wanted_attention_rows(layer);
      if (wanted > 1)
        throw std::runtime_error("more rows wanted than there are");
      if (wanted == 0)
        continue;
      num_layers_shown += 1;
      hand_over_rows(policy, cache, layer, 1, source, [&](std::size_t head, std::size_t) {
        return logits.values.data() +
               ((step * shape.num_layers + layer) * shape.num_q_heads + head) * shape.head_dim;
      });
    }
    if (source == RowSource::kRows)
      policy.observe_cache(cache.view());
    if (step == 0) {
      report.scores(name + ".first_m", golden.tensor(name + ".first_m").values,
                    policy.method().scores());
    }
    const std::vector<std::size_t> gone = cut(policy, cache)[0];
    evicted.push_back(step > 0 && gone.size() == 1 ? static_cast<double>(gone[0]) : -1);
    if (step > 0 && gone.size() > 1)
      throw std::runtime_error("more than one token went in a step");
    const auto positions = cache.positions(0, 0);
    kept.insert(kept.end(), positions.begin(), positions.end());
    const auto scores = policy.method().scores();
    m.insert(m.end(), scores.begin(), scores.end());
  }
  report.equal(name + ".kept", golden.tensor(name + ".kept").values, kept);
  report.equal(name + ".evicted", golden.tensor(name + ".evicted").values, evicted);
  report.scores(name + ".m", golden.tensor(name + ".m").values, m);
  const std::size_t interval = options.score_free ? steps : options.refresh_interval;
  report.is_true(name + ": attention is wanted on refresh steps alone",
                 num_layers_shown == options.layers.size() * ((steps + interval - 1) / interval));
  report.is_true(name + ": all samples finite", policy.counters().non_finite == 0);
}

}  // namespace

void run_inertiakv(const GoldenCase& golden, GoldenReport& report) {
  const kvevict::Budget budget = budget_of(golden.text("rho"));
  report.is_true("budget",
                 budget.tokens_of(golden.count("prefill_length")) == golden.count("budget"));
  for (const std::string& name : golden.words("runs")) {
    const auto run_as = [&](const kvevict::InertiaKVOptions& options) {
      for (const RowSource source : {RowSource::kRows, RowSource::kQueries}) {
        if (golden.text(name + ".scorer") == "value_norm") {
          run<kvevict::InertiaKVValueNorm>(golden, report, name, options, source);
        } else {
          run<kvevict::InertiaKV>(golden, report, name, options, source);
        }
      }
    };
    kvevict::InertiaKVOptions options = read_options(golden, name);
    run_as(options);
    // An EMA without a past is the single-step rule.
    if (options.aggregator == kvevict::Aggregator::kEma && options.alpha == 0.0) {
      options.aggregator = kvevict::Aggregator::kSingle;
      options.alpha = 0.8;
      run_as(options);
    }
  }
}

/// The aggregator alone.
void run_ema(const GoldenCase& golden, GoldenReport& report) {
  const std::size_t n = golden.count("n");
  const std::size_t steps = golden.count("steps");
  const std::vector<float> start = golden.tensor("m0").floats();
  const std::vector<float> rows = golden.tensor("rows").floats();
  kvevict::RunningScores scores({.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1},
                                kvevict::Aggregator::kEma, golden.real("alpha"));
  scores.append(n);
  std::copy(start.begin(), start.end(), scores.values().begin());
  std::vector<double> m;
  std::size_t non_finite = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    non_finite += scores.update({rows.data() + step * n, n}, kvevict::kernels::best());
    m.insert(m.end(), scores.values().begin(), scores.values().end());
  }
  report.scores("m", golden.tensor("m").values, m);
  report.is_true("non_finite", non_finite == golden.count("non_finite"));
}

/// What a policy that was told of a prompt says its budget is, however long the sequence grows.
void run_inertiakv_budget(const GoldenCase& golden, GoldenReport& report) {
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const std::string number = std::to_string(i);
    const std::size_t prompt_len = golden.count("n." + number);
    kvevict::InertiaKV policy(
        {.budget = budget_of(golden.text("rho." + number))},
        {.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1});
    policy.begin(prompt_len);
    const auto budget = [&] {
      return policy.method().allocation(policy.sequence()).budget.tokens_of(prompt_len);
    };
    report.is_true("budget." + number, budget() == golden.count("budget." + number));
    if (prompt_len == 0 || prompt_len > 100'000)
      continue;  // no L0, or a state of that size
    policy.append(prompt_len);
    policy.append(1000);
    report.is_true("budget." + number + " later", budget() == golden.count("budget." + number));
  }
}

}  // namespace kvevict_test
