// compare_kvpress DIRECTORY ROW REPEAT
//
// kvevict's side of one row of compare_kvpress.py, which writes what this reads: one layer of
// Llama-3.1-8B as raw f32 files in DIRECTORY. Does the row's work REPEAT times, prints the best CPU
// time in milliseconds and writes the result as raw f32 to DIRECTORY/ROW.kvevict.f32.
//
// Not in the times: files, and what is made once per model (W_O prepared, the sketch of keys).

#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/kernels/kernels.hpp"
#include "kvevict/policies/compactor.hpp"
#include "kvevict/policies/curdkv.hpp"
#include "kvevict/policies/expected_attention.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/tova.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/selection/top_k.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr std::size_t kHiddenSize = 4096;
constexpr std::size_t kDim = kShape.head_dim;

/// What compare_kvpress.py wrote, and how often to run.
class Comparison {
 public:
  Comparison(std::filesystem::path directory, std::size_t repeat)
      : repeat_(repeat),
        directory_(std::move(directory)),
        keys_(floats("keys")),
        values_(floats("values")) {}

  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const std::filesystem::path path = directory_ / (name + ".f32");
    std::vector<float> values(std::filesystem::file_size(path) / sizeof(float));
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    if (!file)
      throw std::runtime_error(path.string() + ": cannot be read");
    return values;
  }
  void write(const std::string& name, const std::vector<float>& values) const {
    const std::filesystem::path path = directory_ / (name + ".f32");
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
    if (!file.flush())
      throw std::runtime_error(path.string() + ": cannot be written");
  }

  [[nodiscard]] std::size_t len() const noexcept {
    return keys_.size() / (kShape.num_kv_heads * kDim);
  }
  /// K and V as cached; `keys`, where given, in the place of K.
  [[nodiscard]] views::ContiguousView view(std::vector<float>* keys = nullptr) {
    const auto tensor = [&](std::vector<float>& data) {
      return views::Tensor::hnd(data.data(), ElementType::kF32, len(), kShape.num_kv_heads, kDim);
    };
    return {kShape, tensor(keys != nullptr ? *keys : keys_), tensor(values_), len()};
  }
  [[nodiscard]] std::vector<float>& keys() noexcept { return keys_; }
  [[nodiscard]] std::vector<float>& values() noexcept { return values_; }

  /// Best CPU time of `run` in milliseconds; `prepare` comes before it and is not timed.
  template <class Prepare, class Run>
  void measure(Prepare&& prepare, Run&& run) {
    for (std::size_t i = 0; i < repeat_; ++i) {
      prepare();
      const std::clock_t start = std::clock();
      run();
      const std::clock_t end = std::clock();
      best_ms_ = std::min(best_ms_, 1e3 * static_cast<double>(end - start) / CLOCKS_PER_SEC);
    }
  }
  template <class Run>
  void measure(Run&& run) {
    measure([] {}, run);
  }
  [[nodiscard]] double best_ms() const noexcept { return best_ms_; }

 private:
  std::size_t repeat_;
  std::filesystem::path directory_;
  std::vector<float> keys_;    // [num_kv_heads, len, head_dim]
  std::vector<float> values_;  // the same
  double best_ms_ = std::numeric_limits<double>::infinity();
};

/// Scores of every lane, [lanes, len]: a prompt fed to the policy at once, and what it then makes
/// of the slots. `queries`, where the policy reads any, are [len, num_q_heads, head_dim].
template <class P>
std::vector<float> scores_of(Comparison& comparison, const typename P::Options& options,
                             std::vector<float>* keys = nullptr) {
  const std::size_t len = comparison.len();
  const views::ContiguousView view = comparison.view(keys);
  const ViewRef ref(view);
  std::vector<float> queries;
  if constexpr (P::kAttentionUse != AttentionUse::kNone)
    queries = comparison.floats("queries");
  P policy(options, kShape);
  Scratch scratch;
  const std::size_t num_lanes = kShape.num_lanes(policy.sequence().scope());
  std::vector<float> scores(num_lanes * len);
  comparison.measure([&] {
    policy.reset();
    policy.begin(len);
    if constexpr (P::kAttentionUse != AttentionUse::kNone) {
      policy.observe_queries(0,
                             {.data = queries.data(),
                              .num_q_heads = kShape.num_q_heads,
                              .num_rows = len,
                              .head_stride = static_cast<std::ptrdiff_t>(kDim),
                              .row_stride = static_cast<std::ptrdiff_t>(kShape.num_q_heads * kDim)},
                             view);
    }
    policy.end_prefill(view);
    for (std::size_t lane = 0; lane < num_lanes; ++lane) {
      policy.method().score({ref, policy.sequence(), kernels::best(), scratch}, lane,
                            std::span(scores).subspan(lane * len, len));
    }
  });
  return scores;
}

/// |v W_O^h| of every cached value, mean over each group, [num_kv_heads, len].
std::vector<float> projected_norms_of(Comparison& comparison, ValueFactor norm) {
  const std::size_t len = comparison.len();
  const views::ContiguousView view = comparison.view();
  const ViewRef ref(view);
  OutputProjection projection(kShape, kHiddenSize, GroupReading::kMeanNorms,
                              norm == ValueFactor::kProjectedL1);
  projection.set_layer(0, comparison.floats("w_o").data());
  Sequence sequence("compare_kvpress", kShape, MaskScope::kHead);
  sequence.append(len);
  Scratch scratch;
  const ScoreInput input{ref, sequence, kernels::best(), scratch};
  std::vector<float> result(kShape.num_kv_heads * len);
  comparison.measure([&] {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      LaneScores scores(input, head);
      scores.start(0, len, 1);
      const std::span<const float> norms =
          value_factors(input, scores, 0, norm, GroupReading::kMeanNorms, &projection);
      std::copy(norms.begin(), norms.end(),
                result.begin() + static_cast<std::ptrdiff_t>(head * len));
    }
  });
  return result;
}

/// Marks the best tenth of each head's given scores.
void select(std::vector<float>& scores, std::size_t len, std::vector<std::uint64_t>& candidates,
            KeepMask& mask) {
  mask.reset(MaskScope::kHead, 1, kShape.num_kv_heads);
  for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
    const ScoredLane lane{head, std::span(scores).subspan(head * len, len), candidates,
                          mask.add_lane(len)};
    // As kvpress rounds it.
    select_top_k({&lane, 1}, static_cast<std::size_t>(static_cast<double>(len) * (1 - 0.9)));
  }
}
/// Bits of `len` slots, all of which may be chosen.
std::vector<std::uint64_t> all_slots(std::size_t len) {
  std::vector<std::uint64_t> bits((len + 63) / 64, ~std::uint64_t{0});
  if (len % 64 != 0)
    bits.back() >>= 64 - len % 64;
  return bits;
}

/// 1 where a slot stays, [num_kv_heads, len].
std::vector<float> top_k(Comparison& comparison) {
  const std::size_t len = comparison.len();
  std::vector<float> scores = comparison.floats("scores");
  std::vector<std::uint64_t> candidates = all_slots(len);
  KeepMask mask;
  comparison.measure([&] { select(scores, len, candidates, mask); });
  std::vector<float> result;
  for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
    for (std::size_t slot = 0; slot < len; ++slot)
      result.push_back(mask.keeps(0, head, slot) ? 1.0F : 0.0F);
  }
  return result;
}

/// K and then V of what stays, each [num_kv_heads, kept, head_dim].
std::vector<float> gather(Comparison& comparison) {
  const std::size_t len = comparison.len();
  std::vector<float> scores = comparison.floats("scores");
  std::vector<std::uint64_t> candidates = all_slots(len);
  KeepMask mask;
  select(scores, len, candidates, mask);
  const std::vector<float> keys = comparison.keys();
  const std::vector<float> values = comparison.values();
  comparison.measure(
      [&] {
        std::copy(keys.begin(), keys.end(), comparison.keys().begin());
        std::copy(values.begin(), values.end(), comparison.values().begin());
      },
      [&] { compact(comparison.view(), mask); });
  std::vector<float> result;
  for (const std::vector<float>* rows : {&comparison.keys(), &comparison.values()}) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      const auto first = rows->begin() + static_cast<std::ptrdiff_t>(head * len * kDim);
      result.insert(result.end(), first,
                    first + static_cast<std::ptrdiff_t>(mask.count(0, head) * kDim));
    }
  }
  return result;
}

// Options are those with which each policy is what kvpress 0.5.5 does by default.
using Row = std::function<std::vector<float>(Comparison&)>;
const std::map<std::string, Row> kRows = {
    {"snapkv",
     [](Comparison& c) {
       return scores_of<SnapKV>(c, {.observation_window = 64, .pool_first = true});
     }},
    {"tova", [](Comparison& c) { return scores_of<TOVA>(c, {.protect_newest = true}); }},
    {"keydiff", [](Comparison& c) { return scores_of<KeyDiff>(c, {}); }},
    {"lagkv",
     [](Comparison& c) {
       return scores_of<LagKVBudget>(c, {.comparison = LagComparison::kScores});
     }},
    {"projected_norms",
     [](Comparison& c) { return projected_norms_of(c, ValueFactor::kProjected); }},
    {"projected_l1_norms",
     [](Comparison& c) { return projected_norms_of(c, ValueFactor::kProjectedL1); }},
    {"expected_attention",
     [](Comparison& c) {
       const std::vector<float> inv_freq = c.floats("inv_freq");
       return scores_of<ExpectedAttention>(
           c, {.rotary = {.inv_freq = {inv_freq.begin(), inv_freq.end()}}});
     }},
    {"cur", [](Comparison& c) { return scores_of<CurDKV>(c, {}); }},
    {"leverage",
     [](Comparison& c) {
       std::vector<float> keys = c.floats("keys_prerope");
       return scores_of<Leverage>(
           c, {.key_sketch = std::make_shared<const KeySketch>(c.floats("sketch"))}, &keys);
     }},
    {"noncausal",
     [](Comparison& c) { return scores_of<NonCausal>(c, {.padded_last_chunk = true}); }},
    {"top_k", top_k},
    {"knorm", [](Comparison& c) { return scores_of<Knorm>(c, {}); }},
    {"gather", gather},
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto row = arguments.size() == 3 ? kRows.find(arguments[1]) : kRows.end();
  if (row == kRows.end()) {
    std::fprintf(stderr, "usage: compare_kvpress DIRECTORY ROW REPEAT\nrows:");
    for (const auto& [name, run] : kRows)
      std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  try {
    Comparison comparison(arguments[0], std::stoul(arguments[2]));
    comparison.write(row->first + ".kvevict", row->second(comparison));
    std::printf("%.6f\n", comparison.best_ms());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compare_kvpress: %s\n", error.what());
    return 1;
  }
  return 0;
}
