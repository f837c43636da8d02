// Every policy that has a name, behind AnyPolicy, on one small model (4 layers, 8 query and 2 KV
// heads of 64, hidden size 512) with a prompt of 1024 tokens, cut to a quarter:
//
//   policy/<name> cut/<isa>     what stays at the end of the prompt, from signals that are there
//   policy/<name> decode/<isa>  a decode step: signals, and a cut where one is due
//
// A policy that is added to NamedPolicies has its rows here without a line more.
#include "engine/policies.hpp"

#include "bench/common.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
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
  std::shared_ptr<OutputProjection> projection =
      std::make_shared<OutputProjection>(kShape, kHiddenSize, std::nullopt, true);

  Engine() {
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
  if (name.starts_with("EpiKV") || name == "RaaS" || name == "ThinKV")
    return "budget=1088";
  return "budget=256";
}

[[nodiscard]] AnyPolicy make(std::string_view name) {
  return make_policy(
      name, options_of(name),
      {.shape = kShape, .output_projection = engine().projection, .rotary = RotaryEmbedding{}});
}
[[nodiscard]] bool can_be_made(std::string_view name) {
  try {
    static_cast<void>(make(name));
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
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
        policy_.observe_attention(layer, {.data = engine().rows.data(),
                                          .num_q_heads = kShape.num_q_heads,
                                          .num_rows = wanted,
                                          .head_stride = kPrompt * kCapacity,
                                          .row_stride = kCapacity});
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
    ++next_;
  }

  AnyPolicy policy_;
  std::vector<std::size_t> lengths_;
  std::size_t next_ = 0;
};

[[maybe_unused]] const bool kRegistered = [] {
  const std::string isa = kvevict_bench::isa_name(kernels::best().isa);
  detail::for_each_policy(NamedPolicies{}, [&](auto policy) {
    const std::string name(decltype(policy)::type::kName);
    // Some need a table of their model, some queries instead of rows: neither is here.
    if (decltype(policy)::type::kAttentionUse == AttentionUse::kQueries || !can_be_made(name))
      return;
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
  });
  return true;
}();

}  // namespace
