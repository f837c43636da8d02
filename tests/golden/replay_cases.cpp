#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/policies/external_scores.hpp"
#include "kvevict/policies/kvcompose.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/replay_scores.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of kvpress in which the text is read a second time: KVzip and KVCompose.
namespace kvevict_test {
namespace {

std::string layer_name(std::size_t layer) {
  return "L" + std::to_string(layer) + ".";
}

/// Kept entries of every KV head of every layer, and the layers' masks.
template <class P>
void compare_masks(const GoldenCase& golden, GoldenReport& report, const std::string& ratio,
                   const WindowPrompt& prompt, const P& policy) {
  report.covers(P::kName);
  const std::vector<int> keep = prompt.keep(policy);
  std::vector<std::size_t> counts;
  for (std::size_t lane = 0; lane < prompt.shape.num_layers * prompt.shape.num_kv_heads; ++lane) {
    const auto first = keep.begin() + static_cast<std::ptrdiff_t>(lane * prompt.len);
    counts.push_back(static_cast<std::size_t>(
        std::count(first, first + static_cast<std::ptrdiff_t>(prompt.len), 1)));
  }
  report.equal("head_counts." + ratio, golden.tensor("head_counts." + ratio).values, counts);
  for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
    const std::size_t size = prompt.shape.num_kv_heads * prompt.len;
    const auto first = keep.begin() + static_cast<std::ptrdiff_t>(layer * size);
    report.equal(layer_name(layer) + "keep." + ratio,
                 golden.tensor(layer_name(layer) + "keep." + ratio).values,
                 std::vector<int>(first, first + static_cast<std::ptrdiff_t>(size)));
  }
}
template <class P>
void compare_layer_scores(const GoldenCase& golden, GoldenReport& report,
                          const WindowPrompt& prompt, const P& policy) {
  const std::vector<float> all = prompt.finished_scores(policy);
  const std::size_t size = prompt.shape.num_kv_heads * prompt.len;
  for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
    // As they are before the sinks are raised: all of them count.
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(layer * size);
    report.scores(layer_name(layer) + "scores", golden.tensor(layer_name(layer) + "scores").values,
                  std::vector<float>(first, first + static_cast<std::ptrdiff_t>(size)));
  }
}

/// A pass over a layer whose queries and keys, [heads, rows, head_dim], are borrowed.
kvevict::ReplayPass pass_of(const WindowPrompt& prompt, const std::vector<float>& queries,
                            const float* keys, std::size_t key_rows, std::size_t first,
                            std::size_t last) {
  const kvevict::CacheShape& shape = prompt.shape;
  const auto dim = static_cast<std::ptrdiff_t>(shape.head_dim);
  const std::size_t rows = queries.size() / (shape.num_q_heads * shape.head_dim);
  return {.queries = {.data = queries.data(),
                      .num_q_heads = shape.num_q_heads,
                      .num_rows = rows,
                      .head_stride = static_cast<std::ptrdiff_t>(rows) * dim,
                      .row_stride = dim},
          .keys = keys,
          .key_head_stride = static_cast<std::ptrdiff_t>(key_rows) * dim,
          .key_row_stride = dim,
          .first_slot = first,
          .last_slot = last};
}
/// Scores of a pass over a layer go to the policy.
template <class P>
void hand_over(P& policy, kvevict::ReplayScores& scorer, const WindowPrompt& prompt,
               const kvevict::ReplayPass& pass, std::size_t layer) {
  const auto view = prompt.view(prompt.len);
  for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head) {
    policy.observe_scores(layer, head, scorer.score(pass, layer, head, view.lane(layer, head)),
                          pass.first_slot);
  }
}
/// What int(number * ratio) of kvpress is.
std::size_t truncated(std::size_t number, double ratio) {
  return static_cast<std::size_t>(static_cast<double>(number) * ratio);
}

}  // namespace

void run_kvzip(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, std::size_t{0});
  const kvevict::CacheShape& shape = prompt.shape;
  const bool plus = golden.count("kvzip_plus_normalization") != 0;
  kvevict::ReplayScoresOptions scoring;
  if (plus) {
    const auto projection = std::make_shared<kvevict::OutputProjection>(
        shape, golden.count("hidden_size"), kvevict::GroupReading::kHeadProducts);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      projection->set_layer(layer, golden.tensor(layer_name(layer) + "W_O").floats().data());
    }
    scoring.value = kvevict::ValueFactor::kProjected;
    scoring.output_projection = projection;
  }
  kvevict::ReplayScores scorer(shape, scoring);
  const std::size_t chunk_size = golden.count("chunk_size");
  if (golden.count("num_chunks") != (prompt.len + chunk_size - 1) / chunk_size)
    throw std::runtime_error("unknown way to cut " + golden.path() + " in chunks");
  const auto run = [&](kvevict::Budget budget) {
    kvevict::KVzip policy({.budget = budget,
                           .layerwise = golden.count("layerwise") != 0,
                           .num_sink_tokens = golden.count("n_sink"),
                           .min_keep = 0},
                          shape);
    prompt.feed(policy, prompt.ways()[0]);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::size_t first = 0; first < prompt.len; first += chunk_size) {
        const std::string chunk =
            layer_name(layer) + "C" + std::to_string(first / chunk_size) + ".";
        const std::vector<float> queries = golden.tensor(chunk + "queries").floats();
        const std::vector<float> keys = golden.tensor(chunk + "keys_repeat").floats();
        const std::vector<float> norms =
            plus ? golden.tensor(chunk + "hidden_norm").floats() : std::vector<float>();
        kvevict::ReplayPass pass = pass_of(prompt, queries, keys.data(),
                                           keys.size() / (shape.num_kv_heads * shape.head_dim),
                                           first, std::min(first + chunk_size, prompt.len));
        pass.num_sink_tokens = golden.count("n_sink");
        pass.row_norms = norms;
        hand_over(policy, scorer, prompt, pass, layer);
      }
    }
    return policy;
  };
  compare_layer_scores(golden, report, prompt, run(kvevict::Budget::keep_ratio(1)));
  for (const std::string& ratio : ratios_of(golden)) {
    const double dropped = golden.real("ratio." + ratio);
    const std::size_t of_layer = shape.num_kv_heads * prompt.len;
    const std::size_t all = shape.num_layers * of_layer;
    const std::size_t kept = golden.count("layerwise") != 0
                                 ? shape.num_layers * (of_layer - truncated(of_layer, dropped))
                                 : all - truncated(all, dropped);
    compare_masks(golden, report, ratio, prompt, run(kvevict::Budget::total(kept)));
  }
}

void run_kvcompose(const GoldenCase& golden, GoldenReport& report) {
  const WindowPrompt prompt(golden, 0, 2);
  const kvevict::CacheShape& shape = prompt.shape;
  const std::size_t len = prompt.len;
  const auto reduce_of = [&](const std::string& name) {
    if (golden.text(name) == "max")
      return kvevict::GroupReduce::kMax;
    if (golden.text(name) == "mean")
      return kvevict::GroupReduce::kMean;
    throw std::runtime_error("unknown " + name + " " + golden.text(name));
  };
  kvevict::ReplayScores scorer(
      shape, {.rows = reduce_of("agg_task"),
              .heads = reduce_of("agg_group"),
              .value = golden.count("add_v_norm") != 0 ? kvevict::ValueFactor::kNorm
                                                       : kvevict::ValueFactor::kNone});
  const auto feed = [&](auto policy) {
    prompt.feed(policy, prompt.ways()[0]);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::vector<float> queries = golden.tensor(layer_name(layer) + "queries").floats();
      const std::vector<float> keys = golden.tensor(layer_name(layer) + "keys").floats();
      hand_over(policy, scorer, prompt,
                pass_of(prompt, queries, keys.data() + len * shape.head_dim, 2 * len, 0, len),
                layer);
    }
    return policy;
  };
  const bool add_mean = golden.count("add_mean_across_heads") != 0;
  const auto head_reduce = reduce_of("agg_head") == kvevict::GroupReduce::kMax
                               ? kvevict::RankReduce::kMax
                               : kvevict::RankReduce::kMean;
  const std::size_t min_keep = golden.count("keep_token_lower_bound");
  const auto structured = [&](kvevict::Budget budget) {
    return feed(kvevict::KVCompose({.budget = budget,
                                    .add_mean_across_heads = add_mean,
                                    .head_reduce = head_reduce,
                                    .min_keep = min_keep,
                                    .official_rounding = true},
                                   shape));
  };
  const auto unstructured = [&](kvevict::Budget budget) {
    return feed(kvevict::KVComposeUnstructured(
        {.budget = budget, .add_mean_across_heads = add_mean, .min_keep = min_keep}, shape));
  };
  compare_layer_scores(golden, report, prompt, unstructured(kvevict::Budget::keep_ratio(1)));
  const bool is_structured = golden.count("structured") != 0;
  for (const std::string& ratio : ratios_of(golden)) {
    const double kept = 1 - golden.real("ratio." + ratio);
    if (is_structured) {
      const std::size_t ranks = std::max<std::size_t>(1, truncated(shape.num_layers * len, kept));
      compare_masks(golden, report, ratio, prompt,
                    structured(kvevict::Budget::total(ranks * shape.num_kv_heads)));
    } else {
      const std::size_t entries =
          std::max<std::size_t>(1, truncated(shape.num_layers * shape.num_kv_heads * len, kept));
      compare_masks(golden, report, ratio, prompt, unstructured(kvevict::Budget::total(entries)));
    }
  }
}

}  // namespace kvevict_test
