#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_SHORT_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_SHORT_HPP_

#include "llama_cpp/check.hpp"
#include "llama_cpp/endless.hpp"
#include "llama_cpp/recall.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/prose.hpp"
#include "lm/recall_task.hpp"

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

// short: whether all of it works, in less than two minutes.
namespace llama_example {

/// Returns 1 where something is not as it was measured to be.
inline int run_short(const Common& common) {
  int failures = check(common, "f16");
  const auto expect = [&](bool holds, const std::string& what) {
    std::printf("%s: %s\n", holds ? "ok" : "FAILED", what.c_str());
    failures += holds ? 0 : 1;
  };
  const Model model(common.model);
  const Text text(common.model);
  const Threads threads(common.num_threads);

  // 600 tokens in 512 cells, of which 260 are kept. Measured: sinks and recent tokens lose less
  // than a tenth; without sinks much more is lost.
  Tokens story = text.tokenizer.encode_start(lm::kStory);
  story.resize(600);
  const auto nll = [&](const EndlessRow& row) {
    return predict_in(model, threads, row, story, 512, 260, story.size()).first.all;
  };
  const double full = nll({"full cache", "fullkv"});
  const double sinks = nll({"4 sinks + recent", "streaming_llm"});
  const double recent =
      nll({"recent alone", "streaming_llm", "num_sink_tokens=0,recent_window=260"});
  std::printf(
      "NLL of 600 tokens, 260 kept: full cache %.3f, 4 sinks + recent %.3f, recent alone "
      "%.3f\n",
      full, sinks, recent);
  expect(sinks < 1.1 * full, "a tenth more than the full cache's at most");
  expect(recent > sinks, "sinks help");

  Runtime runtime(model, threads, {.num_cells = 768});
  const lm::Trial trial = lm::make_trial(
      text.file, text.tokenizer,
      {.kind = lm::RecallKind::kPassKey, .prompt_len = 500, .depth = 0.5, .seed = 1});
  const std::string window = "observation_window=17,pooling=max,pool_kernel_size=7";
  const std::vector<Contestant> rows = {{"full cache", "fullkv"},
                                        {"SnapKV, upper half", "snapkv", window},
                                        {"sinks + recent", "streaming_llm"}};
  std::vector<RecallRun> runs = {{0, 0, 100}, {1, 0, 100}, {2, 0, 100}};
  run_trial(runtime, text, trial, rows, nullptr, 1, runs);
  expect(runs[0].num_right == 1, "the full cache answers");
  expect(runs[1].num_right == 1, "SnapKV keeps the answer among 100 of 500 tokens");
  expect(runs[2].num_right == 0, "sinks and recent tokens do not");
  return failures == 0 ? 0 : 1;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_SHORT_HPP_
