#ifndef KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_
#define KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace lm {

/// A policy as the comparison runs it: how it is called and which options a budget means.
struct Contestant {
  std::string label;
  std::string policy;        ///< make_policy's name
  std::string fixed;         ///< options that do not depend on the budget
  bool cuts_prompts = true;  ///< takes part where a prompt is compressed
  bool cuts_decode = true;   ///< takes part where the budget must hold while decoding
};

[[nodiscard]] inline const std::vector<Contestant>& contestants() {
  static const std::vector<Contestant> all = {
      {"FullKV", "fullkv", "", true, true},
      {"Random", "random_eviction", "", true, true},
      {"StreamingLLM", "streaming_llm", "", true, true},
      {"H2O", "h2o", "", true, true},
      {"SnapKV", "snapkv", "", true, false},
      {"LaProx", "laprox", "", true, false},
      {"EpiKV", "epikv", "", false, true},
      {"InertiaKV", "inertiakv", "", true, true},
      {"InertiaKV-Lazy4", "inertiakv", "refresh_interval=4", true, true},
      {"InertiaKV-ScoreFree", "inertiakv", "score_free=true", true, true},
  };
  return all;
}

/// Options under which `policy` keeps `budget` tokens per KV head. What is protected follows the
/// paper where it fits, and shrinks with the budget where it does not.
[[nodiscard]] inline std::string options_for(const std::string& policy, std::size_t budget,
                                             const std::string& fixed = "") {
  const auto text = [](std::size_t n) { return std::to_string(n); };
  const std::size_t sinks = std::min<std::size_t>(4, budget / 2);
  const std::size_t window = std::min<std::size_t>(32, budget / 2);
  std::string options;
  if (policy == "streaming_llm") {
    options = "num_sink_tokens=" + text(sinks) + ",recent_window=" + text(budget - sinks);
  } else if (policy == "h2o") {
    options = "heavy=" + text(budget / 2) + ",recent=" + text(budget - budget / 2);
  } else if (policy == "snapkv" || policy == "laprox") {
    options = "budget=" + text(budget) + ",observation_window=" + text(window);
  } else if (policy == "random_eviction") {
    // The same sinks and recent tokens as the others have: a fair control.
    options = "budget=" + text(budget) + ",num_sink_tokens=" + text(sinks) +
              ",recent_window=" + text(std::min(window, budget - sinks));
  } else if (policy != "fullkv") {
    options = "budget=" + text(budget);
  }
  if (!fixed.empty())
    options += (options.empty() ? "" : ",") + fixed;
  return options;
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_
