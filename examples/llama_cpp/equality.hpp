#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_EQUALITY_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_EQUALITY_HPP_

#include "llama_cpp/runtime.hpp"
#include "lm/output.hpp"
#include "lm/prose.hpp"
#include "lm/table.hpp"

#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// equality: does a cache with holes give what the same cache gives once it is moved together, or
// handed over? Quantised weights round activations too, and so make any change of order show: a
// copy of the model in f32 is asked.
namespace llama_example {

/// `model` in f32 beside it, made once; some 540 MB for one of 135 million weights.
[[nodiscard]] inline std::string f32_copy(const std::string& model) {
  std::string path = model + ".f32.gguf";
  if (!std::ifstream(path)) {
    log_errors_alone();
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    if (llama_model_quantize(model.c_str(), path.c_str(), &params) != 0)
      throw std::runtime_error(path + ": cannot be written");
  }
  return path;
}

struct Distance {
  double logits = 0.0;  ///< the largest difference
  double kl = 0.0;      ///< KL divergence of what `b` predicts from what `a` does, in nats
};

[[nodiscard]] inline Distance distance(const Eigen::RowVectorXf& a, const Eigen::RowVectorXf& b) {
  const auto log_softmax = [](const Eigen::RowVectorXf& logits) -> Eigen::ArrayXd {
    const Eigen::ArrayXd shifted = logits.cast<double>().array() - double{logits.maxCoeff()};
    return shifted - std::log(shifted.exp().sum());
  };
  const Eigen::ArrayXd p = log_softmax(a);
  const Eigen::ArrayXd q = log_softmax(b);
  return {double{(a - b).cwiseAbs().maxCoeff()}, (p.exp() * (p - q)).sum()};
}

/// Prints the distances and returns 1 where one is too large.
inline int equality(const Common& common) {
  constexpr double kLogits = 0.03;  // measured: 0.014 and 0.019
  constexpr double kKl = 1e-5;      // 5e-6 and 2e-6
  const Model model(f32_copy(common.model));
  const Text text(common.model);
  const Threads threads(common.num_threads);
  const Tokens story = text.tokenizer.encode(lm::kStory);
  const std::span<const Token> tokens(story);
  const auto cut = [&](Runtime& runtime) {
    auto session = std::make_unique<Session>(
        runtime.engine(),
        runtime.make_policy("random_eviction",
                            "budget=120,shared=true,num_sink_tokens=4,recent_window=8,"
                            "only_at_prefill_end=true"),
        SessionOptions{.compact = false});
    session->prompt(tokens.first(500));
    return session;
  };
  std::vector<std::unique_ptr<Runtime>> runtimes;
  for (const std::uint32_t num_cells : {1024U, 1024U, 1024U, 512U})
    runtimes.push_back(std::make_unique<Runtime>(model, threads, ContextSize{num_cells}));
  const auto holes = cut(*runtimes[0]);
  const auto compacted = cut(*runtimes[1]);
  bool good = compacted->compact();
  const auto large = cut(*runtimes[2]);
  const std::unique_ptr<Session> moved(new Session(large->hand_over(runtimes[3]->engine())));
  const std::array<std::pair<const char*, std::pair<Session*, Runtime*>>, 2> others = {
      {{"compacted", {compacted.get(), runtimes[1].get()}},
       {"handed over", {moved.get(), runtimes[3].get()}}}};
  lm::Table table({"against holes, f32 weights", "logits", "KL"});
  auto json = nlohmann::json::array();
  std::size_t fed = 500;
  for (const std::size_t count : {std::size_t{1}, std::size_t{128}}) {
    const std::span<const Token> more = tokens.subspan(fed, count);
    fed += count;
    const auto feed = [&](Session& session) {
      session.begin_prompt(count);
      session.feed(more);
    };
    feed(*holes);
    const Eigen::RowVectorXf wanted = runtimes[0]->logits();
    holes->end_prompt();
    for (const auto& [label, other] : others) {
      feed(*other.first);
      const Distance d = distance(wanted, other.second->logits());
      other.first->end_prompt();
      char logits[32];
      char kl[32];
      std::snprintf(logits, sizeof logits, "%.1e", d.logits);
      std::snprintf(kl, sizeof kl, "%.1e", d.kl);
      table.add({std::string(label) + ", " + std::to_string(count) + " more tokens", logits, kl});
      json.push_back({{"label", label}, {"tokens", count}, {"logits", d.logits}, {"kl", d.kl}});
      good = good && d.logits <= kLogits && d.kl <= kKl;
    }
  }
  table.print(stdout);
  std::printf("allowed: %.0e and %.0e\n", kLogits, kKl);
  lm::write_json(common.json, {{"mode", "equality"}, {"rows", json}});
  return good ? 0 : 1;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_EQUALITY_HPP_
