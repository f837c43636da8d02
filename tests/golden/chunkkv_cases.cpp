#include "golden/drivers.hpp"
#include "golden/kvpress_ratios.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

// Cases of `text policy chunkkv`: chunks over the scores of SnapKV, and over those of other
// policies, which takes a recipe of one's own.
namespace kvevict_test {
namespace {

struct KnormChunks : kvevict::CutsByCacheScore {
  struct Options : kvevict::CacheScoreOptions {
    kvevict::ChunkOptions chunks = {};
  };
  static constexpr std::string_view kName = "KnormChunks";

  static kvevict::MaskScope scope(const Options& /*options*/) { return kvevict::MaskScope::kLayer; }
  static auto pipeline(const Options& /*options*/, const kvevict::CacheShape& /*shape*/) {
    return kvevict::KeyNorm() | kvevict::HeadReduction{kvevict::GroupReduce::kSum};
  }
  static auto selector(const Options& options) { return kvevict::WholeChunks(options.chunks); }
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
    prompt.feed(whole, way);
    std::vector<float> actual = prompt.scores(whole, 0);
    actual.resize(expected.size());
    report.scores("scores", expected, actual);
    for (const std::string& ratio : ratios_of(golden)) {
      auto policy = make(golden.count("n_kept." + ratio));
      prompt.feed(policy, way);
      report.equal("keep." + ratio, golden.tensor("keep." + ratio).values, prompt.keep(policy));
    }
  }
}

}  // namespace

void run_chunkkv(const GoldenCase& golden, GoldenReport& report) {
  const std::size_t chunk_len = golden.count("chunk_length");
  if (golden.text("base") == "snapkv") {
    const WindowPrompt prompt(golden, "window_size");
    compare(golden, report, prompt, static_cast<double>(prompt.window), [&](std::size_t budget) {
      return kvevict::ChunkKV({.budget = budget,
                               .observation_window = prompt.window,
                               .chunk_len = chunk_len,
                               .chunk_score = kvevict::ChunkScore::kMean,
                               .pooling = {.kernel_size = golden.count("kernel_size")},
                               .window_in_chunks = true},
                              prompt.shape);
    });
  } else if (golden.text("base") == "knorm") {
    const WindowPrompt prompt(golden, std::size_t{0});
    compare(golden, report, prompt, 1.0, [&](std::size_t budget) {
      KnormChunks::Options options;
      options.budget = budget;
      options.chunks = {.chunk_len = chunk_len, .score = kvevict::ChunkScore::kMean};
      return kvevict::Policy<kvevict::Composed<KnormChunks>>(options, prompt.shape);
    });
  } else {
    throw std::runtime_error("no base " + golden.text("base"));
  }
}

}  // namespace kvevict_test
