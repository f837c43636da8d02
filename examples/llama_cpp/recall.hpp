#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_RECALL_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_RECALL_HPP_

#include "llama_cpp/reduction.hpp"
#include "llama_cpp/runtime.hpp"
#include "llama_cpp/statistics.hpp"
#include "llama_cpp/together.hpp"
#include "lm/contestants.hpp"
#include "lm/output.hpp"
#include "lm/recall_task.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

// recall: a fact is hidden in a prompt, the cache is cut at the prompt's end, and the fact asked
// for.
namespace llama_example {

struct RecallOptions {
  std::size_t num_trials = 5;
  std::string policies;    ///< of the catalogue, instead of the table's own rows
  std::string reductions;  ///< "all": each of these policies with each reduction
  Reduction reduction;
  std::string layer = "17";  ///< of the row that looks at one layer alone
  std::string statistics;    ///< file
  std::string cases;         ///< those whose label contains this
  std::uint64_t seed = 0;
};

/// Prompts of one kind and length, and to how many tokens they are cut.
struct RecallCase {
  lm::RecallKind kind;
  std::size_t prompt_len;
  std::vector<std::size_t> budgets;

  [[nodiscard]] std::string label(std::size_t budget) const {
    return std::string(kind == lm::RecallKind::kWord ? "word " : "number ") +
           std::to_string(budget) + "/" + std::to_string(prompt_len);
  }
};

[[nodiscard]] inline std::vector<RecallCase> recall_cases(const std::string& part_of_label) {
  std::vector<RecallCase> all = {{lm::RecallKind::kPassKey, 500, {60, 100, 150}},
                                 {lm::RecallKind::kPassKey, 1000, {100, 150}},
                                 {lm::RecallKind::kWord, 500, {50, 100}},
                                 {lm::RecallKind::kWord, 2000, {100, 200}}};
  for (RecallCase& one : all) {
    std::erase_if(one.budgets, [&](std::size_t budget) {
      return one.label(budget).find(part_of_label) == std::string::npos;
    });
  }
  std::erase_if(all, [](const RecallCase& one) { return one.budgets.empty(); });
  return all;
}

struct Contestant {
  std::string label;
  std::string policy;
  std::string options = {};  ///< behind those that the budget means
  Reduction reduction = {};
  bool pins_task = false;  ///< what stands before the filler and the question behind it stay
};

/// The rows of the table. All have the same sinks and recent tokens, so that they differ in what
/// they choose; the window of 17 is the question.
[[nodiscard]] inline std::vector<Contestant> recall_rows(const RecallOptions& options) {
  const std::string window = "observation_window=17,pooling=max,pool_kernel_size=7";
  const std::string once = "only_at_prefill_end=true";
  const std::string ends = "num_sink_tokens=4,recent_window=32," + once;
  const std::string random = "shared=true," + once;
  const auto with = [](std::string layers, std::string reduce) {
    return Reduction{std::move(layers), std::move(reduce)};
  };
  return {
      {"full cache", "fullkv"},
      {"random", "random_eviction", random},
      {"random, task pinned", "random_eviction", random, {}, true},
      {"sinks + recent", "streaming_llm"},
      {"Knorm", "knorm", ends},
      {"KeyDiff", "keydiff", ends},
      {"EpiKV (prompts stay whole)", "epikv"},
      {"EpiKVKey (prompts stay whole)", "epikvkey"},
      {"TOVA", "tova"},
      {"H2O", "h2o"},
      {"InertiaKV", "inertiakv"},
      {"ExpectedAttention", "expected_attention"},
      {"TriAttention", "triattention", {}, with("upper", "max")},
      {"TriAttention, saved statistics", "triattentionstats", {}, with("upper", "max")},
      {"SnapKV, window 32", "snapkv", {}, options.reduction},
      {"SnapKV, all layers, sum", "snapkv", window, with("all", "sum")},
      {"SnapKV, all layers, max", "snapkv", window, with("all", "max")},
      {"SnapKV, all layers, votes", "snapkv", window, with("all", "votes")},
      {"SnapKV, " + options.reduction.label(), "snapkv", window, options.reduction},
      {"SnapKV, layer " + options.layer, "snapkv", window, with(options.layer, "sum")},
  };
}

/// The rows, or what --policies asks for, each with one reduction or with all of them.
[[nodiscard]] inline std::vector<Contestant> contestants(const RecallOptions& options,
                                                         std::vector<std::string>& left_out) {
  if (options.policies.empty() && options.reductions.empty())
    return recall_rows(options);
  std::vector<Contestant> result;
  lm::Lineup lineup = lm::lineup_of(options.policies.empty() ? "default" : options.policies);
  left_out = std::move(lineup.left_out);
  std::vector<Reduction> reductions = {options.reduction};
  if (!options.reductions.empty()) {
    reductions.clear();
    for (const char* layers : {"all", "upper"}) {
      for (const char* reduce : {"sum", "max", "votes"})
        reductions.push_back({layers, reduce});
    }
  }
  for (const lm::Contestant& c : lineup.contestants) {
    for (const Reduction& reduction : reductions) {
      const bool one = reductions.size() == 1 || c.policy == "fullkv";
      result.push_back({one ? c.label : c.label + ", " + reduction.label(), c.policy, c.fixed,
                        reduction, false});
      if (one)
        break;
    }
  }
  return result;
}

/// Feeds the question and looks for the answer in what the model says then.
[[nodiscard]] inline bool answers(Runtime& runtime, const Text& text, const lm::Question& question,
                                  Session& session) {
  for (const Token token : question.feed)
    session.decode(token);
  Tokens said = {runtime.greedy()};
  while (said.size() < question.max_new_tokens) {
    session.decode(said.back());
    said.push_back(runtime.greedy());
  }
  return text.tokenizer.decode(said).find(question.answer) != std::string::npos;
}

/// A contestant at a budget, in one column of the table.
struct RecallRun {
  std::size_t row;
  std::size_t column;
  std::size_t budget;
  std::size_t num_right = 0;
  std::size_t most_live = 0;  ///< tokens in the cache when the answer was given
};

/// Reads a trial's prompt once for all runs, then cuts and asks in each.
inline void run_trial(Runtime& runtime, const Text& text, const lm::Trial& trial,
                      const std::vector<Contestant>& rows,
                      const std::shared_ptr<const kvevict::QueryStatistics>& statistics,
                      std::uint64_t seed, std::span<RecallRun> runs) {
  std::vector<Follower> followers;
  const auto at = [](std::size_t position) { return static_cast<kvevict::Position>(position); };
  for (const RecallRun& run : runs) {
    const Contestant& row = rows[run.row];
    std::string more = row.options;
    if (row.policy == "random_eviction")
      more += (more.empty() ? "seed=" : ",seed=") + std::to_string(seed);
    followers.push_back({runtime.make_policy(
        row.policy, lm::options_for(row.policy, run.budget, more), statistics)});
    if (row.pins_task) {
      followers.back().pinned = {{0, at(trial.filler_begin)},
                                 {at(trial.filler_end), at(trial.prompt.size())}};
    }
  }
  SavedCache prompt;
  std::vector<AnyPolicy> policies;
  {
    kvevict::llama_cpp::Session<Together, kvevict::llama_cpp::Context> all(
        runtime.engine(), Together(std::move(followers)));
    all.begin_prompt(trial.prompt.size());
    all.feed(trial.prompt);
    all.save(prompt);
    for (std::size_t i = 0; i < runs.size(); ++i)
      policies.push_back(all.policy()[i]);
    all.reset();
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Reduction& reduction = rows[runs[i].row].reduction;
    Session session(runtime.engine(), std::move(policies[i]),
                    {.granularity = reduction.granularity(runtime.num_layers())});
    session.load_prompt(prompt);
    session.end_prompt();
    runs[i].num_right += answers(runtime, text, trial.questions[0], session) ? 1 : 0;
    runs[i].most_live = std::max(runs[i].most_live, session.num_live());
    session.reset();
  }
}

inline int recall(const Common& common, const RecallOptions& options) {
  const Model model(common.model);
  const Text text(common.model);
  const Threads threads(common.num_threads);
  Runtime runtime(model, threads, {.num_cells = 2304});
  const auto statistics = load_statistics(runtime, text, options.statistics);
  std::vector<std::string> left_out;
  std::vector<Contestant> rows = contestants(options, left_out);
  std::erase_if(rows, [&](const Contestant& row) {
    try {
      static_cast<void>(runtime.make_policy(
          row.policy, lm::options_for(row.policy, 100, row.options), statistics));
      static_cast<void>(row.reduction.granularity(runtime.num_layers()));
      return false;
    } catch (const kvevict::InvalidArgument& error) {
      left_out.push_back(row.label + ": " + error.what());
      return true;
    }
  });
  const std::vector<RecallCase> cases = recall_cases(options.cases);
  std::vector<std::string> header = {"answers right of " + std::to_string(options.num_trials)};
  std::vector<std::vector<RecallRun>> results(rows.size());
  lm::Progress progress;
  for (const RecallCase& one : cases) {
    std::vector<RecallRun> runs;
    for (const std::size_t budget : one.budgets) {
      for (std::size_t row = 0; row < rows.size(); ++row)
        runs.push_back({row, header.size() - 1, budget});
      header.push_back(one.label(budget));
    }
    for (std::size_t t = 0; t < options.num_trials; ++t) {
      progress.show(one.label(one.budgets[0]) + ", trial " + std::to_string(t + 1) + " of " +
                    std::to_string(options.num_trials));
      const double depth =
          0.1 + 0.8 * (static_cast<double>(t) + 0.5) / static_cast<double>(options.num_trials);
      const std::uint64_t seed = options.seed + 1000 * one.prompt_len + t;
      const lm::Trial trial = lm::make_trial(
          text.file, text.tokenizer,
          {.kind = one.kind, .prompt_len = one.prompt_len, .depth = depth, .seed = seed});
      run_trial(runtime, text, trial, rows, statistics, seed, runs);
    }
    for (const RecallRun& run : runs)
      results[run.row].push_back(run);
  }
  progress.show("");
  lm::Table table(header);
  auto json = nlohmann::json::array();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::vector<std::string> line = {rows[row].label};
    nlohmann::json counts;
    nlohmann::json live;
    for (const RecallRun& run : results[row]) {
      line.push_back(std::to_string(run.num_right));
      counts[header[run.column + 1]] = run.num_right;
      live[header[run.column + 1]] = run.most_live;
    }
    table.add(line);
    json.push_back({{"label", rows[row].label},
                    {"policy", rows[row].policy},
                    {"layers", rows[row].reduction.layers},
                    {"reduce", rows[row].reduction.reduce},
                    {"right", counts},
                    {"live", live}});
  }
  table.print(stdout);
  for (const std::string& reason : left_out)
    std::printf("left out: %s\n", reason.c_str());
  lm::write_json(common.json, {{"mode", "recall"},
                               {"model", common.model},
                               {"trials", options.num_trials},
                               {"rows", json},
                               {"left_out", left_out}});
  return 0;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_RECALL_HPP_
