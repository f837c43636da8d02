#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_ENDLESS_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_ENDLESS_HPP_

#include "llama_cpp/reduction.hpp"
#include "llama_cpp/runtime.hpp"
#include "llama_cpp/statistics.hpp"
#include "lm/contestants.hpp"
#include "lm/output.hpp"
#include "lm/prose.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// endless: text without end in a cache of fixed size.
namespace llama_example {

struct EndlessOptions {
  std::uint32_t num_cells = 512;
  std::size_t budget = 404;
  std::size_t num_tokens = 3000;  ///< of a text, predicted one by one
  std::uint32_t generate_cells = 1024;
  std::size_t num_generated = 10000;
  std::string policies;  ///< of the catalogue, instead of the table's own rows
};

/// A policy that holds a cache at a budget while text goes on.
struct EndlessRow {
  std::string label;
  std::string policy;
  std::string options = {};
  std::string reduce = "sum";
};

[[nodiscard]] inline std::vector<EndlessRow> endless_rows(const EndlessOptions& options) {
  std::vector<EndlessRow> rows = {{"full cache", "fullkv"}};
  if (!options.policies.empty()) {
    for (const lm::Contestant& c : lm::lineup_of(options.policies).contestants) {
      if (c.cuts_decode && c.policy != rows[0].policy)
        rows.push_back({c.label, c.policy, c.fixed});
    }
    return rows;
  }
  rows.insert(rows.end(), {{"4 sinks + recent", "streaming_llm"},
                           {"recent alone", "streaming_llm",
                            "num_sink_tokens=0,recent_window=" + std::to_string(options.budget)},
                           {"random", "random_eviction", "shared=true"},
                           {"Knorm", "knorm", "num_sink_tokens=4,recent_window=32"},
                           {"EpiKV", "epikv"},
                           {"TOVA", "tova"},
                           {"H2O", "h2o"},
                           {"InertiaKV, score-free", "inertiakv", "score_free=true"},
                           {"TriAttention", "triattention", "recent_window=128", "max"}});
  return rows;
}

/// `text` predicted token by token: the mean of -ln p of each part, and of all.
struct Predicted {
  std::vector<double> parts;
  double all = 0.0;
};

[[nodiscard]] inline Predicted predict(Runtime& runtime, Session& session,
                                       std::span<const Token> text, std::size_t part_len) {
  Predicted result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const double nll = runtime.surprise(text[i]);
    session.decode(text[i]);
    if (i % part_len == 0)
      result.parts.push_back(0.0);
    result.parts.back() +=
        nll / static_cast<double>(std::min(part_len, text.size() - i / part_len * part_len));
    result.all += nll / static_cast<double>(text.size());
  }
  return result;
}

/// So much of --text, or of what there is.
[[nodiscard]] inline Tokens text_of(const Common& common, const Text& text, std::size_t length) {
  Tokens tokens = text.tokenizer.encode_start(common.text.empty() ? std::string(lm::kStory)
                                                                  : lm::read_text(common.text));
  if (tokens.size() < length) {
    throw std::invalid_argument("the text has " + std::to_string(tokens.size()) + " tokens, not " +
                                std::to_string(length) + ": give a longer one (--text)");
  }
  tokens.resize(length);
  return tokens;
}

[[nodiscard]] inline Session make_session(Runtime& runtime, const EndlessRow& row,
                                          std::size_t budget) {
  return Session(runtime.engine(),
                 runtime.make_policy(row.policy, lm::options_for(row.policy, budget, row.options)),
                 {.granularity = Reduction{.reduce = row.reduce}.granularity(runtime.num_layers()),
                  .cut_interval = 32});
}

/// Reads the first tokens as a prompt and predicts the others. The full cache has room for all.
[[nodiscard]] inline std::pair<Predicted, kvevict::llama_cpp::SessionCounters> predict_in(
    const Model& model, const Threads& threads, const EndlessRow& row, std::span<const Token> text,
    std::uint32_t num_cells, std::size_t budget, std::size_t part_len) {
  constexpr std::size_t kPrompt = 16;
  const std::size_t needed = row.policy == "fullkv" ? text.size() + 256 : num_cells;
  Runtime runtime(model, threads, {.num_cells = static_cast<std::uint32_t>(needed / 256 * 256)});
  Session session = make_session(runtime, row, budget);
  session.prompt(text.first(kPrompt));
  Predicted predicted = predict(runtime, session, text.subspan(kPrompt), part_len);
  return {std::move(predicted), session.counters()};
}

inline nlohmann::json predict_text(const Common& common, const EndlessOptions& options,
                                   const Model& model, const Text& text, const Threads& threads,
                                   lm::Progress& progress) {
  constexpr std::size_t kPart = 500;
  const Tokens tokens = text_of(common, text, options.num_tokens);
  std::vector<std::string> header = {"NLL, n_ctx " + std::to_string(options.num_cells) + ", kept " +
                                     std::to_string(options.budget)};
  for (std::size_t first = 0; first < tokens.size(); first += kPart)
    header.push_back(std::to_string(first) + "+");
  header.insert(header.end(), {"all", "evicted", "runs", "compactions"});
  lm::Table table(header);
  auto json = nlohmann::json::array();
  for (const EndlessRow& row : endless_rows(options)) {
    progress.show(row.label);
    const auto [nll, counters] =
        predict_in(model, threads, row, tokens, options.num_cells, options.budget, kPart);
    std::vector<std::string> line = {row.label};
    for (const double part : nll.parts)
      line.push_back(lm::fixed(part, 2));
    line.resize(header.size() - 4);
    line.insert(line.end(),
                {lm::fixed(nll.all, 3), std::to_string(counters.evicted),
                 std::to_string(counters.removals), std::to_string(counters.compactions)});
    table.add(line);
    json.push_back({{"label", row.label},
                    {"nll", nll.all},
                    {"parts", nll.parts},
                    {"evicted", counters.evicted},
                    {"runs", counters.removals},
                    {"compactions", counters.compactions}});
  }
  progress.show("");
  table.print(stdout);
  return json;
}

/// Lets the model write until the cache was filled many times, then predicts a story: as well as
/// the same policy does behind a short prompt?
inline nlohmann::json generate(const Common& /*common*/, const EndlessOptions& options,
                               const Model& model, const Text& text, const Threads& threads,
                               lm::Progress& progress) {
  const Tokens story = text.tokenizer.encode(lm::kStory);
  const Tokens prompt = text.tokenizer.encode_start(
      "These are notes on a walk along the coast, written down day by day.\n\n");
  const std::size_t budget = options.generate_cells * 3 / 4;
  lm::Table table({"story NLL, n_ctx " + std::to_string(options.generate_cells), "at once",
                   "after " + std::to_string(options.num_generated) + " written", "live", "evicted",
                   "moved up", "MB"});
  auto json = nlohmann::json::array();
  for (const EndlessRow& row :
       std::vector<EndlessRow>{{"4 sinks + recent", "streaming_llm"}, {"TOVA", "tova"}}) {
    Runtime runtime(model, threads, {.num_cells = options.generate_cells});
    Session session = make_session(runtime, row, budget);
    session.prompt(prompt);
    const double at_once = predict(runtime, session, story, story.size()).all;
    session.reset();
    engine::Sampler sampler(0.8F, 1, 40);
    session.prompt(prompt);
    for (std::size_t i = 0; i < options.num_generated; ++i) {
      if (i % 100 == 0)
        progress.show(row.label + ", token " + std::to_string(i));
      session.decode(sampler.sample(runtime.logits()));
    }
    const double after = predict(runtime, session, story, story.size()).all;
    const std::size_t bytes = runtime.engine().host().state_size(session.sequence_id());
    table.add({row.label, lm::fixed(at_once, 3), lm::fixed(after, 3),
               std::to_string(session.num_live()), std::to_string(session.counters().evicted),
               std::to_string(session.counters().shifts), lm::fixed(double(bytes) * 1e-6, 1)});
    json.push_back({{"label", row.label},
                    {"at_once", at_once},
                    {"after", after},
                    {"live", session.num_live()},
                    {"evicted", session.counters().evicted},
                    {"moved_up", session.counters().shifts},
                    {"state_bytes", bytes}});
  }
  progress.show("");
  table.print(stdout);
  return json;
}

inline int endless(const Common& common, const EndlessOptions& options) {
  const Model model(common.model);
  const Text text(common.model);
  const Threads threads(common.num_threads);
  lm::Progress progress;
  nlohmann::json json = {{"mode", "endless"}};
  if (options.num_tokens > 0)
    json["predicted"] = predict_text(common, options, model, text, threads, progress);
  if (options.num_generated > 0)
    json["generated"] = generate(common, options, model, text, threads, progress);
  lm::write_json(common.json, json);
  return 0;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_ENDLESS_HPP_
