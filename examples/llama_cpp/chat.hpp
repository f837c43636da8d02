#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_CHAT_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_CHAT_HPP_

#include "kvevict/core/error.hpp"
#include "llama_cpp/reduction.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/contestants.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// chat: a conversation without end in a fixed number of cells.
namespace llama_example {

struct ChatOptions {
  std::uint32_t num_cells = 1024;
  std::size_t budget = 0;  ///< 0: three quarters of the cells
  std::string policy = "triattention";
  std::string options;
  Reduction reduction;
  std::string system = "You are a helpful assistant. Answer in a few sentences.";
  std::size_t max_reply = 200;
  float temperature = 0.7F;
  std::uint64_t seed = 0;
};

class Chat {
 public:
  Chat(const Common& common, const ChatOptions& options)
      : options_(options),
        budget_(options.budget != 0 ? options.budget : options.num_cells * 3 / 4),
        model_(common.model),
        text_(common.model),
        threads_(common.num_threads),
        sampler_(options.temperature, options.seed, 40),
        runtime_(std::make_unique<Runtime>(model_, threads_,
                                           ContextSize{.num_cells = options.num_cells})) {
    session_ = std::make_unique<Session>(
        runtime_->engine(),
        runtime_->make_policy(options.policy,
                              lm::options_for(options.policy, budget_, options.options)),
        SessionOptions{.granularity = options.reduction.granularity(runtime_->num_layers()),
                       .cut_interval = 32});
  }

  /// What a user says, and the reply on stdout.
  void say(const std::string& message) {
    const bool is_first = session_->policy().length() == 0;
    // The reply before is not closed yet.
    std::string turn = is_first ? "" : "<|im_end|>\n";
    if (is_first && !options_.system.empty())
      pin_next("system", system_prefix());
    const std::size_t begin =
        session_->policy().length() + text_.tokenizer.encode(turn + system_prefix()).size();
    turn += engine::chat_prompt(message, is_first ? options_.system : "");
    const Tokens tokens = text_.tokenizer.encode(turn);
    last_ = {static_cast<kvevict::Position>(begin),
             static_cast<kvevict::Position>(session_->policy().length() + tokens.size())};
    session_->prompt(tokens, std::exchange(to_pin_, {}));
    reply();
  }

  /// A line that begins with '/'; false: the end.
  bool command(const std::string& line) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, blank);
    const std::string rest = line.substr(std::min(blank + 1, line.size()));
    if (name == "/quit")
      return false;
    if (name == "/stats") {
      print_stats();
    } else if (name == "/pin" && !rest.empty() && last_.last > last_.first) {
      pinned_.emplace_back(rest, last_);
      to_pin_.push_back(last_);
      std::printf("[what you said last stays, as \"%s\"]\n", rest.c_str());
    } else if (name == "/cells" && !rest.empty()) {
      move_to(static_cast<std::uint32_t>(std::stoul(rest)));
    } else {
      std::printf(
          "[/stats; /pin NAME: what was said last stays; /cells N: go on in a context of N cells; "
          "/quit]\n");
    }
    return true;
  }

  void print_stats() const {
    const auto& counters = session_->counters();
    std::printf(
        "[%zu of %zu cells live (budget %zu), %zu tokens of text, %llu evicted in %llu runs, "
        "%llu compactions, %llu blocks moved up; state %.1f MB, cache %.1f MB; pinned:",
        session_->num_live(), runtime_->engine().host().num_cells(), budget_,
        session_->policy().length(), static_cast<unsigned long long>(counters.evicted),
        static_cast<unsigned long long>(counters.removals),
        static_cast<unsigned long long>(counters.compactions),
        static_cast<unsigned long long>(counters.shifts),
        1e-6 * static_cast<double>(runtime_->engine().host().state_size(session_->sequence_id())),
        1e-6 * static_cast<double>(runtime_->engine().cache_bytes()));
    for (const auto& [name, span] : pinned_)
      std::printf(" %s (%d)", name.c_str(), span.last - span.first);
    std::printf("]\n");
  }

 private:
  [[nodiscard]] std::string system_prefix() const {
    return session_->policy().length() == 0 && !options_.system.empty()
               ? "<|im_start|>system\n" + options_.system + "<|im_end|>\n"
               : "";
  }
  // The first tokens of the text to come.
  void pin_next(const std::string& name, const std::string& prefix) {
    const auto first = static_cast<kvevict::Position>(session_->policy().length());
    const auto count = static_cast<kvevict::Position>(text_.tokenizer.encode(prefix).size());
    to_pin_.push_back({first, first + count});
    pinned_.emplace_back(name, to_pin_.back());
  }
  void reply() {
    for (std::size_t i = 0; i < options_.max_reply; ++i) {
      const Token token = sampler_.sample(runtime_->logits());
      if (text_.tokenizer.is_end(token))
        break;
      std::printf("%s", text_.tokenizer.decode({&token, 1}).c_str());
      std::fflush(stdout);
      session_->decode(token);
    }
    std::printf("\n");
  }
  // The old context goes, and its memory with it.
  void move_to(std::uint32_t num_cells) {
    if (num_cells < budget_ + 128) {
      throw std::invalid_argument("/cells: the policy keeps " + std::to_string(budget_) +
                                  " tokens, so at least " + std::to_string(budget_ + 128) +
                                  " cells are needed");
    }
    const std::size_t before = runtime_->engine().cache_bytes();
    auto runtime = std::make_unique<Runtime>(model_, threads_, ContextSize{.num_cells = num_cells});
    session_.reset(new Session(session_->hand_over(runtime->engine())));
    runtime_ = std::move(runtime);
    std::printf("[cache %.1f -> %.1f MB]\n", 1e-6 * static_cast<double>(before),
                1e-6 * static_cast<double>(runtime_->engine().cache_bytes()));
  }

  ChatOptions options_;
  std::size_t budget_;
  Model model_;
  Text text_;
  Threads threads_;
  engine::Sampler sampler_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Session> session_;
  std::vector<std::pair<std::string, kvevict::PositionSpan>> pinned_;
  std::vector<kvevict::PositionSpan> to_pin_;  // with the next prompt
  kvevict::PositionSpan last_;                 // what the user said last
};

inline int chat(const Common& common, const ChatOptions& options) {
  Chat chat(common, options);
  std::printf("> ");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      if (line.starts_with('/')) {
        if (!chat.command(line))
          break;
      } else if (!line.empty()) {
        chat.say(line);
      }
    } catch (const std::invalid_argument& error) {  // a command that cannot be
      std::printf("[%s]\n", error.what());
    }
    std::printf("> ");
    std::fflush(stdout);
  }
  std::printf("\n");
  chat.print_stats();
  return 0;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_CHAT_HPP_
