#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lazy_lanes.hpp"
#include "kvevict/policies/offline_budgets.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of kvpress in which every layer or head has a budget of its own.
namespace kvevict_test {
namespace {

/// The masks of all layers, [num_kv_heads, len] each, whose records end in `suffix`.
void compare_layers(const GoldenCase& golden, GoldenReport& report, const std::string& suffix,
                    std::size_t num_layers, const std::vector<int>& keep) {
  const std::size_t slots = keep.size() / num_layers;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const std::string record = "L" + std::to_string(layer) + ".keep" + suffix;
    const auto first = keep.begin() + static_cast<std::ptrdiff_t>(layer * slots);
    report.equal(record, golden.tensor(record).values,
                 std::vector<int>(first, first + static_cast<std::ptrdiff_t>(slots)));
  }
}
/// Kept slots of every `len`.
std::vector<std::size_t> counts_of(const std::vector<int>& keep, std::size_t len) {
  std::vector<std::size_t> counts;
  for (std::size_t first = 0; first < keep.size(); first += len) {
    const auto begin = keep.begin() + static_cast<std::ptrdiff_t>(first);
    counts.push_back(
        static_cast<std::size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(len), 1)));
  }
  return counts;
}
/// Calls visit(recipe) for the scorer inside.
template <class Visit>
void visit_base(const GoldenCase& golden, Visit&& visit) {
  if (golden.text("base") == "knorm")
    return visit(kvevict::KnormRecipe());
  if (golden.text("base") == "keydiff")
    return visit(kvevict::KeyDiffRecipe());
  throw std::runtime_error("no driver for base " + golden.text("base"));
}

template <class Base>
void lukv_over(const GoldenCase& golden, GoldenReport& report) {
  using LUKV = kvevict::Policy<kvevict::Composed<kvevict::LUKVRecipe<Base>>>;
  const WindowPrompt prompt(golden, std::size_t{0});
  for (const bool official : {true, false}) {
    for (const std::string& ratio : ratios_of(golden)) {
      // Where kvpress' clamp changed the sum, only its own rounding gives its counts.
      double ideal = 0;
      double counted = 0;
      for (const double prune : golden.tensor("prune_ratio." + ratio).values)
        ideal += (1 - prune) * static_cast<double>(prompt.len);
      for (const double count : golden.tensor("head_counts." + ratio).values)
        counted += count;
      if (!official && std::nearbyint(ideal) != counted)
        continue;
      typename LUKV::Options options;
      options.num_sink_tokens = golden.count("sink");
      options.recent_window = golden.count("window");
      options.only_at_prefill_end = true;
      options.prune_ratios = golden.tensor("prune_ratio." + ratio).values;
      options.official_rounding = official;
      LUKV policy(options, prompt.shape);
      report.covers(LUKV::kName);
      prompt.feed(policy, prompt.ways()[0]);
      for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
        compare_scores(golden, report, "L" + std::to_string(layer) + ".scores", prompt.len,
                       prompt.scores(policy, layer));
      }
      const std::vector<int> keep = prompt.keep(policy);
      report.equal("head_counts." + ratio, golden.tensor("head_counts." + ratio).values,
                   counts_of(keep, prompt.len));
      compare_layers(golden, report, "." + ratio, prompt.shape.num_layers, keep);
    }
  }
}

template <class Base>
void per_layer_over(const GoldenCase& golden, GoldenReport& report) {
  using PerLayer = kvevict::Policy<kvevict::Composed<kvevict::PerLayerRecipe<Base>>>;
  const WindowPrompt prompt(golden, std::size_t{0});
  typename PerLayer::Options options;
  options.only_at_prefill_end = true;
  options.compression_ratios = golden.tensor("ratios").values;
  PerLayer policy(options, prompt.shape);
  report.covers(PerLayer::kName);
  prompt.feed(policy, prompt.ways()[0]);
  const std::vector<int> keep = prompt.keep(policy);
  compare_layers(golden, report, "", prompt.shape.num_layers, keep);
  std::vector<std::size_t> budgets;
  for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer)
    budgets.push_back(counts_of(keep, prompt.len)[layer * prompt.shape.num_kv_heads]);
  report.equal("budgets", golden.tensor("budgets").values, budgets);
}

}  // namespace

void run_duo_attention(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::DuoAttention::kName);
  const std::size_t len = golden.count("n");
  const kvevict::CacheShape shape{.num_layers = golden.count("num_layers"),
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = golden.count("head_dim")};
  const kvevict::views::ContiguousView view(shape, {}, {}, len);
  for (const std::string& ratio : ratios_of(golden)) {
    kvevict::DuoAttention policy({.head_scores = golden.tensor("head_scores").values,
                                  .streaming_ratio = golden.real("ratio." + ratio),
                                  .num_sink_tokens = golden.count("sink_size"),
                                  .recent_window = golden.count("recent_size"),
                                  .only_at_prefill_end = true},
                                 shape);
    policy.begin(len);
    policy.end_prefill(view);
    std::vector<int> streaming;
    for (const std::size_t tokens : policy.method().allocation(policy.sequence()).lane_budgets)
      streaming.push_back(tokens < len + golden.count("sink_size") ? 1 : 0);
    report.equal("streaming." + ratio, golden.tensor("streaming." + ratio).values, streaming);
    const kvevict::KeepMask& mask = policy.select(view);
    std::vector<int> keep;
    for (std::size_t lane = 0; lane < mask.num_lanes(); ++lane) {
      for (std::size_t slot = 0; slot < len; ++slot)
        keep.push_back(mask.keeps(lane / shape.num_kv_heads, lane % shape.num_kv_heads, slot) ? 1
                                                                                              : 0);
    }
    compare_layers(golden, report, "." + ratio, shape.num_layers, keep);
    // Of a prompt that fits in the windows kvpress reports a negative one.
    if (const double expected = golden.real("compression_ratio." + ratio); expected >= 0) {
      report.near("compression_ratio." + ratio, {expected},
                  std::vector<double>{static_cast<double>(mask.total_evicted()) /
                                      static_cast<double>(keep.size())},
                  1e-6);
    }
  }
}

void run_simlayerkv(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::SimLayerKV::kName);
  const WindowPrompt prompt(golden, "n_last");
  for (const WindowPrompt::Way& way : prompt.ways()) {
    for (char ratio = 'a'; golden.has(std::string("lazy_threshold.") + ratio); ++ratio) {
      const std::string suffix = std::string(".") + ratio;
      kvevict::SimLayerKV policy({.lazy_threshold = golden.real("lazy_threshold" + suffix),
                                  .num_initial = golden.count("n_initial"),
                                  .recent_window = golden.count("n_recent"),
                                  .num_last = golden.count("n_last")},
                                 prompt.shape);
      prompt.feed(policy, way);
      const auto& method = policy.method();
      std::vector<double> mass;
      std::vector<int> lazy;
      for (std::size_t layer = 0; layer < prompt.shape.num_layers; ++layer) {
        mass.push_back(method.allocator().mass(policy.sequence(), method.parts().signal(), layer));
        lazy.push_back(method.allocation(policy.sequence()).lane_budgets[layer] < prompt.len ? 1
                                                                                             : 0);
      }
      report.scores("mass, " + way.name, golden.tensor("mass").values, mass);
      report.equal("lazy" + suffix, golden.tensor("lazy" + suffix).values, lazy);
      compare_layers(golden, report, suffix, prompt.shape.num_layers, prompt.keep(policy));
    }
  }
}

void run_lukv(const GoldenCase& golden, GoldenReport& report) {
  visit_base(golden, [&](auto base) { lukv_over<decltype(base)>(golden, report); });
}

void run_per_layer(const GoldenCase& golden, GoldenReport& report) {
  visit_base(golden, [&](auto base) { per_layer_over<decltype(base)>(golden, report); });
}

}  // namespace kvevict_test
