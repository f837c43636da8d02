#include "golden/drivers.hpp"
#include "golden/expected_prompt.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/expected_attention.hpp"
#include "kvevict/scoring/future_queries.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

// Cases of `text policy expected_attention` and `capkv`: queries to come.
namespace kvevict_test {
namespace {

/// The stages before the scores; returns the statistics.
std::shared_ptr<const kvevict::QueryStatistics> compare_statistics(const GoldenCase& golden,
                                                                   GoldenReport& report,
                                                                   const WindowPrompt& prompt) {
  const kvevict::CacheShape& shape = prompt.shape;
  const bool with_covariance = golden.has("query_cov");
  kvevict::FutureQueries future("test", shape,
                                {.rotary = rotary_of(golden),
                                 .num_future = golden.count("n_future_positions"),
                                 .num_sink_tokens = golden.count("n_sink"),
                                 .with_covariance = with_covariance});
  kvevict::Sequence sequence("test", shape, kvevict::MaskScope::kHead);
  sequence.begin(prompt.len, {});
  sequence.append(prompt.len);
  future.observe(0, prompt.query_rows(0, 0, prompt.len), sequence,
                 prompt.view(prompt.len).lane(0, 0), kvevict::kernels::best());
  kvevict::Scratch scratch;
  std::vector<double> means;
  std::vector<double> covariances;
  std::vector<double> turned_means;
  std::vector<double> turned_covariances;
  const auto add = [](std::vector<double>& to, const auto& values) {
    to.insert(to.end(), values.begin(), values.end());
  };
  for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
    std::vector<float> mean(shape.head_dim);
    future.mean(sequence, 0, head, scratch, mean);
    add(turned_means, mean);
    add(means, future.statistics().mean(0, head));
    if (with_covariance) {
      std::vector<double> covariance(shape.head_dim * shape.head_dim);
      future.statistics().covariance(0, head, covariance);
      add(covariances, covariance);
      add(turned_covariances, future.turned_covariance(sequence, 0, head, scratch));
    }
  }
  report.scores("query_mean", golden.tensor("query_mean").values, turned_means);
  if (golden.has("query_mean_prerope"))
    report.scores("query_mean_prerope", golden.tensor("query_mean_prerope").values, means);
  if (with_covariance) {
    report.scores("query_cov_prerope", golden.tensor("query_cov_prerope").values, covariances);
    report.scores("query_cov", golden.tensor("query_cov").values, turned_covariances);
  }
  // As they would be read from a file.
  auto statistics = std::make_shared<kvevict::QueryStatistics>(shape, with_covariance);
  const std::size_t dim = shape.head_dim;
  for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
    const std::vector<float> mean(future.statistics().mean(0, head).begin(),
                                  future.statistics().mean(0, head).end());
    std::vector<float> covariance;
    for (std::size_t i = 0; with_covariance && i < dim * dim; ++i)
      covariance.push_back(static_cast<float>(covariances[head * dim * dim + i]));
    statistics->set(0, head, mean, covariance);
  }
  return statistics;
}

template <class Online, class Given>
void compare(const GoldenCase& golden, GoldenReport& report, typename Online::Options options) {
  const WindowPrompt prompt = expected_prompt(golden);
  set_expected_options(golden, options);
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    options.budget = budget;
    return Online(options, prompt.shape);
  });
  options.query_statistics = compare_statistics(golden, report, prompt);
  compare_ratios(golden, report, prompt, [&](std::size_t budget) {
    options.budget = budget;
    return Given(options, prompt.shape);
  });
}

}  // namespace

void run_expected_attention(const GoldenCase& golden, GoldenReport& report) {
  kvevict::ExpectedAttentionOptions options;
  options.use_covariance = golden.count("use_covariance") != 0;
  options.use_value_norm = golden.count("use_vnorm") != 0;
  options.epsilon = static_cast<float>(golden.real("epsilon"));
  compare<kvevict::ExpectedAttention, kvevict::ExpectedAttentionStats>(golden, report, options);
}
void run_capkv(const GoldenCase& golden, GoldenReport& report) {
  kvevict::CapKVOptions options;
  options.tau = static_cast<float>(golden.real("tau"));
  options.epsilon = static_cast<float>(golden.real("epsilon"));
  compare<kvevict::CapKV, kvevict::CapKVStats>(golden, report, options);
}

}  // namespace kvevict_test
