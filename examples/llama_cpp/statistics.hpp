#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_STATISTICS_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_STATISTICS_HPP_

#include "kvevict/policies/triattention.hpp"
#include "kvevict/scoring/query_statistics_bytes.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/output.hpp"
#include "lm/prose.hpp"

#include <cstddef>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace llama_example {

/// Statistics of the queries that a model makes while it reads `tokens`: a TriAttention that never
/// cuts gathers them.
[[nodiscard]] inline kvevict::QueryStatistics gather_statistics(Runtime& runtime,
                                                                std::span<const Token> tokens) {
  kvevict::llama_cpp::Session<kvevict::TriAttention, kvevict::llama_cpp::Context> session(
      runtime.engine(),
      kvevict::TriAttention({.budget = tokens.size(), .rotary = runtime.engine().rotary()},
                            runtime.engine().shape()));
  session.prompt(tokens);
  kvevict::QueryStatistics statistics = kvevict::gathered_statistics(session.policy());
  session.reset();
  return statistics;
}

/// Those in `path`, or, where there is no such file, those of a story, which are then written to
/// it. An empty path means no file.
[[nodiscard]] inline std::shared_ptr<const kvevict::QueryStatistics> load_statistics(
    Runtime& runtime, const Text& text, const std::string& path) {
  std::string bytes;
  if (!path.empty() && std::ifstream(path)) {
    bytes = lm::read_text(path);
  } else {
    const auto gathered = kvevict::query_statistics_bytes(
        gather_statistics(runtime, text.tokenizer.encode_start(lm::kStory)));
    bytes.assign(reinterpret_cast<const char*>(gathered.data()), gathered.size());
    if (!path.empty() && !(std::ofstream(path, std::ios::binary) << bytes))
      throw std::runtime_error(path + ": cannot be written");
  }
  return std::make_shared<const kvevict::QueryStatistics>(kvevict::query_statistics_from_bytes(
      std::as_bytes(std::span(bytes)), runtime.engine().shape(), runtime.engine().rotary()));
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_STATISTICS_HPP_
