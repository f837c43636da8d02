#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_CHECK_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_CHECK_HPP_

#include "kvevict/kernels/kernels.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/prose.hpp"
#include "lm/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// check: does the adapter see what the engine computed with?
namespace llama_example {

/// How far what the adapter sees is from what the engine computed: attention rows from the queries
/// and the session's view, times V, against the node's own output. Relative to its largest value.
class Rebuild {
 public:
  explicit Rebuild(Session*& session) : session_(&session) {}

  void operator()(const ggml_tensor& node) {
    const auto attention =
        kvevict::llama_cpp::nodes::read_attention<kvevict::llama_cpp::Ggml>(node);
    if (!attention || *session_ == nullptr)
      return;
    const auto& queries = attention->queries;
    const std::size_t group = attention->shape.group_size();
    const std::size_t dim = attention->shape.head_dim;
    const auto view = (*session_)->view();
    double worst = 0.0;
    double largest = 0.0;
    for (std::size_t h = 0; h < queries.num_q_heads; ++h) {
      const kvevict::Lane lane = view.lane(attention->layer, h / group);
      load(lane.keys, lane.seq_len, dim, keys_);
      load(lane.values, lane.seq_len, dim, values_);
      for (std::size_t back = 0; back < std::min<std::size_t>(4, queries.num_rows); ++back) {
        const std::size_t row = queries.num_rows - 1 - back;
        const float* q = queries.row(h, row);
        const std::size_t seen = lane.seq_len - back;
        weights_.assign(seen, 0.0);
        for (std::size_t s = 0; s < seen; ++s) {
          for (std::size_t c = 0; c < dim; ++c)
            weights_[s] += static_cast<double>(q[c]) * static_cast<double>(keys_[s * dim + c]);
          weights_[s] *= static_cast<double>(queries.scale);
        }
        const double highest = *std::max_element(weights_.begin(), weights_.end());
        double sum = 0.0;
        for (double& weight : weights_)
          sum += weight = std::exp(weight - highest);
        const auto* out = reinterpret_cast<const float*>(static_cast<const char*>(node.data) +
                                                         h * node.nb[1] + row * node.nb[2]);
        for (std::size_t c = 0; c < dim; ++c) {
          double value = 0.0;
          for (std::size_t s = 0; s < seen; ++s)
            value += weights_[s] / sum * static_cast<double>(values_[s * dim + c]);
          worst = std::max(worst, std::abs(value - static_cast<double>(out[c])));
          largest = std::max(largest, std::abs(static_cast<double>(out[c])));
        }
      }
    }
    error_ = std::max(error_, worst / largest);
    ++num_nodes_;
  }

  /// Since the call before: the largest error of a layer, and how many nodes were seen.
  std::pair<double, std::size_t> take() {
    return {std::exchange(error_, 0.0), std::exchange(num_nodes_, std::size_t{0})};
  }

 private:
  // All rows of a lane, by slot.
  static void load(const kvevict::Rows& rows, std::size_t count, std::size_t size,
                   std::vector<float>& out) {
    out.resize(count * size);
    for (std::size_t slot = 0; slot < count; ++slot) {
      kvevict::kernels::best().widen(rows.row(slot), rows.type, size, out.data() + slot * size);
    }
  }

  Session** session_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<double> weights_;
  double error_ = 0.0;
  std::size_t num_nodes_ = 0;
};

/// Prints the errors and returns 1 where one is too large.
inline int check(const Common& common, const std::string& cache) {
  const ggml_type cache_type = cache == "f32"    ? GGML_TYPE_F32
                               : cache == "bf16" ? GGML_TYPE_BF16
                               : cache == "q8_0" ? GGML_TYPE_Q8_0
                                                 : GGML_TYPE_F16;
  // llama.cpp rounds queries to the type of a cache that is not f16, and f32 to f16.
  const bool exact = cache_type == GGML_TYPE_F16;

  const Model model(common.model);
  const Text text(common.model);
  const Tokens story = text.tokenizer.encode(lm::kStory);
  const std::span<const Token> tokens(story);
  const Threads threads(common.num_threads);
  Runtime runtime(model, threads, {.num_cells = 1024, .cache_type = cache_type});
  Session* current = nullptr;
  Rebuild rebuild(current);
  runtime.tap = std::ref(rebuild);
  lm::Table table({"attention rebuilt, " + cache + " cache", "nodes", "error", "allowed"});
  bool good = true;
  // llama.cpp rounds more in ubatches of fewer than 64 tokens.
  const auto report = [&](const std::string& label, double allowed_f16) {
    const double allowed = exact ? allowed_f16 : 5e-2;
    const auto [error, nodes] = rebuild.take();
    char number[32];
    std::snprintf(number, sizeof(number), "%.1e", error);
    char limit[32];
    std::snprintf(limit, sizeof(limit), "%.0e", allowed);
    table.add({label, std::to_string(nodes), number, limit});
    good = good && nodes > 0 && error < allowed;
  };
  Session session(runtime.engine(),
                  runtime.make_policy("random_eviction",
                                      "budget=120,shared=true,num_sink_tokens=4,recent_window=8,"
                                      "only_at_prefill_end=true"),
                  {.compact = false, .max_distance = 600});
  current = &session;
  session.begin_prompt(300);
  session.feed(tokens.first(300));
  report("prompt", 1e-5);
  session.end_prompt();
  session.decode(tokens[300]);
  report("decode, holes", 5e-2);
  session.begin_prompt(100);
  session.feed(tokens.subspan(301, 100));
  report("100 tokens into holes", 1e-5);
  session.end_prompt();
  const bool compacted = session.compact();
  session.decode(tokens[401]);
  report("decode, compacted", 5e-2);
  session.begin_prompt(300);
  session.feed(tokens.subspan(402, 300));
  report("300 tokens, compacted", 1e-5);
  session.end_prompt();
  session.decode(tokens[702]);
  rebuild.take();
  const auto shifts = session.counters().shifts;
  session.begin_prompt(100);
  session.feed(tokens.subspan(703, 100));
  report(shifts > 0 ? "100 tokens, old block moved up" : "100 tokens more", 1e-5);
  table.print(stdout);
  const bool moved = shifts > 0 || !runtime.engine().can_shift();
  if (!compacted || !moved)
    std::printf("the cache was not compacted, or the old block not moved\n");
  return good && compacted && moved ? 0 : 1;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_CHECK_HPP_
