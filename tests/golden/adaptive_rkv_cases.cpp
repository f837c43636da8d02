#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/policies/block_eviction.hpp"
#include "support/golden.hpp"
#include "support/row_session.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy adaptive_rkv`.
namespace kvevict_test {
namespace {

void run(const GoldenCase& golden, GoldenReport& report, const std::string& name) {
  const PromptLogits logits(golden);
  const std::size_t num_positions = logits.num_positions();
  const std::vector<float> keys = golden.tensor("keys").floats();
  kvevict::CacheShape shape = logits.shape();
  shape.head_dim = golden.count("head_dim");
  kvevict::AdaptiveRKVOptions options;
  set_run_options<kvevict::AdaptiveRKV>(golden, name, options);
  RowSession<kvevict::AdaptiveRKV> session(options, shape, num_positions);
  report.covers(kvevict::AdaptiveRKV::kName);
  std::size_t length = 0;
  const auto positions = [&] {
    const std::vector<kvevict::Position> kept = session.kept();
    return std::vector<std::size_t>(kept.begin(), kept.end());
  };
  const auto append = [&](std::size_t count) {
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      const auto from = keys.begin() + static_cast<std::ptrdiff_t>((head * num_positions + length) *
                                                                   shape.head_dim);
      std::copy_n(from, count * shape.head_dim,
                  session.cache.key(0, head, session.cache.seq_len(head)));
    }
    session.append(count);
    length += count;
    const std::size_t wanted = std::min(session.policy.wanted_attention_rows(0), count);
    HeadRows rows(shape.num_q_heads);
    for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
      for (std::size_t r = 0; r < wanted; ++r) {
        std::vector<std::size_t> visible = positions();
        visible.resize(visible.size() - (wanted - 1 - r));
        rows[head].push_back(softmax_over(logits.row(head, length - wanted + r), visible));
      }
    }
    if (wanted > 0)
      session.rows(0, rows);
  };
  std::size_t event = 0;
  const auto cut_and_compare = [&](double step) {
    if (!session.policy.should_evict())
      return;
    const std::string record = name + ".event." + std::to_string(event++) + ".";
    report.is_true(record + "step", golden.real(record + "step") == step);
    report.equal(record + "positions", golden.tensor(record + "positions").values, positions());
    session.cut();
    report.equal(record + "kept", golden.tensor(record + "kept").values, positions());
  };
  session.policy.begin(logits.prompt_len());
  append(logits.prompt_len());
  session.policy.end_prefill(session.cache.view());
  cut_and_compare(-1);
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    append(1);
    cut_and_compare(static_cast<double>(step));
  }
  report.is_true(name + ".num_events", golden.count(name + ".num_events") == event);
}

}  // namespace

void run_adaptive_rkv(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    run(golden, report, name);
    refuse_other_options(golden, name);
  }
}

}  // namespace kvevict_test
