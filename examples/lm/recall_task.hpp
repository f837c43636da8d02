#ifndef KVEVICT_EXAMPLES_LM_RECALL_TASK_HPP_
#define KVEVICT_EXAMPLES_LM_RECALL_TASK_HPP_

#include "engine/gguf.hpp"
#include "engine/tokenizer.hpp"
#include "engine/transformer.hpp"
#include "lm/prose.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Facts hidden in filler, asked for after the cache was cut.
namespace lm {

using engine::Token;

/// Tokens that are fed after the cut, and what the model should say then.
struct Question {
  std::vector<Token> feed;
  std::string answer;
  std::size_t max_new_tokens = 1;  ///< the answer has to come within so many
};

struct Trial {
  std::vector<Token> prompt;  ///< read, then cut
  /// Of a single fact: where its tokens begin and end. What stands before says what it is about,
  /// and the question behind `filler_end` asks for it.
  std::size_t fact_begin = 0, fact_end = 0;
  std::size_t filler_begin = 0, filler_end = 0;
  std::vector<Question> questions;
};

enum class RecallKind {
  kPassKey,      ///< a number of five digits, said twice
  kWord,         ///< a word, said twice
  kBuiltInModel  ///< many names with values; only the built-in model knows the form
};

struct RecallOptions {
  RecallKind kind = RecallKind::kWord;
  std::size_t prompt_len = 1000;  ///< tokens, met to within a sentence
  double depth = 0.5;             ///< where a single fact lies, 0 = start, 1 = end
  // Of the built-in model's form:
  std::size_t num_facts = 32;
  std::size_t num_questions = 8;  ///< the first of them, up to 8, are asked at the prompt's end
  std::uint64_t seed = 0;
};

namespace detail {

/// The same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  [[nodiscard]] std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

inline constexpr std::array<std::string_view, 20> kSecretWords = {
    "lantern", "orchard", "compass", "velvet", "thunder", "pepper", "marble",
    "canyon",  "feather", "copper",  "ribbon", "anchor",  "walnut", "mirror",
    "saddle",  "cactus",  "violin",  "meadow", "pirate",  "candle"};

// Plain text without chat markup; a small model answers this form reliably.
[[nodiscard]] inline Trial single_fact(const engine::Tokenizer& tokenizer,
                                       const RecallOptions& options) {
  Random random(options.seed);
  std::string answer;
  std::string name = "secret word";
  if (options.kind == RecallKind::kWord) {
    answer = kSecretWords[random.below(kSecretWords.size())];
  } else {
    name = "pass key";
    for (int digit = 0; digit < 5; ++digit) {
      answer.push_back(static_cast<char>('1' + random.below(9)));
    }
  }
  const std::string intro =
      "There is an important piece of information hidden inside a lot of irrelevant text. Find it "
      "and memorize it.";
  const std::string fact =
      " The " + name + " is " + answer + ". Remember it. " + answer + " is the " + name + ".";
  const std::string question =
      "\n\nQuestion: What is the " + name + "?\nAnswer: The " + name + " is";
  const auto tokens_of = [&](std::string_view text) { return tokenizer.encode(text).size(); };
  const std::size_t fixed_len =
      tokenizer.encode_start(intro).size() + tokens_of(fact) + tokens_of(question);
  if (options.prompt_len < fixed_len) {
    throw std::invalid_argument("recall: a prompt of this form has at least " +
                                std::to_string(fixed_len) + " tokens");
  }
  // Every sentence comes once before any comes again: drawn one by one, some came five times, and
  // the fact, which is said twice, was not what stood out.
  std::vector<std::string_view> sentences;
  std::vector<std::string_view> deck;
  std::size_t len = fixed_len;
  while (true) {
    if (deck.empty()) {
      deck.assign(kFiller.begin(), kFiller.end());
      random.shuffle(deck);
    }
    const std::string_view sentence = deck.back();
    deck.pop_back();
    const std::size_t more = tokens_of(sentence);
    if (len + more > options.prompt_len)
      break;
    sentences.push_back(sentence);
    len += more;
  }
  const auto before =
      static_cast<std::size_t>(options.depth * static_cast<double>(sentences.size()));
  std::string text = intro;
  Trial trial;
  trial.filler_begin = tokenizer.encode_start(text).size();
  for (std::size_t i = 0; i <= sentences.size(); ++i) {
    if (i == before) {
      trial.fact_begin = tokenizer.encode_start(text).size();
      text += fact;
      trial.fact_end = tokenizer.encode_start(text).size();
    }
    if (i < sentences.size())
      text += sentences[i];
  }
  trial.filler_end = tokenizer.encode_start(text).size();
  trial.prompt = tokenizer.encode_start(text + question);
  // The last token goes through the cut cache, so that every word of the answer does.
  trial.questions.push_back({{trial.prompt.back()}, answer, 10});
  trial.prompt.pop_back();
  return trial;
}

// The grammar that the built-in model was trained on; its words are in the file's metadata.
[[nodiscard]] inline Trial many_facts(const engine::GgufFile& file,
                                      const engine::Tokenizer& tokenizer,
                                      const RecallOptions& options) {
  Random random(options.seed);
  const auto token = [&](const std::string& word) {
    const std::vector<Token> tokens = tokenizer.encode(" " + word);
    if (tokens.size() != 1)
      throw std::runtime_error("recall: '" + word + "' is not one token");
    return tokens[0];
  };
  auto names = file.get<std::vector<std::string>>("kvevict.recall.names");
  const auto& values = file.get<std::vector<std::string>>("kvevict.recall.values");
  const auto& filler = file.get<std::vector<std::string>>("kvevict.recall.filler");
  const std::size_t num_facts = std::min(options.num_facts, names.size());
  const std::size_t num_asked = std::min<std::size_t>(options.num_questions, 8);
  if (options.prompt_len < 2 * num_facts + 2 * num_asked || num_facts < options.num_questions) {
    throw std::invalid_argument("recall: " + std::to_string(num_facts) + " facts do not fit in " +
                                std::to_string(options.prompt_len) + " tokens");
  }
  random.shuffle(names);
  std::vector<std::string> facts_value(num_facts);
  // A body of single filler words and of facts, in random order.
  std::vector<std::size_t> body(options.prompt_len - 2 * num_asked - num_facts, num_facts);
  std::iota(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(num_facts), 0U);
  random.shuffle(body);
  Trial trial;
  trial.prompt = tokenizer.encode_start("");
  for (const std::size_t entry : body) {
    if (entry == num_facts) {
      trial.prompt.push_back(token(filler[random.below(filler.size())]));
      continue;
    }
    facts_value[entry] = values[random.below(values.size())];
    trial.prompt.push_back(token(names[entry]));
    trial.prompt.push_back(token(facts_value[entry]));
  }
  const Token query = token("?");
  for (std::size_t i = 0; i < num_asked; ++i) {
    trial.prompt.push_back(query);
    trial.prompt.push_back(token(names[i]));
  }
  for (std::size_t i = 0; i < options.num_questions; ++i) {
    Question question{{query, token(names[i])}, facts_value[i], 1};
    if (i > 0)
      question.feed.insert(question.feed.begin(), token(facts_value[i - 1]));
    trial.questions.push_back(std::move(question));
  }
  return trial;
}

}  // namespace detail

/// The form of recall that a model's file asks for.
[[nodiscard]] inline bool is_built_in_model(const engine::GgufFile& file) {
  return file.find<std::vector<std::string>>("kvevict.recall.names") != nullptr;
}

[[nodiscard]] inline Trial make_trial(const engine::GgufFile& file,
                                      const engine::Tokenizer& tokenizer,
                                      const RecallOptions& options) {
  return options.kind == RecallKind::kBuiltInModel ? detail::many_facts(file, tokenizer, options)
                                                   : detail::single_fact(tokenizer, options);
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_RECALL_TASK_HPP_
