#include "golden/drivers.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/projected_norms.hpp"
#include "support/golden.hpp"

#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvevict_test {
namespace {

/// One case: the prompt, W_O, and what is compared.
class LaProxCase {
 public:
  LaProxCase(const GoldenCase& golden, GoldenReport& report)
      : golden_(golden), report_(report), prompt_(golden, "window") {
    const std::size_t hidden_size = golden.count("hidden_size");
    auto projection = std::make_shared<kvevict::OutputProjection>(prompt_.shape, hidden_size);
    for (std::size_t layer = 0; layer < prompt_.shape.num_layers; ++layer) {
      const std::vector<float> weight = golden.tensor(of_layer(layer, "W_O")).floats();
      if (weight.size() != prompt_.shape.num_q_heads * prompt_.shape.head_dim * hidden_size) {
        throw std::runtime_error(golden.path() + ": size of W_O");
      }
      projection->set_layer(layer, weight.data());
    }
    projection_ = std::move(projection);
  }

  void run() {
    for (std::size_t layer = 0; layer < prompt_.shape.num_layers; ++layer)
      check_factors(layer);
    for (const std::string& reading : golden_.words("readings")) {
      for (const std::string& stage : golden_.words("stages")) {
        if (reading == "d" && stage == "attn")
          continue;  // has no attention norm of its own
        const std::string name = reading + "." + stage;
        kvevict::LaProxOptions options = base(reading, stage);
        check_scores(name, options, prompt_.len - prompt_.window);
        check_keep("keep." + name + ".inside.", options);
        options.window_extra = true;
        check_keep("keep." + name + ".extra.", options);
        options.window_extra = false;
        if (golden_.has(of_layer(0, name + ".all.p"))) {
          options.normaliser = kvevict::LayerNormaliser::kAllSlots;
          check_scores(name + ".all", options, prompt_.len);
          check_keep("keep." + name + ".all.inside.", options);
        }
      }
    }
    for (const std::string& stage : golden_.words("stages")) {
      kvevict::LaProxOptions options = base("b", stage);
      options.output_projection = nullptr;
      options.value_factor = kvevict::ValueFactor::kNone;
      check_keep("keep.A." + stage + ".inside.", options, stage == "attn");
      options.value_factor = kvevict::ValueFactor::kNorm;
      check_keep("keep.AV." + stage + ".inside.", options, stage == "attn");
    }
    kvevict::LaProxOptions options = base("b", "attn");
    check_keep("alloc.global.", options);
    options.normaliser = kvevict::LayerNormaliser::kNone;
    check_keep("alloc.raw.", options);
    options.competition = kvevict::Competition::kLayer;
    check_keep("alloc.layer.", options);
    options.competition = kvevict::Competition::kLane;
    check_keep("alloc.head.", options);
  }

 private:
  [[nodiscard]] static std::string of_layer(std::size_t layer, const std::string& name) {
    return "L" + std::to_string(layer) + "." + name;
  }

  [[nodiscard]] kvevict::LaProxOptions base(const std::string& reading,
                                            const std::string& stage) const {
    kvevict::LaProxOptions options{.budget = prompt_.len,
                                   .observation_window = prompt_.window,
                                   .pooling = {.kernel_size = golden_.count("kernel")},
                                   .output_projection = projection_};
    if (reading == "a") {
      options.group_reading = kvevict::GroupReading::kHeadProducts;
    } else if (reading == "b") {
      options.group_reading = kvevict::GroupReading::kMeanNorms;
    } else if (reading == "c") {
      options.group_reading = kvevict::GroupReading::kSummed;
    } else if (reading == "d") {
      options.group_reading = kvevict::GroupReading::kExact;
    } else {
      throw std::runtime_error(golden_.path() + ": unknown reading " + reading);
    }
    if (stage == "attn") {
      options.pool_stage = kvevict::PoolStage::kAttention;
    } else if (stage == "product") {
      options.pool_stage = kvevict::PoolStage::kProduct;
    } else if (stage == "none") {
      options.pooling.kernel_size = 1;
    } else {
      throw std::runtime_error(golden_.path() + ": unknown stage " + stage);
    }
    return options;
  }

  // Attention side and value side alone.
  void check_factors(std::size_t layer) {
    const kvevict::CacheShape& shape = prompt_.shape;
    const auto columns = [&](kvevict::HeadReduce heads, const std::string& record) {
      kvevict::AttentionColumns squares(shape, kvevict::RowReduce::kSquares, heads);
      squares.append(prompt_.len);
      prompt_.visit_rows(layer, [&](const kvevict::GroupRows& rows) {
        squares.observe(rows, kvevict::kernels::best());
      });
      std::vector<double> actual;
      for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
        for (std::size_t i = 0; i < squares.arrays_per_kv_head(); ++i) {
          for (const float square : squares.of(layer, head, i)) {
            actual.push_back(std::sqrt(static_cast<double>(square)));
          }
        }
      }
      report_.scores(record, golden_.tensor(record).values, actual);
    };
    columns(kvevict::HeadReduce::kNone, of_layer(layer, "column_l2"));
    columns(kvevict::HeadReduce::kGroupMean, of_layer(layer, "group_mean_column_l2"));

    std::vector<float> norms(shape.num_q_heads * prompt_.len);
    std::vector<float> gathered;
    const auto view = prompt_.view(prompt_.len);
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      const std::size_t size = shape.group_size() * prompt_.len;
      kvevict::projected_norms(view.lane(layer, head).values, shape.head_dim, 0, prompt_.len,
                               projection_->factors(layer, head, kvevict::GroupReading::kMeanNorms),
                               kvevict::kernels::best(), gathered,
                               std::span(norms).subspan(head * size, size));
    }
    const std::string record = of_layer(layer, "projected_norm");
    report_.scores(record, golden_.tensor(record).values, norms);
  }

  // p of every layer, up to one factor for the whole model, and the sums of the layers.
  void check_scores(const std::string& name, const kvevict::LaProxOptions& options,
                    std::size_t count) {
    for (const WindowPrompt::Way& way : prompt_.ways()) {
      kvevict::LaProx policy(options, prompt_.shape);
      prompt_.feed(policy, way);
      std::vector<std::vector<double>> actual;
      std::vector<double> sums;
      double expected_total = 0;
      for (std::size_t layer = 0; layer < prompt_.shape.num_layers; ++layer) {
        actual.push_back(prompt_.first_slots(prompt_.scores(policy, layer), count));
        sums.push_back(std::accumulate(actual.back().begin(), actual.back().end(), 0.0));
        const auto& expected = golden_.tensor(of_layer(layer, name + ".p")).values;
        expected_total += std::accumulate(expected.begin(), expected.end(), 0.0);
      }
      const double factor = expected_total / std::accumulate(sums.begin(), sums.end(), 0.0);
      for (std::size_t layer = 0; layer < actual.size(); ++layer) {
        for (double& score : actual[layer])
          score *= factor;
        sums[layer] *= factor;
        const std::string record = of_layer(layer, name + ".p");
        report_.scores(record + ", " + way.name, golden_.tensor(record).values, actual[layer]);
      }
      if (golden_.has("layer_sum." + name)) {
        report_.scores("layer_sum." + name, golden_.tensor("layer_sum." + name).values, sums);
      }
    }
  }

  void check_keep(const std::string& prefix, kvevict::LaProxOptions options, bool required = true) {
    for (std::size_t i = 0; i < golden_.count("num_budgets"); ++i) {
      const std::string number = std::to_string(i);
      if (!required && !golden_.has(prefix + number))
        continue;
      const auto& expected = golden_.tensor(prefix + number).values;
      options.budget = golden_.count("budget." + number);
      for (const WindowPrompt::Way& way : prompt_.ways()) {
        kvevict::LaProx policy(options, prompt_.shape);
        prompt_.feed(policy, way);
        report_.equal(prefix + number + ", " + way.name, expected, prompt_.keep(policy));
      }
    }
  }

  const GoldenCase& golden_;
  GoldenReport& report_;
  WindowPrompt prompt_;
  std::shared_ptr<const kvevict::OutputProjection> projection_;
};

}  // namespace

void run_laprox(const GoldenCase& golden, GoldenReport& report) {
  report.covers(kvevict::LaProx::kName);
  LaProxCase(golden, report).run();
}

}  // namespace kvevict_test
