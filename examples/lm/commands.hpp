#ifndef KVEVICT_EXAMPLES_LM_COMMANDS_HPP_
#define KVEVICT_EXAMPLES_LM_COMMANDS_HPP_

#include "lm/common.hpp"
#include "lm/compare.hpp"
#include "lm/measure.hpp"
#include "lm/output.hpp"
#include "lm/prose.hpp"
#include "lm/recall_task.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace lm {

struct GenerateOptions {
  std::string prompt;
  bool chat = false;
  std::size_t max_new_tokens = 200;
  float temperature = 0;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
};

/// What a budget in percent is a share of: the prompt and what is to be written. Writing without
/// end has no such length; the cache may then have its share of the trained context.
[[nodiscard]] inline std::size_t shared_tokens(std::size_t prompt_len, std::size_t max_new_tokens,
                                               std::size_t context_length) noexcept {
  return max_new_tokens == 0 ? context_length : prompt_len + max_new_tokens;
}

/// Text on stdout as it comes, figures on stderr. Where positions would leave what the model was
/// trained on, the gaps that eviction left between them are closed, as StreamingLLM does it.
inline int run_generate(const Common& common, const GenerateOptions& options) {
  Runtime runtime(common);
  const std::string text = options.chat ? engine::chat_prompt(options.prompt) : options.prompt;
  const std::vector<Token> prompt = runtime.tokenizer().encode_start(text);
  if (prompt.empty())
    throw std::invalid_argument("--prompt is empty");
  runtime.check_fits(prompt.size(), "--prompt");
  engine::Sequence sequence =
      make_sequence(runtime, common,
                    shared_tokens(prompt.size(), options.max_new_tokens, runtime.context_length()));
  engine::Sampler sampler(options.temperature, options.seed);
  engine::LogitRows logits =
      engine::read_prompt(runtime.transformer(), prompt, sequence, runtime.signals());
  Token next = sampler.sample(logits.row(0));
  const auto start = std::chrono::steady_clock::now();
  std::size_t count = 0;
  std::string pending;  // bytes of a character that is not complete yet
  std::vector<Token> recent;
  for (; options.max_new_tokens == 0 || count < options.max_new_tokens; ++count) {
    if (!options.ignore_eos && runtime.tokenizer().is_end(next))
      break;
    std::printf("%s", runtime.tokenizer().decode({&next, 1}).c_str());
    std::fflush(stdout);
    if (static_cast<std::size_t>(sequence.cache().next_position()) + 1 >=
        runtime.context_length()) {
      if (sequence.cache().longest_lane() + 1 >= runtime.context_length()) {
        std::fprintf(stderr, "\n[the model's context of %zu tokens is full]",
                     runtime.context_length());
        break;
      }
      runtime.transformer().close_position_gaps(sequence.cache());
    }
    next = sampler.sample(
        engine::decode_step(runtime.transformer(), next, sequence, runtime.signals()).row(0));
  }
  const double seconds = seconds_since(start);
  const kvevict::Counters& counters = sequence.policy().counters();
  std::fprintf(stderr,
               "\n[%s: %zu tokens read, %zu written at %.1f per second; longest lane %zu, KV %s MB "
               "(peak %s), %zu entries evicted in %zu firings]\n",
               std::string(sequence.policy().name()).c_str(), prompt.size(), count,
               static_cast<double>(count) / seconds, sequence.cache().longest_lane(),
               detail::megabytes(sequence.cache().bytes_held()).c_str(),
               detail::megabytes(sequence.cache().peak_bytes()).c_str(), counters.evicted,
               counters.firings);
  std::printf("\n");
  write_json(common.json, {{"prompt_tokens", prompt.size()},
                           {"new_tokens", count},
                           {"tokens_per_second", static_cast<double>(count) / seconds},
                           {"kv_bytes_end", sequence.cache().bytes_held()},
                           {"kv_bytes_peak", sequence.cache().peak_bytes()},
                           {"entries_evicted", counters.evicted}});
  return 0;
}

struct PerplexityOptions {
  std::string file;
  std::size_t prompt_len = 16;
  std::size_t max_tokens = 4096;
};

inline int run_perplexity(const Common& common, const PerplexityOptions& options) {
  Progress progress;
  Runtime runtime(common);
  std::vector<Token> text = runtime.tokenizer().encode_start(
      options.file.empty() ? std::string(kStory) : read_text(options.file));
  if (text.size() > options.max_tokens)
    text.resize(options.max_tokens);
  if (text.size() < options.prompt_len + 2) {
    throw std::invalid_argument("the text has " + std::to_string(text.size()) +
                                " tokens; --prompt-len and two more are needed");
  }
  runtime.check_fits(text.size(), "the text");
  engine::Sequence sequence = make_sequence(runtime, common, text.size());
  const std::span<const Token> all(text);
  engine::read_prompt(runtime.transformer(), all.first(options.prompt_len), sequence,
                      runtime.signals());
  const DecodeResult result = decode_text(
      runtime, all.subspan(options.prompt_len), sequence, [](std::size_t) { return true; },
      [&](std::size_t t) {
        if (t % 32 == 0) {
          progress.show("token " + std::to_string(t) + " of " + std::to_string(text.size()));
        }
      });
  progress.show("");
  std::printf(
      "%s: NLL %.4f, perplexity %.3f over %zu tokens; %.1f tokens/s; KV %s MB at the end, "
      "%s at peak; %zu entries evicted\n",
      std::string(sequence.policy().name()).c_str(), result.nll, std::exp(result.nll),
      result.num_tokens, static_cast<double>(result.num_tokens) / result.seconds,
      detail::megabytes(sequence.cache().bytes_held()).c_str(),
      detail::megabytes(sequence.cache().peak_bytes()).c_str(),
      sequence.policy().counters().evicted);
  write_json(common.json,
             {{"nll", result.nll},
              {"tokens", result.num_tokens},
              {"tokens_per_second", static_cast<double>(result.num_tokens) / result.seconds},
              {"kv_bytes_end", sequence.cache().bytes_held()},
              {"kv_bytes_peak", sequence.cache().peak_bytes()},
              {"entries_evicted", sequence.policy().counters().evicted}});
  return 0;
}

struct RecallRun {
  std::vector<std::size_t> lengths = {500, 1000};
  std::vector<double> depths = {0.1, 0.5, 0.9};
  std::size_t num_trials = 4;
  std::string task = "word";
  std::size_t num_facts = 32;
  std::uint64_t seed = 0;
};

inline int run_recall(const Common& common, const RecallRun& options) {
  Progress progress;
  Runtime runtime(common);
  const bool built_in = is_built_in_model(runtime.file());
  RecallOptions task{.kind = built_in                   ? RecallKind::kBuiltInModel
                             : options.task == "number" ? RecallKind::kPassKey
                                                        : RecallKind::kWord,
                     .num_facts = options.num_facts};
  std::vector<std::string> header = {"prompt tokens"};
  // The built-in model's facts lie at all depths.
  const std::vector<double> depths = built_in ? std::vector<double>{0} : options.depths;
  for (const double depth : depths)
    header.push_back(built_in ? "recall" : "depth " + fixed(depth, 2));
  Table table(header);
  nlohmann::json cells = nlohmann::json::array();
  for (const std::size_t length : options.lengths) {
    runtime.check_fits(length, "--lengths");
    task.prompt_len = length;
    std::vector<std::string> row = {std::to_string(length)};
    for (const double depth : depths) {
      task.depth = depth;
      AnswerResult sum;
      for (std::size_t t = 0; t < options.num_trials; ++t) {
        progress.show("length " + std::to_string(length) + ", depth " + fixed(depth, 2) +
                      ", trial " + std::to_string(t + 1));
        task.seed = options.seed + t;
        const Trial trial = make_trial(runtime.file(), runtime.tokenizer(), task);
        engine::Sequence sequence = make_sequence(runtime, common, trial.prompt.size());
        engine::read_prompt(runtime.transformer(), trial.prompt, sequence, runtime.signals());
        const AnswerResult answers = ask(runtime, trial, sequence);
        sum.num_right += answers.num_right;
        sum.num_questions += answers.num_questions;
      }
      row.push_back(std::to_string(sum.num_right) + "/" + std::to_string(sum.num_questions));
      cells.push_back({{"prompt_len", length},
                       {"depth", depth},
                       {"num_right", sum.num_right},
                       {"num_questions", sum.num_questions}});
    }
    table.add(row);
  }
  progress.show("");
  table.print(stdout);
  write_json(common.json, {{"policy", common.policy}, {"budget", common.budget}, {"cells", cells}});
  return 0;
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_COMMANDS_HPP_
