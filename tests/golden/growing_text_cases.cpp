#include "golden/drivers.hpp"
#include "golden/growing_text.hpp"
#include "golden/run_options.hpp"
#include "kvevict/policies/aggregated.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/dms.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

// Cases of policies that go by what the cache holds, by scores of others or by chance, over a text
// of several prompts.
namespace kvevict_test {
namespace {

template <class P>
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name,
         typename P::Options options, std::size_t chunk) {
  set_run_options<P>(golden, name, options);
  GrowingText text(golden);
  P policy(options, text.shape());
  text.run(report, name, policy, chunk, [](std::size_t, std::size_t) {});
  if (golden.has(name + ".scores")) {
    report.scores(name + ".scores", golden.tensor(name + ".scores").values, text.scores(policy));
  } else if (golden.has(name + ".draws")) {
    report.equal(name + ".draws", golden.tensor(name + ".draws").values, text.scores(policy));
  }
  if (golden.has(name + ".num_firings")) {
    report.is_true(name + ".num_firings",
                   golden.count(name + ".num_firings") == policy.sequence().num_firings());
  }
}
template <class P>
void run_all(const GoldenCase& golden, GoldenReport& report,
             const typename P::Options& options = {}) {
  for (const std::string& name : golden.words("runs")) {
    run<P>(golden, report, name, options, GrowingText::kWhole);
    // With slack it matters where in a prompt one asks; of a frozen score a piece is a step.
    if (golden.real_or(name + ".slack", 0) == 0 &&
        !(golden.has(name + ".temporal_rule") && golden.text(name + ".temporal_rule") == "frozen"))
      run<P>(golden, report, name, options, GrowingText::kPiece);
    refuse_other_options(golden, name);
  }
}

/// Scores of the tokens that have one are handed over as the tokens come.
template <class P>
void run_scored(const GoldenCase& golden, GoldenReport& report) {
  const std::vector<float> given = golden.tensor("token_scores").floats();
  const std::vector<int> has_score = golden.tensor("has_score").ints();
  for (const std::string& name : golden.words("runs")) {
    for (const std::size_t chunk : {GrowingText::kWhole, GrowingText::kPiece}) {
      typename P::Options options;
      set_run_options<P>(golden, name, options);
      GrowingText text(golden);
      P policy(options, text.shape());
      const auto hand_over = [&](std::size_t first, std::size_t count) {
        const std::size_t num_heads = text.shape().num_kv_heads;
        for (std::size_t lane = 0; lane < text.shape().num_layers * num_heads; ++lane) {
          const std::size_t newest = policy.sequence().seq_len(lane) - count;
          for (std::size_t i = 0; i < count; ++i) {
            if (has_score[first + i] == 0)
              continue;
            policy.observe_scores(lane / num_heads, lane % num_heads,
                                  std::span(given).subspan(lane * text.len() + first + i, 1),
                                  newest + i);
          }
        }
      };
      text.run(report, name, policy, chunk, hand_over);
      report.scores(name + ".scores", golden.tensor(name + ".scores").values, text.scores(policy));
    }
    refuse_other_options(golden, name);
  }
}

}  // namespace

void run_mean_centred_norm(const GoldenCase& golden, GoldenReport& report) {
  run_all<kvevict::MeanCentredNorm>(golden, report);
}
void run_aggregated_keydiff(const GoldenCase& golden, GoldenReport& report) {
  run_all<kvevict::AggregatedKeyDiff>(golden, report);
}
void run_dms_qfilters(const GoldenCase& golden, GoldenReport& report) {
  kvevict::DMSQFilters::Options options;
  options.query_filters =
      std::make_shared<const kvevict::QueryFilters>(golden.tensor("q_filter").floats());
  run_all<kvevict::DMSQFilters>(golden, report, options);
}
void run_kvzap(const GoldenCase& golden, GoldenReport& report) {
  run_scored<kvevict::KVzap>(golden, report);
}
void run_external_scores(const GoldenCase& golden, GoldenReport& report) {
  run_scored<kvevict::ExternalScores>(golden, report);
}
void run_random_eviction(const GoldenCase& golden, GoldenReport& report) {
  run_all<kvevict::RandomEviction>(golden, report);
}
void run_random_attention(const GoldenCase& golden, GoldenReport& report) {
  run_all<kvevict::RandomAttention>(golden, report);
}

}  // namespace kvevict_test
