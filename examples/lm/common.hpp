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
#include "kvevict/core/shape.hpp"
#include "lm/contestants.hpp"
#include "lm/output.hpp"

#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
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
  [[nodiscard]] const kvevict::CacheShape& shape() const noexcept { return info_.shape; }
  [[nodiscard]] kvevict::AnyPolicy make_policy(const std::string& policy,
                                               const std::string& options) const {
    return engine::make_policy(policy, options, info_);
  }
  [[nodiscard]] engine::Sequence make_sequence(kvevict::AnyPolicy policy) const {
    return {transformer_, std::move(policy), token_labels_};
  }
  [[nodiscard]] engine::Sequence make_sequence(const std::string& policy,
                                               const std::string& options) const {
    return make_sequence(make_policy(policy, options));
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

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_COMMON_HPP_
