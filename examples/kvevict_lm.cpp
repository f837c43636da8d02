// A language model whose KV cache kvevict keeps small: generate, perplexity, recall, compare.
#include "lm/commands.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

int main(int argc, char** argv) {
  CLI::App app("A language model whose KV cache kvevict keeps small");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help for all commands");

  lm::Common common;
  const auto add_common = [&](CLI::App* command) {
    command->add_option("--model", common.model, "GGUF file, Llama or Qwen2 architecture")
        ->required();
    command->add_option("--threads", common.num_threads, "Threads of the engine")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    command
        ->add_option("--signals", common.signals,
                     "What attention policies are given: the engine's softmax rows, or queries "
                     "alone as an engine with fused attention would")
        ->check(CLI::IsMember({"rows", "queries"}))
        ->capture_default_str();
    command->add_option("--json", common.json, "Also write the result to this file");
  };
  const auto add_policy = [&](CLI::App* command) {
    command->add_option("--policy", common.policy, "Name of the policy")->capture_default_str();
    command
        ->add_option("--budget", common.budget,
                     "Tokens per KV head (128), or a share of the text (10%): of the prompt and "
                     "what is written, and where that is without end, of the trained context")
        ->capture_default_str();
    command->add_option("--options", common.options,
                        "Further options of the policy, key=value,key=value; they win over what "
                        "--budget sets");
  };

  lm::GenerateOptions generate;
  CLI::App* generate_command = app.add_subcommand("generate", "Continue a prompt");
  add_common(generate_command);
  add_policy(generate_command);
  generate_command->add_option("--prompt", generate.prompt, "Text to continue")->required();
  generate_command->add_flag("--chat", generate.chat, "Wrap the prompt as a chat message");
  generate_command
      ->add_option("--max-new-tokens", generate.max_new_tokens,
                   "0: without end, in constant memory under a policy that evicts while decoding")
      ->capture_default_str();
  generate_command->add_option("--temperature", generate.temperature, "0: always the likeliest")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  generate_command->add_option("--seed", generate.seed, "Of the sampling")->capture_default_str();
  generate_command->add_flag("--ignore-eos", generate.ignore_eos, "Do not stop at the end token");

  lm::PerplexityOptions perplexity;
  CLI::App* perplexity_command =
      app.add_subcommand("perplexity", "Predict a text token by token under eviction");
  add_common(perplexity_command);
  add_policy(perplexity_command);
  perplexity_command->add_option("file", perplexity.file, "Text file; without it a built-in story");
  perplexity_command->add_option("--prompt-len", perplexity.prompt_len, "Tokens read first")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  perplexity_command->add_option("--max-tokens", perplexity.max_tokens, "Stop after so many")
      ->capture_default_str();

  lm::RecallRun recall;
  CLI::App* recall_command =
      app.add_subcommand("recall", "Hide facts in filler, cut the cache, ask for them");
  add_common(recall_command);
  add_policy(recall_command);
  recall_command->add_option("--lengths", recall.lengths, "Tokens of the prompts")
      ->delimiter(',')
      ->capture_default_str();
  recall_command->add_option("--depths", recall.depths, "Where the fact lies, 0 to 1")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  recall_command->add_option("--trials", recall.num_trials, "For each length and depth")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  recall_command
      ->add_option("--task", recall.task, "word or number; the built-in model has its own")
      ->check(CLI::IsMember({"word", "number"}))
      ->capture_default_str();
  recall_command->add_option("--facts", recall.num_facts, "Facts in a prompt of the built-in model")
      ->capture_default_str();
  recall_command->add_option("--seed", recall.seed, "Of the prompts")->capture_default_str();

  lm::CompareOptions compare;
  CLI::App* compare_command =
      app.add_subcommand("compare", "All policies and budgets in one table");
  add_common(compare_command);
  compare_command->add_option("--budgets", compare.budgets, "Shares of the text that may stay")
      ->delimiter(',')
      ->capture_default_str();
  compare_command->add_option("--prompt-len", compare.prompt_len, "Tokens of the recall prompts")
      ->capture_default_str();
  compare_command->add_option("--trials", compare.num_trials, "Recall prompts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  compare_command->add_option("--decode-tokens", compare.decode_tokens, "Tokens of the decode task")
      ->check(CLI::Range(32, 1 << 30))
      ->capture_default_str();
  compare_command
      ->add_option(
          "--policies", compare.policies,
          "Names, or compositions such as \"snapkv + caote + ada(floor=0.2)\", with commas "
          "between them; default: a choice of them, all: the whole catalogue. Beside each stands a "
          "random draw with its budget and protection")
      ->capture_default_str();
  compare_command->add_option("--seed", compare.seed, "Of the prompts")->capture_default_str();

  CLI11_PARSE(app, argc, argv);
  try {
    if (*generate_command)
      return lm::run_generate(common, generate);
    if (*perplexity_command)
      return lm::run_perplexity(common, perplexity);
    if (*recall_command)
      return lm::run_recall(common, recall);
    return lm::run_compare(common, compare);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict_lm: %s\n", error.what());
    return 1;
  }
}
