// Every policy that has a name, behind AnyPolicy, on one small model (4 layers, 8 query and 2 KV
// heads of 64, hidden size 512) with a prompt of 1024 tokens, cut to a quarter:
//
//   policy/<name> cut/<isa>     what stays at the end of the prompt, from signals that are there
//   policy/<name> decode/<isa>  a decode step: signals, and a cut where one is due
//
// A policy that is added to NamedPolicies has its rows here without a line more, or says at start
// what is missing in options_of.
#include "bench/common.hpp"
#include "engine/policies.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/query_filters.hpp"
#include "kvevict/scoring/query_statistics.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 4, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64};
constexpr std::size_t kHiddenSize = 512;
constexpr std::size_t kPrompt = 1024;
constexpr std::size_t kCapacity = 2 * kPrompt;

/// What an engine has; the same for all policies.
struct Engine {
  std::vector<float> keys = kvevict_bench::normal_values(4 * 2 * kCapacity * 64, 1);
  std::vector<float> values = kvevict_bench::normal_values(keys.size(), 2);
  std::vector<float> hidden = kvevict_bench::normal_values(64 * kHiddenSize, 3);
  std::vector<float> rows = kvevict_bench::normal_values(8 * kPrompt * kCapacity, 4);
  std::vector<float> queries = kvevict_bench::normal_values(8 * kPrompt * 64, 6);
  std::vector<TokenLabel> labels = std::vector<TokenLabel>(kPrompt);
  std::shared_ptr<OutputProjection> projection =
      std::make_shared<OutputProjection>(kShape, kHiddenSize, std::nullopt, true);
  RotaryEmbedding rotary;
  std::shared_ptr<QueryFilters> filters =
      std::make_shared<QueryFilters>(kvevict_bench::normal_values(4 * 2 * 64, 7));
  std::shared_ptr<QueryStatistics> statistics;

  Engine() {
    for (int pair = 0; pair < 32; ++pair)
      rotary.inv_freq.push_back(std::pow(10000.0, -pair / 32.0));
    statistics = std::make_shared<QueryStatistics>(kShape, true, rotary);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_q_heads; ++head) {
        for (std::size_t i = 0; i < 64; ++i)
          statistics->add(layer, head, queries.data() + (head * kPrompt + i) * 64);
      }
    }
    for (float& x : rows)
      x = std::abs(x) / kPrompt;
    const std::vector<float> weight = kvevict_bench::normal_values(8 * 64 * kHiddenSize, 5);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer)
      projection->set_layer(layer, weight.data());
  }
};

[[nodiscard]] Engine& engine() {
  static Engine engine;
  return engine;
}

/// Options under which a quarter of the prompt stays, or of what is decoded where the prompt does.
[[nodiscard]] std::string options_of(std::string_view name) {
  if (name == "FullKV")
    return "";
  if (name == "StreamingLLM")
    return "num_sink_tokens=4,recent_window=252";
  if (name.starts_with("H2O") || name == "FastGen" || name == "Keyformer" || name == "VATP")
    return "heavy=128,recent=128";
  if (name.starts_with("EpiKV") || name.starts_with("RaaS") || name == "ThinKV")
    return "budget=1088";
  if (name == "KVzap")
    return "threshold=0.67,recent_window=16";  // a quarter of normal scores is above it
  if (name == "LagKV")
    return "num_sink_tokens=4,lag_len=128,per_partition=25%";
  if (name == "DuoAttention")
    return "head_scores=.1:.2:.3:.4:.5:.6:.7:.8,num_sink_tokens=4,recent_window=252";
  if (name == "SimLayerKV")
    return "lazy_threshold=0,num_initial=4,recent_window=252";
  if (name == "PerLayerKnorm")
    return "compression_ratios=.75:.75:.75:.75";
  if (name == "LUKVKnorm")
    return "prune_ratios=.7:.8:.7:.8:.7:.8:.7:.8";
  return "budget=256";
}

[[nodiscard]] AnyPolicy make(std::string_view name) {
  ModelInfo model{.shape = kShape,
                  .output_projection = engine().projection,
                  .rotary = engine().rotary,
                  .query_filters = engine().filters,
                  .query_statistics = engine().statistics};
  model.supplied = model.supplied | Inputs::kScores;
  return engine::make_policy(name, options_of(name), model);
}

/// A policy and the lengths of its lanes.
class Session {
 public:
  explicit Session(std::string_view name) : policy_(make(name)) {
    policy_.begin(kPrompt);
    policy_.append(kPrompt);
    observe(kPrompt);
    policy_.end_prefill(view());
  }
  void cut() { benchmark::DoNotOptimize(&policy_.select(view())); }
  void decode() {
    policy_.append(1);
    observe(1);
    evict_if_due();
    // Where nothing is ever cut, the sequence starts over before the cache is full.
    if (policy_.sequence().seq_len(0) + 1 >= kCapacity)
      policy_.truncate(kPrompt);
  }
  void evict_if_due() {
    if (policy_.should_evict())
      policy_.apply(policy_.select(view()));
  }

 private:
  [[nodiscard]] views::ContiguousView view() {
    lengths_.clear();
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
        lengths_.push_back(policy_.sequence().seq_len(layer, head));
    }
    const auto tensor = [](std::vector<float>& data) {
      return views::Tensor::hnd(data.data(), ElementType::kF32, kCapacity, 2, 64);
    };
    return {kShape, tensor(engine().keys), tensor(engine().values), lengths_};
  }
  void observe(std::size_t count) {
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      if (const std::size_t wanted = policy_.wanted_attention_rows(layer); wanted > 0) {
        if (policy_.attention_use() == AttentionUse::kQueries) {
          policy_.observe_queries(layer,
                                  {.data = engine().queries.data(),
                                   .num_q_heads = kShape.num_q_heads,
                                   .num_rows = wanted,
                                   .head_stride = kPrompt * 64,
                                   .row_stride = 64},
                                  view());
        } else {
          policy_.observe_attention(layer, {.data = engine().rows.data(),
                                            .num_q_heads = kShape.num_q_heads,
                                            .num_rows = wanted,
                                            .head_stride = kPrompt * kCapacity,
                                            .row_stride = kCapacity});
        }
      }
      if (policy_.wants_hidden(layer)) {
        policy_.observe_hidden(layer, {.data = engine().hidden.data() + next_ % 63 * kHiddenSize,
                                       .num_rows = std::min<std::size_t>(count, 1),
                                       .hidden_size = kHiddenSize,
                                       .row_stride_bytes = kHiddenSize * sizeof(float)});
      }
    }
    if (policy_.wants_cache())
      policy_.observe_cache(view());
    if (policy_.wants_labels())
      policy_.observe_labels(std::span(engine().labels).first(count));
    if (policy_.wants_scores())
      observe_scores(count);
    ++next_;
  }

  // Of the newest tokens, as something outside would work them out.
  void observe_scores(std::size_t count) {
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
        policy_.observe_scores(layer, head, std::span(engine().values).first(count),
                               policy_.sequence().seq_len(layer, head) - count);
      }
    }
  }

  AnyPolicy policy_;
  std::vector<std::size_t> lengths_;
  std::size_t next_ = 0;
};

[[maybe_unused]] const bool kRegistered = [] {
  const std::string isa = kvevict_bench::isa_name(kernels::best().isa);
  for (const std::string& name : engine::policy_names()) {
    static_cast<void>(make(name));  // refused at once, not in the middle of a run
    // Made when it is first timed: a run that asks for other rows need not wait for it.
    kvevict_bench::add("policy/" + name + " cut", isa, {},
                       [=, s = std::shared_ptr<Session>()]() mutable {
                         if (s == nullptr)
                           s = std::make_shared<Session>(name);
                         s->cut();
                       });
    kvevict_bench::add("policy/" + name + " decode", isa, {},
                       [=, s = std::shared_ptr<Session>()]() mutable {
                         if (s == nullptr) {
                           s = std::make_shared<Session>(name);
                           s->evict_if_due();
                         }
                         s->decode();
                       });
  }
  return true;
}();

}  // namespace
