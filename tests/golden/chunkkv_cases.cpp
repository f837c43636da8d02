#include "golden/base_recipe.hpp"
#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/prompt_runs.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/entropy_gated_chunkkv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

// Cases of `text policy chunkkv` and `entropy_gated_chunkkv`: chunks over the scores of SnapKV, and
// over those of other policies, which takes a recipe of one's own.
namespace kvevict_test {
namespace {

template <kvevict::Recipe Base>
struct ChunksOf : Base {
  struct Options : Base::Options {
    kvevict::ChunkOptions chunks = {};
  };
  static constexpr std::string_view kName = "ChunksOf";

  static kvevict::MaskScope scope(const Options& /*options*/) { return kvevict::MaskScope::kLayer; }
  static auto pipeline(const Options& options, const kvevict::CacheShape& shape) {
    return Base::pipeline(options, shape) | kvevict::HeadReduction{kvevict::GroupReduce::kSum};
  }
  static auto selector(const Options& options) { return kvevict::WholeChunks(options.chunks); }
};

/// SnapKV's scores with kvpress' artificial ones: the window has the largest of the layer and 1.
struct RaiseWindow {
  std::size_t window = 0;

  void apply(const kvevict::ScoreInput& /*input*/, kvevict::LaneScores& scores) const {
    std::vector<std::vector<float>> arrays;
    float largest = 0;
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      arrays.emplace_back(scores.array(i).begin(), scores.array(i).end());
      largest = std::max(largest, *std::max_element(arrays.back().begin(), arrays.back().end()));
    }
    scores.start(scores.first(), scores.seq_len(), scores.arrays_per_head());
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      arrays[i].resize(scores.count(), largest + 1);
      std::copy(arrays[i].begin(), arrays[i].end(), scores.array(i).begin());
    }
  }
};
struct RaisedSnapKV : kvevict::SnapKVRecipe {
  static constexpr std::string_view kName = "RaisedSnapKV";

  static auto pipeline(const Options& options, const kvevict::CacheShape& shape) {
    return kvevict::SnapKVRecipe::pipeline(options, shape) |
           kvevict::Scale{1.0F / static_cast<float>(options.observation_window)} |
           RaiseWindow{options.observation_window};
  }
  static kvevict::Protection protection(const Options& /*options*/) {
    return {.after_prompt = true};
  }
};

template <class Make>
void compare(const GoldenCase& golden, GoldenReport& report, const WindowPrompt& prompt,
             double rows, Make&& make) {
  // Scores of a layer are sums over its heads, and over the rows that kvpress takes the mean of.
  std::vector<double> expected;
  const std::vector<double>& scores = golden.tensor("scores").values;
  for (std::size_t slot = 0; slot < prompt.len; ++slot) {
    if (golden.tensor("protected").values[slot] != 0)
      continue;
    expected.push_back(0);
    for (std::size_t head = 0; head < prompt.shape.num_kv_heads; ++head)
      expected.back() += rows * scores[head * prompt.len + slot];
  }
  for (const WindowPrompt::Way& way : prompt.ways()) {
    auto whole = make(prompt.len);
    report.covers(decltype(whole)::kName);
    prompt.feed(whole, way);
    const std::vector<float> actual = prompt.scores(whole, 0);
    std::vector<float> unprotected;
    for (std::size_t slot = 0; slot < prompt.len; ++slot) {
      if (golden.tensor("protected").values[slot] == 0)
        unprotected.push_back(actual[slot]);
    }
    report.scores("scores", expected, unprotected);
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      prompt.feed(policy, way);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
    }
  }
}

}  // namespace

void run_chunkkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_prompt_runs<kvevict::ChunkKV>(golden, report);
  const std::size_t chunk_len = golden.count("chunk_length");
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    return compare(
        golden, report, prompt, static_cast<double>(prompt.window), [&](std::size_t budget) {
          return kvevict::ChunkKV({.budget = budget,
                                   .observation_window = prompt.window,
                                   .chunk_len = chunk_len,
                                   .chunk_score = kvevict::ChunkScore::kMean,
                                   .pooling = {.kernel_size = golden.count("kernel_size")},
                                   .window_in_chunks = true},
                                  prompt.shape);
        });
  }
  with_base_recipe(golden, [&]<class Base>(std::type_identity<Base>, const WindowPrompt& prompt) {
    compare(golden, report, prompt, 1.0, [&](std::size_t budget) {
      typename ChunksOf<Base>::Options options;
      set_base_options(golden, budget, options);
      options.chunks = {.chunk_len = chunk_len, .score = kvevict::ChunkScore::kMean};
      return kvevict::Policy<kvevict::Composed<ChunksOf<Base>>>(options, prompt.shape);
    });
  });
}

void run_entropy_gated_chunkkv(const GoldenCase& golden, GoldenReport& report) {
  if (golden.has("runs"))
    return compare_prompt_runs<kvevict::EntropyGatedChunkKV>(golden, report);
  const auto run = [&]<class Base>(std::type_identity<Base>, const WindowPrompt& prompt,
                                   auto&& set) {
    using Gated = kvevict::EntropyGatedOver<Base>;
    compare(golden, report, prompt, 1.0, [&](std::size_t budget) {
      typename Gated::Options options;
      set(budget, options);
      options.chunk_len = golden.count("chunk_length");
      options.low_entropy_len = golden.count("low_entropy_chunk_length");
      return kvevict::Policy<kvevict::Composed<Gated>>(options, prompt.shape);
    });
  };
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    return run(std::type_identity<RaisedSnapKV>(), prompt,
               [&](std::size_t budget, kvevict::SnapKVOptions& options) {
                 options.budget = budget;
                 options.observation_window = prompt.window;
                 options.pooling.kernel_size = golden.count("kernel_size");
                 options.pool_first = true;
               });
  }
  with_base_recipe(golden, [&](auto base, const WindowPrompt& prompt) {
    run(base, prompt,
        [&](std::size_t budget, auto& options) { set_base_options(golden, budget, options); });
  });
}

}  // namespace kvevict_test
