#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_BENCH_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_BENCH_HPP_

#include "llama_cpp/endless.hpp"
#include "llama_cpp/reduction.hpp"
#include "llama_cpp/runtime.hpp"
#include "llama_cpp/statistics.hpp"
#include "lm/contestants.hpp"
#include "lm/output.hpp"
#include "lm/prose.hpp"
#include "lm/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// bench: what a decode step takes with and without kvevict, and what kvevict takes of it.
namespace llama_example {

struct BenchOptions {
  std::size_t prompt_len = 6000;
  std::size_t budget = 600;
  std::size_t hook_len = 1000;   ///< tokens in the cache where the hook is measured
  std::size_t event_len = 8000;  ///< where a TriAttention event is
  std::size_t num_rounds = 21;
};

/// Filler of so many tokens.
[[nodiscard]] inline Tokens long_text(const Text& text, std::size_t length) {
  Tokens tokens = text.tokenizer.encode_start("");
  for (std::size_t i = 0; tokens.size() < length; ++i) {
    const Tokens more = text.tokenizer.encode(lm::kFiller[i * 7 % lm::kFiller.size()]);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  tokens.resize(length);
  return tokens;
}

[[nodiscard]] inline double to_megabytes(std::size_t bytes) {
  return static_cast<double>(bytes) * 1e-6;
}
[[nodiscard]] inline double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return 1e3 * lm::seconds_since(start);
}
/// What the process holds in memory, by the system's account; 0 where there is none.
[[nodiscard]] inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::size_t kilobytes = 0;
    if (word == "VmRSS:" && file >> kilobytes)
      return 1024 * kilobytes;
  }
  return 0;
}

/// Something that decodes one token, and how long it took.
struct Timed {
  std::string label;
  std::function<void(Token)> decode;
  std::size_t live = 0;
  std::size_t state_bytes = 0;
  std::size_t cache_bytes = 0;
  std::vector<double> ms = {};
  std::vector<double> processor_ms = {};  ///< of all threads, without those of other programs

  [[nodiscard]] double median() const { return median_of(ms); }
  [[nodiscard]] double least() const { return *std::min_element(ms.begin(), ms.end()); }
  [[nodiscard]] static double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

/// The share of processor time that steps of `one` take beyond those of `other` in the same rounds.
/// Some policies look every fourth step alone, so each of four steps in turn has its median, and
/// counts the same.
[[nodiscard]] inline double more_than(const Timed& one, const Timed& other) {
  constexpr std::size_t kCycle = 4;
  double sum = 0.0;
  const std::size_t num_rounds = one.processor_ms.size();
  const std::size_t num_phases = std::min(kCycle, num_rounds);
  for (std::size_t phase = 0; phase < num_phases; ++phase) {
    std::vector<double> ratios;
    for (std::size_t round = phase; round < num_rounds; round += kCycle)
      ratios.push_back(one.processor_ms[round] / other.processor_ms[round]);
    sum += Timed::median_of(std::move(ratios));
  }
  return sum / static_cast<double>(num_phases) - 1.0;
}

/// All in turn, so that whatever else the machine does falls on all alike.
inline void time_interleaved(std::vector<Timed>& all, std::size_t num_rounds) {
  constexpr std::size_t kWarmUp = 2;
  for (std::size_t round = 0; round < num_rounds + kWarmUp; ++round) {
    for (Timed& one : all) {
      const auto start = std::chrono::steady_clock::now();
      const std::clock_t processor_start = std::clock();
      one.decode(static_cast<Token>(100 + round));
      if (round >= kWarmUp) {
        one.ms.push_back(milliseconds_since(start));
        one.processor_ms.push_back(1e3 * static_cast<double>(std::clock() - processor_start) /
                                   static_cast<double>(CLOCKS_PER_SEC));
      }
    }
  }
}

/// A context and one sequence in it.
struct Seat {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Session> session;  // goes before the context

  [[nodiscard]] Timed timed(const std::string& label) const {
    return {label, [this](Token token) { session->decode(token); }, session->num_live(),
            runtime->engine().host().state_size(session->sequence_id()),
            runtime->engine().cache_bytes()};
  }
};

[[nodiscard]] inline std::uint32_t cells_for(std::size_t num_tokens) {
  return static_cast<std::uint32_t>((num_tokens + 511) / 256 * 256);
}

/// A seat whose sequence begins with a prompt that was read before.
[[nodiscard]] inline std::unique_ptr<Seat> make_seat(
    const Model& model, const Threads& threads, std::uint32_t num_cells, const SavedCache& prompt,
    const std::string& policy, const std::string& options, const SessionOptions& session = {}) {
  auto seat = std::make_unique<Seat>();
  seat->runtime = std::make_unique<Runtime>(model, threads, ContextSize{.num_cells = num_cells});
  seat->session = std::make_unique<Session>(seat->runtime->engine(),
                                            seat->runtime->make_policy(policy, options), session);
  seat->session->begin_prompt(prompt.positions.size());
  seat->session->load_prompt(prompt);
  seat->session->end_prompt();
  return seat;
}

[[nodiscard]] inline nlohmann::json to_json(const std::vector<Timed>& all) {
  auto json = nlohmann::json::array();
  for (const Timed& one : all) {
    json.push_back({{"label", one.label},
                    {"live", one.live},
                    {"state_bytes", one.state_bytes},
                    {"cache_bytes", one.cache_bytes},
                    {"ms_min", one.least()},
                    {"ms_median", one.median()}});
  }
  return json;
}

/// The same text in a full cache, cut to a tenth, moved together, and in a smaller context.
inline nlohmann::json bench_decode(const BenchOptions& options, const Model& model,
                                   const Threads& threads, const SavedCache& prompt) {
  const std::uint32_t num_cells = cells_for(prompt.positions.size());
  const std::string random = lm::options_for("random_eviction", options.budget,
                                             "shared=true,only_at_prefill_end=true,seed=1");
  const auto cut = [&] {
    return make_seat(model, threads, num_cells, prompt, "random_eviction", random,
                     {.compact = false});
  };
  const auto full = make_seat(model, threads, num_cells, prompt, "fullkv", "");
  const auto holes = cut();
  const auto compacted = cut();
  const auto begin_compact = std::chrono::steady_clock::now();
  compacted->session->compact();
  const double compact_ms = milliseconds_since(begin_compact);
  auto large = cut();
  const std::size_t before = resident_bytes();
  Seat small{std::make_unique<Runtime>(model, threads,
                                       ContextSize{.num_cells = cells_for(options.budget)}),
             nullptr};
  const auto begin_move = std::chrono::steady_clock::now();
  small.session.reset(new Session(large->session->hand_over(small.runtime->engine())));
  const double move_ms = milliseconds_since(begin_move);
  large->session.reset();
  large.reset();
  const std::size_t after = resident_bytes();

  std::vector<Timed> all = {full->timed("full cache"), holes->timed("random, holes"),
                            compacted->timed("random, compacted"),
                            small.timed("random, handed over")};
  time_interleaved(all, options.num_rounds);
  lm::Table table({"decode, " + std::to_string(prompt.positions.size()) + " tokens read", "live",
                   "n_ctx MB", "state MB", "ms, median", "min", "speed-up"});
  for (const Timed& one : all) {
    table.add({one.label, std::to_string(one.live), lm::fixed(to_megabytes(one.cache_bytes), 1),
               lm::fixed(to_megabytes(one.state_bytes), 1), lm::fixed(one.median(), 2),
               lm::fixed(one.least(), 2), lm::fixed(all[0].median() / one.median(), 2)});
  }
  table.print(stdout);
  std::printf(
      "compacted in %.1f ms; handed over in %.1f ms, and with the large context freed the process "
      "went from %.0f to %.0f MB\n\n",
      compact_ms, move_ms, to_megabytes(before), to_megabytes(after));
  return {{"rows", to_json(all)},
          {"compact_ms", compact_ms},
          {"hand_over_ms", move_ms},
          {"resident_bytes_before", before},
          {"resident_bytes_after", after}};
}

/// What looking costs: budgets are so large that nothing is cut.
inline nlohmann::json bench_hook(const BenchOptions& options, const Model& model,
                                 const Threads& threads, const SavedCache& prompt) {
  struct Row {
    std::string label;
    std::string policy;
    std::string options = {};
    std::string layers = "upper";
  };
  const std::vector<Row> rows = {
      {"adapter, FullKV", "fullkv"},
      {"InertiaKV, score-free", "inertiakv", "score_free=true"},
      {"InertiaKV, lazy 4", "inertiakv", "refresh_interval=4"},
      {"EpiKV", "epikv"},
      {"TOVA, layer 17 alone", "tova", "", "17"},
      {"TOVA, upper half", "tova"},
      {"TOVA, every layer", "tova", "", "all"},
      {"H2O, every layer", "h2o", "", "all"},
      {"InertiaKV, every layer", "inertiakv", "", "all"},
      {"TriAttention, every layer", "triattention", "", "all"},
  };
  const std::uint32_t num_cells = cells_for(prompt.positions.size());
  const auto bare = make_seat(model, threads, num_cells, prompt, "fullkv", "");
  auto next = static_cast<kvevict::Position>(prompt.positions.size());
  std::vector<Timed> all = {bare->timed("llama.cpp alone")};
  all[0].decode = [&](Token token) {
    static_cast<void>(bare->runtime->engine().host().decode({&token, 1}, next++, 0, true));
  };
  std::vector<std::unique_ptr<Seat>> seats;
  for (const Row& row : rows) {
    const Reduction reduction{.layers = row.layers};
    const std::size_t num_layers = bare->runtime->num_layers();
    seats.push_back(make_seat(
        model, threads, num_cells, prompt, row.policy,
        lm::options_for(row.policy, 100000, row.options),
        {.granularity = reduction.granularity(num_layers), .skip_layers_without_say = true}));
    all.push_back(seats.back()->timed(row.label));
  }
  time_interleaved(all, 3 * options.num_rounds);
  lm::Table table({"hook, " + std::to_string(prompt.positions.size()) + " tokens in the cache",
                   "ms, median", "min", "more processor time"});
  nlohmann::json json = {{"rows", to_json(all)}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double more = more_than(all[i], all[0]);
    table.add({all[i].label, lm::fixed(all[i].median(), 2), lm::fixed(all[i].least(), 2),
               lm::fixed(100.0 * more, 1) + " %"});
    json["rows"][i]["more"] = more;
  }
  table.print(stdout);
  std::printf("\n");
  return json;
}

/// One TriAttention selection over every layer, on the thread that asks for it.
inline nlohmann::json bench_event(const BenchOptions& options, const Text& text, const Model& model,
                                  const Threads& threads, const SavedCache& prompt) {
  Runtime runtime(model, threads, {.num_cells = cells_for(prompt.positions.size())});
  const auto statistics = load_statistics(runtime, text, "");
  Session session(
      runtime.engine(),
      runtime.make_policy("triattentionstats", lm::options_for("triattentionstats", options.budget),
                          statistics));
  session.begin_prompt(prompt.positions.size());
  session.load_prompt(prompt);
  session.policy().end_prefill(session.view());
  kvevict::Granularity granularity = Reduction{"all", "max"}.granularity(runtime.num_layers());
  granularity.scope = kvevict::MaskScope::kModel;
  kvevict::Projection projection(granularity, runtime.engine().shape());
  Timed event{"TriAttention event", [&](Token) {
                static_cast<void>(session.policy().select(session.view(), projection));
              }};
  std::vector<Timed> all = {event};
  time_interleaved(all, options.num_rounds);
  const double processor_ms =
      *std::min_element(all[0].processor_ms.begin(), all[0].processor_ms.end());
  std::printf(
      "TriAttention, one event over %zu layers at %zu cells: %.1f ms median, %.1f ms min, %.1f ms "
      "min of processor time\n",
      runtime.num_layers(), prompt.positions.size(), all[0].median(), all[0].least(), processor_ms);
  return {{"cells", prompt.positions.size()},
          {"ms_median", all[0].median()},
          {"ms_min", all[0].least()},
          {"processor_ms_min", processor_ms}};
}

inline int bench(const Common& common, const BenchOptions& options) {
  const Model model(common.model);
  const Text text(common.model);
  const Threads threads(common.num_threads);
  const std::size_t longest = std::max({options.prompt_len, options.hook_len, options.event_len});
  const Tokens tokens = long_text(text, longest);
  // One text, read once and saved on the way.
  std::vector<std::pair<std::size_t, SavedCache>> saved = {
      {options.hook_len, {}}, {options.prompt_len, {}}, {options.event_len, {}}};
  {
    lm::Progress progress;
    progress.show("reading " + std::to_string(longest) + " tokens");
    Runtime runtime(model, threads, {.num_cells = cells_for(longest)});
    Session session(runtime.engine(), runtime.make_policy("fullkv", ""));
    session.begin_prompt(tokens.size());
    std::vector<std::pair<std::size_t, SavedCache>*> by_length;
    for (auto& one : saved)
      by_length.push_back(&one);
    std::sort(by_length.begin(), by_length.end(),
              [](const auto* a, const auto* b) { return a->first < b->first; });
    for (auto* one : by_length) {
      session.feed(std::span(tokens).subspan(session.num_live(), one->first - session.num_live()));
      session.save(one->second);
    }
  }
  nlohmann::json json = {{"mode", "bench"}, {"threads", common.num_threads}};
  json["decode"] = bench_decode(options, model, threads, saved[1].second);
  json["hook"] = bench_hook(options, model, threads, saved[0].second);
  json["event"] = bench_event(options, text, model, threads, saved[2].second);
  lm::write_json(common.json, json);
  return 0;
}

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_BENCH_HPP_
