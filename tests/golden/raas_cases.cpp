#include "golden/drivers.hpp"
#include "golden/growing_text.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/policies/raas.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy raas` and `raas_bounds`.
namespace kvevict_test {
namespace {

void run(const GoldenCase& golden, GoldenReport& report, RowSource source) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const std::size_t prompt_len = golden.count("num_prompt");
  const std::size_t page_size = golden.count("page");
  const kvevict::CacheShape shape{
      .num_layers = 1,
      .num_q_heads = golden.count("num_q_heads"),
      .num_kv_heads = golden.has("num_kv_heads") ? golden.count("num_kv_heads") : 1,
      .head_dim = logits.shape.at(2)};
  // The budget of the case is for decoded tokens.
  kvevict::RaaSOptions options{.budget = prompt_len + golden.count("budget"),
                               .page_size = page_size,
                               .threshold = golden.real("alpha")};
  if (golden.has("stamp"))
    set_option(golden, "stamp", options.stamp);
  kvevict::RaaS policy(options, shape);
  report.covers(kvevict::RaaS::kName);
  PositionCache cache(shape);
  policy.begin(prompt_len);
  policy.append(prompt_len);
  cache.append(prompt_len);
  policy.end_prefill(cache.view());
  const auto page_of = [&](std::size_t position) { return (position - prompt_len) / page_size; };
  std::vector<double> evicted;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    policy.append(1);
    cache.append(1);
    hand_over_rows(policy, cache, 0, 1, source, [&](std::size_t head, std::size_t) {
      return logits.values.data() + (step * shape.num_q_heads + head) * shape.head_dim;
    });
    const std::vector<std::size_t> gone = cut(policy, cache)[0];
    evicted.push_back(gone.empty() ? -1 : static_cast<double>(page_of(gone[0])));
    if (!gone.empty()) {
      report.is_true("one whole page goes",
                     gone.size() == page_size && page_of(gone.back()) == page_of(gone[0]));
    }
  }
  report.equal("evicted", golden.tensor("evicted").values, evicted);
  const std::vector<std::size_t> positions = cache.positions(0, 0);
  report.equal("kept", golden.tensor("kept").values, positions);

  const std::vector<float> scores = lane_scores(policy, cache, 0);
  std::vector<std::size_t> pages;
  std::vector<double> stamps;
  for (std::size_t slot = prompt_len; slot < positions.size(); ++slot) {
    const double stamp = static_cast<double>(scores[slot]) - static_cast<double>(prompt_len);
    if (pages.empty() || pages.back() != page_of(positions[slot])) {
      pages.push_back(page_of(positions[slot]));
      stamps.push_back(stamp);
    }
    stamps.back() = std::max(stamps.back(), stamp);
  }
  report.equal("pages", golden.tensor("pages").values, pages);
  report.equal("stamps", golden.tensor("stamps").values, stamps);
}

}  // namespace

void run_raas(const GoldenCase& golden, GoldenReport& report) {
  run(golden, report, RowSource::kRows);
  run(golden, report, RowSource::kQueries);
}

void run_raas_bounds(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    GrowingText text(golden);
    kvevict::RaaSOptions options;
    set_run_options<kvevict::RaaSBounds>(golden, name, options);
    refuse_other_options(golden, name);
    kvevict::RaaSBounds policy(options, text.shape());
    text.run(report, name, policy, GrowingText::kWhole, [&](std::size_t first, std::size_t count) {
      text.hand_over_queries(policy, first, count, static_cast<float>(golden.real("soft_cap")));
    });
    // A page has the newest stamp of its tokens.
    const kvevict::Sequence& sequence = policy.sequence();
    const std::vector<float> scores = text.scores(policy);
    std::vector<float> stamps(sequence.num_lanes() * text.len(), 0.0F);
    std::size_t before = 0;
    for (std::size_t layer = 0; layer < sequence.num_lanes(); ++layer) {
      const kvevict::DecodePages pages{options.page_size};
      pages.for_each(sequence, layer, [&](std::size_t first, std::size_t last) {
        const auto begin = scores.begin() + static_cast<std::ptrdiff_t>(before + first);
        const float newest =
            *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(last - first));
        for (std::size_t slot = first; slot < last; ++slot)
          stamps[layer * text.len() + static_cast<std::size_t>(sequence.position(layer, slot))] =
              newest;
      });
      before += sequence.seq_len(layer);
    }
    report.equal(name + ".stamps", golden.tensor(name + ".stamps").values, stamps);
  }
}

}  // namespace kvevict_test
