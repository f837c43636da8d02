#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "kvevict/core/rerotation.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy streaming_llm`: sinks and recent tokens, and the map for re-rotation.
namespace kvevict_test {
namespace {

struct Outcome {
  std::vector<float> kept;  // positions, as the cache itself holds them
  std::vector<int> new_positions;
  std::vector<int> shifts;
};

/// Appends as said and selects after each call. The key of a token is its position, so what is
/// kept is read from the cache that was really compacted.
Outcome run(const kvevict::StreamingLLMOptions& options, const std::vector<int>& appends) {
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  kvevict::StreamingLLM policy(options, shape);
  Outcome outcome;
  std::size_t length = 0;
  for (const int count : appends) {
    policy.append(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
      outcome.kept.push_back(static_cast<float>(length++));
    const kvevict::views::ContiguousView view(
        shape,
        kvevict::views::Tensor::hnd(outcome.kept.data(), kvevict::ElementType::kF32,
                                    outcome.kept.size(), 1, 1),
        {}, outcome.kept.size());
    const bool evicts = policy.should_evict();
    const kvevict::KeepMask& mask = policy.select(view);
    if (evicts != (mask.total_evicted() > 0)) {
      throw std::runtime_error("should_evict and select do not agree");
    }
    outcome.new_positions.clear();
    outcome.shifts.clear();
    kvevict::for_each_rerotation(policy.sequence(), mask, 0, [&](const kvevict::Rerotation& r) {
      outcome.new_positions.push_back(r.new_position);
      outcome.shifts.push_back(r.shift);
    });
    kvevict::compact(view, mask);
    outcome.kept.resize(mask.count(0, 0));
    policy.apply(mask);
  }
  return outcome;
}

// kvpress: one cut of a prompt to a share, told by scores of 0 and 1.
void run_ratios(const GoldenCase& golden, GoldenReport& report) {
  const std::size_t len = golden.count("n");
  const std::size_t num_heads = golden.count("num_kv_heads");
  for (const std::string& ratio : ratios_of(golden)) {
    const std::size_t sinks = golden.count("n_sink");
    const Outcome outcome =
        run({.num_sink_tokens = sinks, .recent_window = golden.count("n_kept." + ratio) - sinks},
            {static_cast<int>(len)});
    std::vector<int> keep(num_heads * len, 0);
    for (const float position : outcome.kept) {
      for (std::size_t head = 0; head < num_heads; ++head)
        keep[head * len + static_cast<std::size_t>(position)] = 1;
    }
    report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, keep);
    report.equal("scores." + ratio, golden.tensor("scores." + ratio).values, keep);
  }
}

}  // namespace

void run_streaming_llm(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::StreamingLLM::kName);
  if (!golden.has("num_cases"))
    return run_ratios(golden, report);
  for (std::size_t i = 0; i < golden.count("num_cases"); ++i) {
    const auto name = [&](const std::string& record) { return record + "." + std::to_string(i); };
    const kvevict::StreamingLLMOptions options{.num_sink_tokens = golden.count(name("sinks")),
                                               .recent_window = golden.count(name("recent"))};
    const std::vector<int> appends = golden.tensor(name("appends")).ints();
    const Outcome outcome = run(options, appends);
    report.equal(name("kept"), golden.tensor(name("kept")).values, outcome.kept);
    report.equal(name("new_pos"), golden.tensor(name("new_pos")).values, outcome.new_positions);
    report.equal(name("shift"), golden.tensor(name("shift")).values, outcome.shifts);
    // One call of m tokens equals m calls of one.
    const int length = std::accumulate(appends.begin(), appends.end(), 0);
    const Outcome one_by_one = run(options, std::vector<int>(static_cast<std::size_t>(length), 1));
    report.equal(name("kept") + ", one by one", golden.tensor(name("kept")).values,
                 one_by_one.kept);
  }
}

}  // namespace kvevict_test
