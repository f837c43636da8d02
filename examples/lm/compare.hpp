#ifndef KVEVICT_EXAMPLES_LM_COMPARE_HPP_
#define KVEVICT_EXAMPLES_LM_COMPARE_HPP_

#include "lm/common.hpp"
#include "lm/contestants.hpp"
#include "lm/control.hpp"
#include "lm/measure.hpp"
#include "lm/output.hpp"
#include "lm/output_error.hpp"
#include "lm/prose.hpp"
#include "lm/recall_task.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// All policies at all budgets, on the same prompts and the same text, each beside its random
// control.
namespace lm {

struct CompareOptions {
  std::vector<std::string> budgets = {"10%", "25%"};
  std::size_t prompt_len = 1000;
  std::size_t num_trials = 5;
  std::size_t decode_tokens = 256;
  std::string policies = "default";
  std::uint64_t seed = 0;
};

/// One line of a table: a policy at a budget. Behind them stand the random controls.
struct CompareRow {
  std::string policy;
  std::string budget;      ///< as asked for; "all" for the full cache
  std::size_t tokens = 0;  ///< of it, per KV head
  std::optional<std::size_t> control_row = {};
  std::optional<Control> control = {};  ///< set: this is one, for all whose control_row is here
  AnswerResult answers;
  DecodeResult decoded;
  std::size_t peak_bytes = 0;  ///< K and V, the most held at once in any trial
  std::size_t end_bytes = 0;   ///< K and V held at the end, the most of any trial
  // Sums over the trials; what is shown is per trial or per step.
  std::size_t num_trials = 0;
  double output_error = 0;  ///< PromptOutputError, of those that cut at the prompt's end
  std::size_t num_cuts = 0;
  double prefill_seconds = 0;
  std::size_t num_steps = 0;  ///< decode steps
  double decode_seconds = 0;
  engine::PolicySeconds decode_policy;  ///< the policy's part of decode_seconds
  double prompt_policy_seconds = 0;     ///< scoring and cutting of the prompt
  std::size_t evicted = 0;              ///< entries, over all layers and KV heads
};

/// The text of the decode task.
struct Story {
  std::vector<Token> tokens;
  std::vector<bool> counts;  ///< of each token, whether its prediction does; empty: all do
};

/// Prose: `num_tokens` that are fed or predicted and the one before them.
[[nodiscard]] inline Story prose_story(const Runtime& runtime, std::size_t num_tokens) {
  Story story{runtime.tokenizer().encode_start(kStory), {}};
  if (story.tokens.size() > num_tokens + 1)
    story.tokens.resize(num_tokens + 1);
  return story;
}

/// As long a text of the built-in model's form: facts among filler, then a question for each fact.
/// Its answers are all that it was trained to predict.
[[nodiscard]] inline Story facts_story(const Runtime& runtime, std::size_t num_tokens,
                                       std::uint64_t seed) {
  // A fact takes two tokens and its question three, beside the 16 of the prompt's open questions.
  const std::size_t room = num_tokens + 1 - std::min<std::size_t>(num_tokens, 16);
  const std::size_t num_facts = std::clamp<std::size_t>(room / 5, 8, 32);
  const Trial trial = make_trial(runtime.file(), runtime.tokenizer(),
                                 {.kind = RecallKind::kBuiltInModel,
                                  .prompt_len = num_tokens + 1 - 3 * num_facts,
                                  .num_facts = num_facts,
                                  .num_questions = num_facts,
                                  .seed = seed});
  Story story{trial.prompt, {}};
  for (const Question& question : trial.questions) {
    story.tokens.insert(story.tokens.end(), question.feed.begin(), question.feed.end());
    story.counts.resize(story.tokens.size());
    story.counts.push_back(true);  // the answer, with which the next question's feed begins
  }
  story.tokens.push_back(runtime.tokenizer().encode(" " + trial.questions.back().answer)[0]);
  return story;
}

namespace detail {

struct Run {
  const Contestant* contestant;  ///< null: a random control
  std::string budget;
  std::size_t tokens;
  std::optional<std::size_t> control_run = {};
  std::optional<Control> control = {};
};

[[nodiscard]] inline std::vector<Run> runs(const Lineup& lineup, const CompareOptions& options,
                                           std::size_t num_tokens, bool Contestant::*takes_part) {
  std::vector<Run> result;
  for (const Contestant& c : lineup.contestants) {
    if (!(c.*takes_part))
      continue;
    if (plain(c.policy) == "fullkv") {
      result.push_back({&c, "all", num_tokens});
      continue;
    }
    for (const std::string& budget : options.budgets) {
      result.push_back({&c, budget, budget_tokens(budget, num_tokens)});
    }
  }
  return result;
}

/// @param seed  of a control's draw
[[nodiscard]] inline kvevict::AnyPolicy policy_of(const Runtime& runtime, const Run& run,
                                                  std::uint64_t seed) {
  if (run.control)
    return kvevict::AnyPolicy(RandomControl({*run.control, seed}, runtime.shape()));
  const Contestant& c = *run.contestant;
  return runtime.make_policy(c.policy, options_for(c.policy, run.tokens, c.fixed));
}

/// Puts the controls of `all` behind them, each once.
inline void add_controls(const Runtime& runtime, std::size_t prompt_len, std::vector<Run>& all) {
  const std::size_t num_policies = all.size();
  for (std::size_t i = 0; i < num_policies; ++i) {
    if (!entry_of(all[i].contestant->policy).has_control)
      continue;
    const auto control = control_of(policy_of(runtime, all[i], 0), all[i].tokens, prompt_len);
    if (!control)
      continue;
    const auto same = std::find_if(
        all.begin() + static_cast<std::ptrdiff_t>(num_policies), all.end(),
        [&](const Run& other) { return json_of(*other.control) == json_of(*control); });
    all[i].control_run = static_cast<std::size_t>(same - all.begin());
    if (same == all.end())
      all.push_back({nullptr, all[i].budget, all[i].tokens, {}, control});
  }
}

/// Takes those that are refused, for what they need or for a budget, out of a table before a prompt
/// is read for nothing, and says why in left_out. Throws where the user named them.
inline void leave_out_refused(const Runtime& runtime, const CompareOptions& options,
                              std::size_t num_tokens, bool Contestant::*takes_part,
                              Lineup& lineup) {
  std::vector<std::string> refused;
  for (const Run& run : runs(lineup, options, num_tokens, takes_part)) {
    const std::string& label = run.contestant->label;
    if (!refused.empty() && refused.back() == label)
      continue;
    try {
      (void)policy_of(runtime, run, 0);
    } catch (const kvevict::InvalidArgument& error) {
      if (!run.contestant->optional)
        throw;
      refused.push_back(label);
      lineup.left_out.push_back(label + " at " + run.budget + " of " + std::to_string(num_tokens) +
                                " tokens: " + error.what());
    }
  }
  for (Contestant& c : lineup.contestants) {
    if (std::find(refused.begin(), refused.end(), c.label) != refused.end())
      c.*takes_part = false;
  }
}

[[nodiscard]] inline std::vector<CompareRow> rows_of(const std::vector<Run>& all) {
  std::vector<CompareRow> rows;
  for (const Run& run : all) {
    CompareRow row;
    row.policy = run.control ? "random control" : run.contestant->label;
    row.budget = run.budget;
    row.tokens = run.tokens;
    row.control_row = run.control_run;
    row.control = run.control;
    rows.push_back(std::move(row));
  }
  return rows;
}

[[nodiscard]] inline engine::PolicySeconds difference(const engine::PolicySeconds& a,
                                                      const engine::PolicySeconds& b) {
  return {a.observe - b.observe, a.select - b.select, a.evict - b.evict};
}

inline void finish(CompareRow& row, const engine::Sequence& sequence,
                   const engine::PolicySeconds& before_decode) {
  const engine::PolicySeconds decode = difference(sequence.seconds(), before_decode);
  row.decode_policy.observe += decode.observe;
  row.decode_policy.select += decode.select;
  row.decode_policy.evict += decode.evict;
  row.peak_bytes = std::max(row.peak_bytes, sequence.cache().peak_bytes());
  row.end_bytes = std::max(row.end_bytes, sequence.cache().bytes_held());
  row.evicted += sequence.policy().counters().evicted;
  ++row.num_trials;
}

/// Prompts with a hidden fact, cut at their end, then asked about. A prompt is read once for all.
[[nodiscard]] inline std::vector<CompareRow> compare_recall(Runtime& runtime,
                                                            const CompareOptions& options,
                                                            const Lineup& lineup, RecallKind kind,
                                                            Progress& progress) {
  std::vector<Run> all = runs(lineup, options, options.prompt_len, &Contestant::cuts_prompts);
  add_controls(runtime, options.prompt_len, all);
  std::vector<CompareRow> rows = rows_of(all);
  for (std::size_t t = 0; t < options.num_trials; ++t) {
    // Depths from 10 % to 90 %.
    const double depth =
        options.num_trials == 1
            ? 0.5
            : 0.1 + 0.8 * static_cast<double>(t) / static_cast<double>(options.num_trials - 1);
    const Trial trial = make_trial(
        runtime.file(), runtime.tokenizer(),
        {.kind = kind, .prompt_len = options.prompt_len, .depth = depth, .seed = options.seed + t});
    const std::string of = " of " + std::to_string(options.num_trials);
    progress.show("recall: prompt " + std::to_string(t + 1) + of + " is read");
    std::vector<std::unique_ptr<engine::Sequence>> sequences;
    std::vector<engine::Sequence*> pointers;
    for (const Run& run : all) {
      sequences.push_back(std::make_unique<engine::Sequence>(
          runtime.make_sequence(policy_of(runtime, run, options.seed + t))));
      pointers.push_back(sequences.back().get());
    }
    PromptOutputError output_error(pointers[0]->view().shape(), pointers.size());
    const auto start = std::chrono::steady_clock::now();
    engine::read_prompt_together(runtime.transformer(), trial.prompt, pointers, runtime.signals(),
                                 engine::kPromptChunk, &output_error);
    double prefill = seconds_since(start) - output_error.seconds();
    for (const engine::Sequence* s : pointers) {
      prefill -= s->seconds().observe + s->seconds().select + s->seconds().evict;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      progress.show("recall: prompt " + std::to_string(t + 1) + of + ", " + rows[i].policy);
      const engine::PolicySeconds before = sequences[i]->seconds();
      const AnswerResult answers = ask(runtime, trial, *sequences[i]);
      rows[i].answers.num_right += answers.num_right;
      rows[i].answers.num_questions += answers.num_questions;
      rows[i].output_error += output_error.relative(i).value_or(0);
      rows[i].num_cuts += output_error.relative(i).has_value() ? 1 : 0;
      rows[i].prefill_seconds += prefill;
      rows[i].prompt_policy_seconds += before.observe + before.select + before.evict;
      rows[i].num_steps += answers.num_steps;
      rows[i].decode_seconds += answers.seconds;
      finish(rows[i], *sequences[i], before);
      sequences[i].reset();  // its cache goes before the next one grows
    }
  }
  return rows;
}

/// A text predicted token by token while the cache is held at the budget.
[[nodiscard]] inline std::vector<CompareRow> compare_decode(Runtime& runtime,
                                                            const CompareOptions& options,
                                                            const Lineup& lineup,
                                                            const Story& story,
                                                            Progress& progress) {
  constexpr std::size_t kPromptLen = 16;
  const std::span<const Token> text(story.tokens);
  std::vector<Run> all = runs(lineup, options, text.size(), &Contestant::cuts_decode);
  add_controls(runtime, kPromptLen, all);
  std::vector<CompareRow> rows = rows_of(all);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    engine::Sequence sequence = runtime.make_sequence(policy_of(runtime, all[i], options.seed));
    const auto start = std::chrono::steady_clock::now();
    engine::read_prompt(runtime.transformer(), text.first(kPromptLen), sequence, runtime.signals());
    rows[i].prefill_seconds = seconds_since(start);
    const engine::PolicySeconds before = sequence.seconds();
    rows[i].decoded = decode_text(
        runtime, text.subspan(kPromptLen), sequence,
        [&](std::size_t t) { return story.counts.empty() || story.counts[kPromptLen + t]; },
        [&](std::size_t t) {
          if (t % 32 == 0) {
            progress.show("decode: " + rows[i].policy + " " + rows[i].budget + ", token " +
                          std::to_string(t) + " of " + std::to_string(text.size() - kPromptLen));
          }
        });
    rows[i].num_steps = rows[i].decoded.num_steps;
    rows[i].decode_seconds = rows[i].decoded.seconds;
    finish(rows[i], sequence, before);
  }
  return rows;
}

[[nodiscard]] inline std::string megabytes(std::size_t bytes) {
  return fixed(static_cast<double>(bytes) / 1e6, 2);
}
[[nodiscard]] inline double steps_per_second(const CompareRow& row) {
  return row.decode_seconds > 0 ? static_cast<double>(row.num_steps) / row.decode_seconds : 0;
}
[[nodiscard]] inline double per_step(double seconds, const CompareRow& row) {
  return row.num_steps > 0 ? seconds / static_cast<double>(row.num_steps) : 0;
}

[[nodiscard]] inline double per_trial(double sum, const CompareRow& row) {
  return row.num_trials > 0 ? sum / static_cast<double>(row.num_trials) : 0;
}

/// Per cut; none where nothing was cut at a prompt's end.
[[nodiscard]] inline std::optional<double> output_error(const CompareRow& row) {
  if (row.num_cuts == 0)
    return std::nullopt;
  return row.output_error / static_cast<double>(row.num_cuts);
}

[[nodiscard]] inline std::string quality(const CompareRow& row, bool recall) {
  return recall ? std::to_string(row.answers.num_right) + "/" +
                      std::to_string(row.answers.num_questions)
                : fixed(row.decoded.nll, 3);
}

inline void print_rows(const std::vector<CompareRow>& rows, bool recall) {
  std::vector<std::string> header = {"policy", "budget", recall ? "recall" : "NLL", "random"};
  if (recall)
    header.emplace_back("error");
  for (const char* name : {"peak MB", "end MB", "tok/s", "score", "select", "%"})
    header.emplace_back(name);
  Table table(std::move(header));
  for (const CompareRow& row : rows) {
    if (row.control)
      continue;
    const engine::PolicySeconds& policy = row.decode_policy;
    const double share =
        row.decode_seconds > 0
            ? 100 * (policy.observe + policy.select + policy.evict) / row.decode_seconds
            : 0;
    std::vector<std::string> cells = {
        row.policy, row.budget == "all" ? "all" : row.budget + "=" + std::to_string(row.tokens),
        quality(row, recall), row.control_row ? quality(rows[*row.control_row], recall) : "-"};
    if (recall) {
      const std::optional<double> error = output_error(row);
      cells.push_back(error ? fixed(*error, 3) : "-");
    }
    for (std::string& cell : std::vector<std::string>{
             megabytes(row.peak_bytes), megabytes(row.end_bytes), fixed(steps_per_second(row), 1),
             fixed(1e3 * per_step(policy.observe, row), 3),
             fixed(1e3 * per_step(policy.select, row), 3), fixed(share, 1)})
      cells.push_back(std::move(cell));
    table.add(std::move(cells));
  }
  table.print(stdout);
}

inline void add_quality(const CompareRow& row, bool recall, nlohmann::json& to) {
  if (!recall) {
    to["nll"] = row.decoded.nll;
    return;
  }
  to["num_right"] = row.answers.num_right;
  to["num_questions"] = row.answers.num_questions;
  if (const std::optional<double> error = output_error(row))
    to["output_error"] = *error;
}

[[nodiscard]] inline nlohmann::json json_rows(const std::vector<CompareRow>& rows, bool recall) {
  nlohmann::json result = nlohmann::json::array();
  for (const CompareRow& row : rows) {
    if (row.control)
      continue;
    nlohmann::json one = {{"policy", row.policy},
                          {"budget", row.budget},
                          {"budget_tokens", row.tokens},
                          {"trials", row.num_trials},
                          {"kv_bytes_peak", row.peak_bytes},
                          {"kv_bytes_end", row.end_bytes},
                          {"prefill_seconds", per_trial(row.prefill_seconds, row)},
                          {"prompt_policy_seconds", per_trial(row.prompt_policy_seconds, row)},
                          {"decode_steps", per_trial(static_cast<double>(row.num_steps), row)},
                          {"decode_tokens_per_second", steps_per_second(row)},
                          {"score_seconds_per_step", per_step(row.decode_policy.observe, row)},
                          {"select_seconds_per_step", per_step(row.decode_policy.select, row)},
                          {"evict_seconds_per_step", per_step(row.decode_policy.evict, row)},
                          {"entries_evicted", per_trial(static_cast<double>(row.evicted), row)}};
    add_quality(row, recall, one);
    if (row.control_row) {
      const CompareRow& control = rows[*row.control_row];
      one["random"] = json_of(*control.control);
      add_quality(control, recall, one["random"]);
    }
    result.push_back(std::move(one));
  }
  return result;
}

}  // namespace detail

inline int run_compare(const Common& common, const CompareOptions& options) {
  Progress progress;
  progress.show("loading " + common.model);
  Runtime runtime(common);
  const bool built_in = is_built_in_model(runtime.file());
  const RecallKind kind = built_in ? RecallKind::kBuiltInModel : RecallKind::kWord;
  runtime.check_fits(options.prompt_len, "--prompt-len");
  const Story story = built_in ? facts_story(runtime, options.decode_tokens, options.seed)
                               : prose_story(runtime, options.decode_tokens);
  const std::size_t story_len = story.tokens.size();
  runtime.check_fits(story_len, "--decode-tokens");

  Lineup lineup = lineup_of(options.policies);
  detail::leave_out_refused(runtime, options, options.prompt_len, &Contestant::cuts_prompts,
                            lineup);
  detail::leave_out_refused(runtime, options, story_len, &Contestant::cuts_decode, lineup);

  const auto recall = detail::compare_recall(runtime, options, lineup, kind, progress);
  const auto decode = detail::compare_decode(runtime, options, lineup, story, progress);
  progress.show("");
  std::printf(
      "%s\n\nPrompt compression: facts in prompts of %zu tokens, read once in %.2f s for all and "
      "cut "
      "at the end\n",
      common.model.c_str(), options.prompt_len,
      detail::per_trial(recall[0].prefill_seconds, recall[0]));
  detail::print_rows(recall, true);
  std::printf("\nLong decode: a %s of %zu tokens, predicted token by token under the budget\n",
              built_in ? "text of facts and questions" : "story", story_len);
  detail::print_rows(decode, false);
  std::printf(
      "\nrandom: the same of a random draw with the policy's budget and what it protects, one set "
      "per head,\nlayer or model as it has; -: nothing is left to chance, or no budget holds in "
      "all. error:\n|A V - A' V'| / |A V|, what the cut does to the outputs of the prompt's last "
      "16 queries; -: not cut\nthere. MB: memory of K and V really held, the most of any trial. "
      "Per decode step: score, select, the\npolicy's milliseconds; %%, its share with moving rows "
      "included.%s\n",
      built_in ? " NLL: of the answers alone." : "");
  if (!lineup.left_out.empty())
    std::printf("\nNot run:\n");
  for (const std::string& reason : lineup.left_out)
    std::printf("  %s\n", reason.c_str());
  write_json(common.json, {{"model", common.model},
                           {"prompt_len", options.prompt_len},
                           {"decode_tokens", story_len},
                           {"recall", detail::json_rows(recall, true)},
                           {"decode", detail::json_rows(decode, false)},
                           {"not_run", lineup.left_out}});
  return 0;
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_COMPARE_HPP_
