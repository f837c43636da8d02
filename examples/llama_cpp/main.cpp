// kvevict in llama.cpp, flash attention on: what a model still finds in a cache that was cut, how
// fast it is then, text and talk without end in a cache of fixed size, and which layers to ask.
#include "llama_cpp/bench.hpp"
#include "llama_cpp/chat.hpp"
#include "llama_cpp/check.hpp"
#include "llama_cpp/endless.hpp"
#include "llama_cpp/layers.hpp"
#include "llama_cpp/recall.hpp"
#include "llama_cpp/short.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

int main(int argc, char** argv) {
  using namespace llama_example;
  CLI::App app("kvevict in llama.cpp", "kvevict_llama_cpp");
  app.require_subcommand(1);
  app.fallthrough();
  Common common;
  app.add_option("--model", common.model, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--text", common.text, "a text of some thousand tokens, for endless")
      ->check(CLI::ExistingFile);
  app.add_option("--json", common.json, "also write the result to this file");
  app.add_option("--threads", common.num_threads, "of llama.cpp; fewer than cores that are free")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  std::function<int()> run;
  const auto add_mode = [&](const char* name, const char* help, std::function<int()> mode) {
    CLI::App* command = app.add_subcommand(name, help);
    command->callback([&run, mode = std::move(mode)] { run = mode; });
    return command;
  };
  const auto add_reduction = [](CLI::App* command, Reduction& reduction) {
    command
        ->add_option("--layers", reduction.layers,
                     "who has a say in what stays: all, upper (half), or numbers, 17,21")
        ->capture_default_str();
    command->add_option("--reduce", reduction.reduce, "over heads and layers")
        ->check(CLI::IsMember({"sum", "mean", "max", "votes"}))
        ->capture_default_str();
  };

  RecallOptions recall_options;
  CLI::App* command = add_mode("recall", "a fact, asked for after the cut",
                               [&] { return recall(common, recall_options); });
  command->add_option("--trials", recall_options.num_trials, "of each case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--policies", recall_options.policies,
                      "names, or all: in the place of the table's own rows");
  command->add_flag("--reductions{all}", recall_options.reductions,
                    "each policy with each reduction");
  add_reduction(command, recall_options.reduction);
  command->add_option("--layer", recall_options.layer, "of the one-layer row")
      ->capture_default_str();
  command->add_option("--cases", recall_options.cases, "those whose name contains this");
  command->add_option("--statistics", recall_options.statistics,
                      "of queries: read from this file, or gathered and written to it");
  command->add_option("--seed", recall_options.seed, "of the prompts")->capture_default_str();

  LayersOptions layers_options;
  command = add_mode("layers", "which layers know where a fact lies, for --layers",
                     [&] { return choose_layers(common, layers_options); });
  command->add_option("--prompts", layers_options.num_prompts, "of each of two kinds")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--prompt-len", layers_options.prompt_len, "tokens")->capture_default_str();
  command->add_option("--budget", layers_options.budget, "tokens kept")->capture_default_str();
  command->add_option("--policy", layers_options.policy, "whose scores")->capture_default_str();
  command->add_option("--options", layers_options.options, "of the policy")->capture_default_str();
  command->add_option("--share", layers_options.share, "of the best layer's result that will do")
      ->capture_default_str();
  command->add_option("--out", layers_options.out, "write the list to this file");

  BenchOptions bench_options;
  command = add_mode("bench", "ms of a decode step", [&] { return bench(common, bench_options); });
  command->add_option("--prompt-len", bench_options.prompt_len, "tokens")->capture_default_str();
  command->add_option("--budget", bench_options.budget, "tokens kept")->capture_default_str();
  command->add_option("--hook-len", bench_options.hook_len, "tokens where the hook is measured")
      ->capture_default_str();
  command->add_option("--event-len", bench_options.event_len, "cells of the TriAttention event")
      ->capture_default_str();
  command->add_option("--rounds", bench_options.num_rounds, "of all in turn")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();

  EndlessOptions endless_options;
  command = add_mode("endless", "text without end in a cache of fixed size",
                     [&] { return endless(common, endless_options); });
  command->add_option("--cells", endless_options.num_cells, "n_ctx")->capture_default_str();
  command->add_option("--tokens", endless_options.num_tokens, "predicted")->capture_default_str();
  command->add_option("--budget", endless_options.budget, "tokens kept")->capture_default_str();
  command->add_option("--policies", endless_options.policies,
                      "names, or all: in the place of the table's own rows");
  command->add_option("--generate", endless_options.num_generated, "tokens written")
      ->capture_default_str();
  command->add_option("--generate-cells", endless_options.generate_cells, "n_ctx for these")
      ->capture_default_str();

  ChatOptions chat_options;
  command =
      add_mode("chat", "a conversation without end", [&] { return chat(common, chat_options); });
  command->add_option("--cells", chat_options.num_cells, "n_ctx")->capture_default_str();
  command->add_option("--budget", chat_options.budget, "tokens kept; 0: three quarters of n_ctx")
      ->capture_default_str();
  command->add_option("--policy", chat_options.policy, "name")->capture_default_str();
  command->add_option("--options", chat_options.options, "of the policy, key=value,key=value");
  add_reduction(command, chat_options.reduction);
  command->add_option("--system", chat_options.system, "stays whatever goes")
      ->capture_default_str();
  command->add_option("--max-reply", chat_options.max_reply, "tokens")->capture_default_str();
  command->add_option("--temperature", chat_options.temperature, "0: always the likeliest")
      ->capture_default_str();
  command->add_option("--seed", chat_options.seed, "of the sampling")->capture_default_str();

  std::string cache = "f16";
  command = add_mode("check", "does the adapter see what the engine computed with",
                     [&] { return check(common, cache); });
  command->add_option("--cache", cache, "type of K and V")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0"}))
      ->capture_default_str();
  add_mode("short", "whether all of it works", [&] { return run_short(common); });

  CLI11_PARSE(app, argc, argv);
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict_llama_cpp: %s\n", error.what());
    return 1;
  }
}
