#ifndef KVEVICT_EXAMPLES_LM_COMMON_HPP_
#define KVEVICT_EXAMPLES_LM_COMMON_HPP_

#include "engine/eviction.hpp"
#include "engine/gguf.hpp"
#include "engine/policies.hpp"
#include "engine/sampler.hpp"
#include "engine/tokenizer.hpp"
#include "engine/transformer.hpp"
#include "kvevict/any_policy.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "lm/contestants.hpp"

#include <nlohmann/json.hpp>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

// What all commands of kvevict_lm share.
namespace lm {

using engine::Token;

/// Options that every command has; those of the policy are not read by compare.
struct Common {
  std::string model = {};
  std::size_t num_threads = 2;
  std::string signals = "rows";
  std::string json = {};
  std::string policy = "fullkv";
  std::string budget = "10%";
  std::string options = {};
};

/// A loaded model and what it takes to run it under a policy.
class Runtime {
 public:
  explicit Runtime(const Common& common)
      : file_(engine::GgufFile::open(common.model)),
        tokenizer_(file_),
        token_labels_(engine::token_labels(tokenizer_)),
        transformer_(engine::Model(file_), common.num_threads),
        signals_(common.signals == "rows" ? engine::Signals::kRows : engine::Signals::kQueries) {
    const engine::Model& model = transformer_.model();
    info_.shape = engine::cache_shape(model.config());
    info_.output_projection = engine::output_projection(model);
    info_.rotary = engine::rotary(model.config());
  }

  [[nodiscard]] const engine::GgufFile& file() const noexcept { return file_; }
  [[nodiscard]] const engine::Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  [[nodiscard]] engine::Transformer& transformer() noexcept { return transformer_; }
  [[nodiscard]] engine::Signals signals() const noexcept { return signals_; }
  [[nodiscard]] std::size_t context_length() const noexcept {
    return transformer_.model().config().context_length;
  }
  [[nodiscard]] engine::Sequence make_sequence(const std::string& policy,
                                               const std::string& options) const {
    return {transformer_, engine::make_policy(policy, options, info_), token_labels_};
  }
  void check_fits(std::size_t num_tokens, const std::string& what) const {
    if (num_tokens > context_length()) {
      throw std::invalid_argument(what + " has " + std::to_string(num_tokens) +
                                  " tokens, the model's context only " +
                                  std::to_string(context_length()));
    }
  }

 private:
  engine::GgufFile file_;
  engine::Tokenizer tokenizer_;
  std::vector<kvevict::TokenLabel> token_labels_;
  engine::Transformer transformer_;
  kvevict::ModelInfo info_;
  engine::Signals signals_;
};

/// "128" or "10%" of `num_tokens`, in tokens.
[[nodiscard]] inline std::size_t budget_tokens(const std::string& text, std::size_t num_tokens) {
  const bool percent = !text.empty() && text.back() == '%';
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  double share = 0;
  std::size_t count = 0;
  const auto read =
      percent ? std::from_chars(text.data(), end, share) : std::from_chars(text.data(), end, count);
  if (percent && share > 0 && share <= 100)
    count = kvevict::Budget::keep_ratio(share / 100).tokens_of(num_tokens);
  if (read.ec != std::errc() || read.ptr != end || count == 0) {
    throw std::invalid_argument("budget '" + text +
                                "': expected tokens (128) or a share (10%), more than 0");
  }
  return count;
}

/// The sequence that --policy, --budget and --options ask for, for a text of `num_tokens`.
[[nodiscard]] inline engine::Sequence make_sequence(const Runtime& runtime, const Common& common,
                                                    std::size_t num_tokens) {
  // What the user wrote comes last, and the last one of a key holds.
  return runtime.make_sequence(
      common.policy,
      options_for(common.policy, budget_tokens(common.budget, num_tokens), common.options));
}

/// A line on stderr that is overwritten by the next one.
class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { show(""); }

  void show(const std::string& text) {
    const std::size_t width = shown_ > text.size() ? shown_ - text.size() : 0;
    std::fprintf(stderr, "\r%s%s%s", text.c_str(), std::string(width, ' ').c_str(),
                 text.empty() ? "\r" : "");
    std::fflush(stderr);
    shown_ = text.size();
  }

 private:
  std::size_t shown_ = 0;
};

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline void write_json(const std::string& path, const nlohmann::json& result) {
  if (path.empty())
    return;
  std::ofstream file(path);
  file << result.dump(2) << "\n";
  if (!file)
    throw std::runtime_error(path + ": cannot be written");
}

[[nodiscard]] inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file)
    throw std::runtime_error(path + ": cannot be read");
  return text.str();
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_COMMON_HPP_
