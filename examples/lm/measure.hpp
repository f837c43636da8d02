#ifndef KVEVICT_EXAMPLES_LM_MEASURE_HPP_
#define KVEVICT_EXAMPLES_LM_MEASURE_HPP_

#include "lm/common.hpp"
#include "lm/output.hpp"
#include "lm/recall_task.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

// The two measurements: answers from a cut cache, and a text predicted while the cache is cut.
namespace lm {

/// What decoding under a policy cost and gave.
struct DecodeResult {
  std::size_t num_steps = 0;
  std::size_t num_tokens = 0;  ///< whose prediction counts
  double nll = 0;              ///< mean negative log-likelihood of those, nats
  double seconds = 0;          ///< all of the decoding, the policy's part included
};

/// Feeds `text` token by token, the policy evicting as it likes, and sums what the model thought
/// of each next token that counts. `text[0]` follows what the sequence holds already.
/// @param counts  counts(i): whether text[i] does
template <class Counts, class OnToken>
[[nodiscard]] DecodeResult decode_text(Runtime& runtime, std::span<const Token> text,
                                       engine::Sequence& sequence, Counts&& counts,
                                       OnToken&& on_token) {
  DecodeResult result;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const engine::LogitRows logits =
        engine::decode_step(runtime.transformer(), text[i], sequence, runtime.signals());
    if (counts(i + 1)) {
      result.nll -= engine::log_likelihood(logits.row(0), text[i + 1]);
      ++result.num_tokens;
    }
    ++result.num_steps;
    on_token(i);
  }
  result.seconds = seconds_since(start);
  if (result.num_tokens > 0)
    result.nll /= static_cast<double>(result.num_tokens);
  return result;
}

struct AnswerResult {
  std::size_t num_right = 0;
  std::size_t num_questions = 0;
  std::size_t num_steps = 0;
  double seconds = 0;
};

/// Asks a trial's questions of a sequence that has read its prompt. An answer is right if it
/// stands in the greedy continuation.
[[nodiscard]] inline AnswerResult ask(Runtime& runtime, const Trial& trial,
                                      engine::Sequence& sequence) {
  AnswerResult result;
  const auto start = std::chrono::steady_clock::now();
  for (const Question& question : trial.questions) {
    Token next = 0;
    const auto step = [&](Token token) {
      next = engine::greedy(
          engine::decode_step(runtime.transformer(), token, sequence, runtime.signals()).row(0));
      ++result.num_steps;
    };
    for (const Token token : question.feed)
      step(token);
    std::vector<Token> said = {next};
    while (said.size() < question.max_new_tokens) {
      step(next);
      said.push_back(next);
    }
    const std::string text = runtime.tokenizer().decode(said);
    result.num_right += text.find(question.answer) != std::string::npos ? 1 : 0;
    ++result.num_questions;
  }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_MEASURE_HPP_
