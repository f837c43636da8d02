#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_LAYERS_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_LAYERS_HPP_

#include "llama_cpp/reduction.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/contestants.hpp"
#include "lm/output.hpp"
#include "lm/recall_task.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

// layers: which layers know where a fact lies? Chosen from a few prompts, for --layers.
namespace llama_example {

struct LayersOptions {
  std::size_t num_prompts = 4;  ///< of each kind
  std::size_t prompt_len = 500;
  std::size_t budget = 100;
  std::string policy = "snapkv";
  std::string options = "observation_window=17,pooling=max,pool_kernel_size=7";
  double share = 0.9;  ///< of what the best layer keeps; layers that keep as much are chosen
  std::string out;     ///< file for the list
  std::uint64_t seed = 100000;  ///< not those of recall
};

/// The share of a fact's tokens that `keep` keeps.
[[nodiscard]] inline double fact_kept(const kvevict::KeepMask& keep, const lm::Trial& trial) {
  std::size_t kept = 0;
  for (std::size_t slot = trial.fact_begin; slot < trial.fact_end; ++slot)
    kept += keep.keeps(0, 0, slot) ? 1 : 0;
  return static_cast<double>(kept) / static_cast<double>(trial.fact_end - trial.fact_begin);
}

/// Reads each prompt once and asks each layer alone, as a Projection's only one, what to keep.
inline int choose_layers(const Common& common, const LayersOptions& options) {
  constexpr std::array<lm::RecallKind, 2> kKinds = {lm::RecallKind::kPassKey,
                                                    lm::RecallKind::kWord};
  const Model model(common.model);
  const Text text(common.model);
  const Threads threads(common.num_threads);
  Runtime runtime(model, threads,
                  {.num_cells = static_cast<std::uint32_t>(options.prompt_len + 256) / 256 * 256});
  const std::size_t num_layers = runtime.num_layers();
  std::vector<std::array<double, kKinds.size()>> kept(num_layers);
  lm::Progress progress;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    for (std::size_t p = 0; p < options.num_prompts; ++p) {
      progress.show("prompt " + std::to_string(kind * options.num_prompts + p + 1) + " of " +
                    std::to_string(kKinds.size() * options.num_prompts));
      const double depth =
          0.1 + 0.8 * (static_cast<double>(p) + 0.5) / static_cast<double>(options.num_prompts);
      const lm::Trial trial = lm::make_trial(text.file, text.tokenizer,
                                             {.kind = kKinds[kind],
                                              .prompt_len = options.prompt_len,
                                              .depth = depth,
                                              .seed = options.seed + p});
      Session session(
          runtime.engine(),
          runtime.make_policy(options.policy,
                              lm::options_for(options.policy, options.budget, options.options)));
      session.begin_prompt(trial.prompt.size());
      session.feed(trial.prompt);
      session.policy().end_prefill(session.view());
      for (std::size_t layer = 0; layer < num_layers; ++layer) {
        kvevict::Projection projection({.scope = kvevict::MaskScope::kModel,
                                        .lane_reduce = kvevict::ScoreReduce::kSum,
                                        .layers = {layer}},
                                       runtime.engine().shape());
        kept[layer][kind] += fact_kept(session.policy().select(session.view(), projection), trial) /
                             static_cast<double>(options.num_prompts);
      }
      session.reset();
    }
  }
  progress.show("");
  const auto least = [](const std::array<double, kKinds.size()>& shares) {
    return *std::min_element(shares.begin(), shares.end());
  };
  double best = 0.0;
  for (const auto& shares : kept)
    best = std::max(best, least(shares));
  lm::Table table({"layer", "fact kept, number", "word", "chosen"});
  auto json = nlohmann::json::array();
  std::string list;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const bool chosen = best > 0.0 && least(kept[layer]) >= options.share * best;
    if (chosen)
      list.append(list.empty() ? "" : ",").append(std::to_string(layer));
    table.add({std::to_string(layer), lm::fixed(kept[layer][0], 2), lm::fixed(kept[layer][1], 2),
               chosen ? "yes" : ""});
    json.push_back({{"layer", layer},
                    {"number", kept[layer][0]},
                    {"word", kept[layer][1]},
                    {"chosen", chosen}});
  }
  table.print(stdout);
  if (list.empty())
    throw std::runtime_error("no layer keeps any of a fact: is the budget below the window?");
  std::printf("--layers %s\n", list.c_str());
  if (!options.out.empty() && !(std::ofstream(options.out) << list << "\n"))
    throw std::runtime_error(options.out + ": cannot be written");
  lm::write_json(common.json, {{"mode", "layers"}, {"layers", json}, {"chosen", list}});
  return 0;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_LAYERS_HPP_
