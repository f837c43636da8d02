#include "engine/eviction.hpp"
#include "engine/gguf.hpp"
#include "engine/observer.hpp"
#include "engine/sampler.hpp"
#include "engine/tokenizer.hpp"
#include "engine/transformer.hpp"
#include "golden/drivers.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// A real model's own values: the example engine and, on its cache, the library's attention
// statistics and projected value norms.
namespace kvevict_test {
namespace {

/// C escapes: \n, \t, \r, \\ and \xHH, between bars.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') {
      result.push_back(text[i]);
      continue;
    }
    const char kind = text[++i];
    if (kind == 'x') {
      result.push_back(static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)));
      i += 2;
    } else {
      result.push_back(kind == 'n' ? '\n' : kind == 't' ? '\t' : kind == 'r' ? '\r' : '\\');
    }
  }
  return result;
}

/// Records what the golden file compares, while the text goes through in one pass.
class ModelRecorder : public engine::StepObserver {
 public:
  ModelRecorder(const kvevict::CacheShape& shape, const engine::KvCache& cache, std::size_t window,
                std::vector<int> picked_layers)
      : shape_(shape), cache_(&cache), window_(window), picked_(std::move(picked_layers)) {}

  [[nodiscard]] std::size_t wants_attention_rows(std::size_t /*layer*/) const override { return 1; }
  [[nodiscard]] std::size_t wants_queries(std::size_t layer) const override {
    return is_picked(layer) ? window_ : 0;
  }
  [[nodiscard]] std::size_t wants_hidden(std::size_t layer) const override {
    return layer == 9 || layer == 20 ? static_cast<std::size_t>(-1) : 0;
  }
  void on_attention(std::size_t layer, const engine::HeadRows& rows) override {
    const std::size_t n = cache_->lane(layer, 0).size();
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0;
      for (std::size_t h = 0; h < rows.num_q_heads; ++h)
        mean += static_cast<double>(rows.row(h, 0)[i]);
      last_row.push_back(mean / static_cast<double>(rows.num_q_heads));
    }
  }
  void on_queries(std::size_t layer, const engine::HeadRows& rows) override {
    using namespace kvevict;
    const engine::CacheView view(shape_, *cache_);
    const std::size_t n = cache_->lane(layer, 0).size();
    for (const RowReduce reduce : {RowReduce::kSum, RowReduce::kSquares}) {
      AttentionColumns columns(shape_, reduce, HeadReduce::kNone);
      columns.append(n);
      RowsFromQueries from_queries;
      for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
        from_queries.visit(
            {.data = rows.data,
             .num_q_heads = rows.num_q_heads,
             .num_rows = rows.num_rows,
             .head_stride = static_cast<std::ptrdiff_t>(rows.head_stride),
             .row_stride = static_cast<std::ptrdiff_t>(rows.row_stride)},
            shape_, layer, head, view.lane(layer, head), n, window_, kernels::best(),
            [&](const GroupRows& group) { columns.observe(group, kernels::best()); });
        for (std::size_t h = 0; h < shape_.group_size(); ++h) {
          for (const float x : columns.of(layer, head, h)) {
            const auto value = static_cast<double>(x);
            if (reduce == RowReduce::kSum) {
              window_mean.push_back(value / static_cast<double>(window_));
            } else {
              window_l2.push_back(std::sqrt(value));
            }
          }
        }
      }
    }
  }
  void on_hidden(std::size_t layer, const engine::HiddenRows& rows) override {
    for (std::size_t t = 1; t < rows.num_rows; ++t) {
      const float* row = rows.data + t * rows.hidden_size;
      hidden_delta[layer].push_back(std::sqrt(kvevict::kernels::best().squared_distance(
          row, row - rows.hidden_size, rows.hidden_size)));
    }
  }

  std::vector<double> last_row;     // [num_layers, n]
  std::vector<double> window_mean;  // [picked layers, num_q_heads, n]
  std::vector<double> window_l2;
  std::map<std::size_t, std::vector<double>> hidden_delta;

 private:
  [[nodiscard]] bool is_picked(std::size_t layer) const {
    return std::find(picked_.begin(), picked_.end(), static_cast<int>(layer)) != picked_.end();
  }

  kvevict::CacheShape shape_;
  const engine::KvCache* cache_;
  std::size_t window_;
  std::vector<int> picked_;
};

void run_tokenizer(const GoldenCase& golden, GoldenReport& report,
                   const engine::Tokenizer& tokenizer) {
  for (std::size_t i = 0; i < golden.count("count"); ++i) {
    const std::string suffix = std::to_string(i);
    report.equal("ids_" + suffix, golden.tensor("ids_" + suffix).values,
                 tokenizer.encode(unescaped(golden.text("text_" + suffix))));
  }
}

}  // namespace

/// Float weights: 2e-3 on log-likelihoods, 1e-3 of the largest value on scores.
void run_model(const GoldenCase& golden, GoldenReport& report, const std::string& path) {
  using namespace kvevict;
  const engine::GgufFile file = engine::GgufFile::open(path);
  if (!golden.has("model")) {
    run_tokenizer(golden, report, engine::Tokenizer(file));
    return;
  }
  constexpr double kLogTolerance = 2e-3;
  constexpr double kScoreTolerance = 1e-3;
  engine::Transformer transformer{engine::Model(file)};
  const CacheShape shape = engine::cache_shape(transformer.model().config());
  const auto ids = golden.tensor("token_ids").ints();
  const std::vector<engine::Token> tokens(ids.begin(), ids.end());
  const auto picked = golden.tensor("picked_layers").ints();

  engine::KvCache cache = transformer.make_cache();
  ModelRecorder recorder(shape, cache, golden.count("observation_window"), picked);
  std::vector<double> nll;
  std::vector<float> last_logits;
  {
    const engine::LogitRows logits = transformer.forward(tokens, cache, tokens.size(), &recorder);
    for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
      nll.push_back(
          -engine::log_likelihood(logits.row(static_cast<Eigen::Index>(t)), tokens[t + 1]));
    }
    const auto row = logits.row(logits.rows() - 1);
    last_logits.assign(row.data(), row.data() + row.size());
  }
  report.near("nll", golden.tensor("nll").values, nll, kLogTolerance);
  report.scores(
      "hidden_delta_9_20", golden.tensor("hidden_delta_9_20").values,
      [&] {
        std::vector<double> both = recorder.hidden_delta[9];
        both.insert(both.end(), recorder.hidden_delta[20].begin(), recorder.hidden_delta[20].end());
        return both;
      }(),
      kScoreTolerance);
  report.scores("last_query_attention_mean_heads",
                golden.tensor("last_query_attention_mean_heads").values, recorder.last_row,
                kScoreTolerance);
  report.scores("window_attention_mean", golden.tensor("window_attention_mean").values,
                recorder.window_mean, kScoreTolerance);
  report.scores("window_attention_l2", golden.tensor("window_attention_l2").values,
                recorder.window_l2, kScoreTolerance);

  // |v W_O^h| of every cached value, through the factors of the Gram matrices.
  const auto projection = engine::output_projection(transformer.model());
  std::vector<double> norms;
  for (const int layer : picked) {
    for (std::size_t q_head = 0; q_head < shape.num_q_heads; ++q_head) {
      const engine::KvLane& lane =
          cache.lane(static_cast<std::size_t>(layer), q_head / shape.group_size());
      std::vector<float> out(lane.size());
      kernels::best().projected_norms(
          projection
              ->factors(static_cast<std::size_t>(layer), q_head / shape.group_size(),
                        GroupReading::kHeadProducts)
              .subspan(q_head % shape.group_size() * shape.head_dim * shape.head_dim)
              .data(),
          {lane.values.data(), static_cast<std::ptrdiff_t>(shape.head_dim * sizeof(float)),
           lane.size(), shape.head_dim, ElementType::kF32},
          out.data());
      norms.insert(norms.end(), out.begin(), out.end());
    }
  }
  report.scores("projected_value_norm", golden.tensor("projected_value_norm").values, norms,
                kScoreTolerance);

  const auto top = golden.tensor("top10_ids").ints();
  std::vector<double> top_log;
  const Eigen::Map<const Eigen::RowVectorXf> last(last_logits.data(),
                                                  static_cast<Eigen::Index>(last_logits.size()));
  for (const int id : top)
    top_log.push_back(engine::log_likelihood(last, id));
  report.near("top10_logprob", golden.tensor("top10_logprob").values, top_log, kLogTolerance);

  std::vector<int> greedy;
  engine::Token next = engine::greedy(last);
  while (greedy.size() < golden.tensor("greedy_ids").values.size()) {
    greedy.push_back(next);
    next = engine::greedy(transformer.forward({&next, 1}, cache).row(0));
  }
  report.equal("greedy_ids", golden.tensor("greedy_ids").values, greedy);
}

}  // namespace kvevict_test
