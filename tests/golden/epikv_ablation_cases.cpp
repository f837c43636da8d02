#include "golden/drivers.hpp"
#include "golden/run_options.hpp"
#include "golden/step_logits.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/policies/epikv_attention.hpp"
#include "kvevict/policies/epikv_segments.hpp"
#include "support/golden.hpp"
#include "support/row_session.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy epikv_ablations`: what the EpiKV paper compares with and has scores of
// hidden vectors in.
namespace kvevict_test {
namespace {

template <class P>
void run(const GoldenCase& golden, GoldenReport& report, const std::string& name) {
  const GoldenCase::Tensor& logits = golden.tensor("logits");
  const GoldenCase::Tensor& hidden = golden.tensor("hidden");
  const std::vector<float> keys = golden.tensor("keys").floats();
  const std::vector<float> rows = hidden.floats();
  const std::vector<float> last_prompt = golden.tensor("last_prompt").floats();
  const std::size_t num_positions = logits.shape.at(3);
  const std::size_t dim = hidden.shape.at(2);
  const std::size_t prompt_len = golden.count("num_prompt");
  const kvevict::CacheShape shape{.num_layers = golden.count("num_layers"),
                                  .num_q_heads = golden.count("num_q_heads"),
                                  .num_kv_heads = golden.count("num_kv_heads"),
                                  .head_dim = golden.count("head_dim")};
  typename P::Options options;
  set_run_options<P>(golden, name, options);
  RowSession<P> session(options, shape, num_positions);
  report.covers(P::kName);
  std::size_t length = 0;
  const auto append = [&](std::size_t count) {
    for (std::size_t lane = 0; lane < shape.num_layers * shape.num_kv_heads; ++lane) {
      const auto from = keys.begin() + static_cast<std::ptrdiff_t>((lane * num_positions + length) *
                                                                   shape.head_dim);
      std::copy_n(from, count * shape.head_dim,
                  session.cache.key(lane / shape.num_kv_heads, lane % shape.num_kv_heads,
                                    session.cache.seq_len(lane)));
    }
    session.append(count);
    length += count;
  };
  const auto observe_hidden = [&](const float* vectors, std::size_t layer_stride) {
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      if (session.policy.wants_hidden(layer)) {
        session.policy.observe_hidden(
            layer, {vectors + layer * layer_stride, 1, dim,
                    static_cast<std::ptrdiff_t>(dim * sizeof(float)), kvevict::ElementType::kF32});
      }
    }
  };
  session.policy.begin(prompt_len);
  append(prompt_len);
  observe_hidden(last_prompt.data(), dim);
  session.policy.end_prefill(session.cache.view());
  std::size_t event = 0;
  for (std::size_t step = 0; step < golden.count("steps"); ++step) {
    append(1);
    const std::vector<kvevict::Position> cached = session.kept();
    const std::vector<std::size_t> positions(cached.begin(), cached.end());
    observe_hidden(rows.data() + step * dim, hidden.shape.at(1) * dim);
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
      if constexpr (P::kAttentionUse != kvevict::AttentionUse::kNone) {
        if (!session.policy.wants_attention(layer))
          continue;
        HeadRows of_layer;
        for (std::size_t head = 0; head < shape.num_q_heads; ++head) {
          const std::size_t row = (step * shape.num_layers + layer) * shape.num_q_heads + head;
          of_layer.push_back({softmax_over(logits.values.data() + row * num_positions, positions)});
        }
        session.rows(layer, of_layer);
      }
    }
    if (!session.cut())
      continue;
    const std::string record = name + ".event." + std::to_string(event++) + ".";
    report.is_true(record + "step", golden.count(record + "step") == step);
    report.equal(record + "kept", golden.tensor(record + "kept").values, session.kept());
  }
  report.is_true(name + ".num_events", golden.count(name + ".num_events") == event);
  refuse_other_options(golden, name);
}

}  // namespace

void run_epikv_ablations(const GoldenCase& golden, GoldenReport& report) {
  for (const std::string& name : golden.words("runs")) {
    const std::string& method = golden.text(name + ".method");
    if (method == "attention") {
      run<kvevict::EpiKVAttention>(golden, report, name);
    } else if (method == "segment_hs") {
      run<kvevict::EpiKVSegmentHS>(golden, report, name);
    } else if (method == "seg") {
      run<kvevict::EpiKVSeg>(golden, report, name);
    } else {
      throw std::runtime_error("no method " + method);
    }
  }
}

}  // namespace kvevict_test
