#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/policies/thinkv.hpp"
#include "support/golden.hpp"
#include "support/row_session.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Cases of `text policy thinkv`.
namespace kvevict_test {
namespace {

void run(const GoldenCase& golden, GoldenReport& report, const std::string& name) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const std::vector<float> keys = golden.tensor("keys").floats();
  const std::size_t num_positions = logits.shape.at(3);
  const kvevict::CacheShape shape{.num_layers = golden.count("num_layers"),
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = golden.count("head_dim")};
  kvevict::ThinKVOptions options;
  set_run_options<kvevict::ThinKV>(golden, name, options);
  RowSession<kvevict::ThinKV> session(options, shape, num_positions);
  report.covers(kvevict::ThinKV::kName);
  const std::size_t num_lanes = shape.num_layers * shape.num_kv_heads;
  std::size_t written = 0;
  const auto write = [&](std::size_t count) {  // keys to the slots that come next
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const auto from = keys.begin() + static_cast<std::ptrdiff_t>(
                                           (lane * num_positions + written) * shape.head_dim);
      std::copy_n(from, count * shape.head_dim,
                  session.cache.key(lane / shape.num_kv_heads, lane % shape.num_kv_heads,
                                    session.cache.seq_len(lane)));
    }
    written += count;
  };
  const auto positions = [&](std::size_t lane) {
    const std::vector<kvevict::Position> kept = session.kept(lane);
    return std::vector<std::size_t>(kept.begin(), kept.end());
  };
  write(golden.count("num_prompt"));
  session.prompt(golden.count("num_prompt"));
  std::size_t event = 0;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    write(1);
    session.append(1);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      if (!session.policy.wants_attention(layer))
        continue;
      HeadRows rows;
      for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
        const std::size_t row = (step * shape.num_layers + layer) * shape.num_q_heads + head;
        const std::size_t lane = layer * shape.num_kv_heads + head / shape.group_size();
        rows.push_back({softmax_over(logits.values.data() + row * num_positions, positions(lane))});
      }
      session.rows(layer, rows);
    }
    if (!session.cut())
      continue;
    const std::string record = name + ".event." + std::to_string(event++) + ".";
    report.is_true(record + "step", golden.count(record + "step") == step);
    std::vector<std::size_t> kept;
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      const std::vector<std::size_t> of_lane = positions(lane);
      kept.insert(kept.end(), of_lane.begin(), of_lane.end());
    }
    report.equal(record + "kept", golden.tensor(record + "kept").values, kept);
  }
  report.is_true(name + ".num_events", golden.count(name + ".num_events") == event);
}

}  // namespace

void run_thinkv(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    run(golden, report, name);
    refuse_other_options(golden, name);
  }
}

}  // namespace kvevict_test
