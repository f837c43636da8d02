// kvevict in llama.cpp, flash attention on: what a model still finds in a cache that was cut, how
// fast it is then, and text without end in a cache of fixed size.
#include "engine/gguf.hpp"
#include "engine/tokenizer.hpp"
#include "llama_cpp/runtime.hpp"
#include "lm/prose.hpp"
#include "lm/recall_task.hpp"
#include "lm/table.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace llama_example;
using kvevict::Granularity;
using kvevict::ScoreReduce;
using Tokens = std::vector<Token>;

struct Common {
  std::string model;
  std::int32_t num_threads = 1;
};

/// The tokenizer of the example engine, which writes the trials too.
struct Text {
  explicit Text(const std::string& path) : file(engine::GgufFile::open(path)), tokenizer(file) {}
  engine::GgufFile file;
  engine::Tokenizer tokenizer;
};

// --- recall ---------------------------------------------------------------------------------

struct Contestant {
  std::string label;
  std::string policy;
  std::string options;  ///< behind those that the budget means
  ScoreReduce reduce = ScoreReduce::kSum;
  bool all_layers = false;
  std::vector<std::size_t> layers = {};  ///< empty: the upper half
};

std::string options_for(const std::string& policy, std::size_t budget, std::size_t seed) {
  const std::string sinks = "num_sink_tokens=4";
  const std::string all = "budget=" + std::to_string(budget);
  if (policy == "streaming_llm")
    return sinks + ",recent_window=" + std::to_string(budget - 4);
  if (policy == "random_eviction") {
    return all + "," + sinks +
           ",recent_window=32,shared=true,only_at_prefill_end=true,seed=" + std::to_string(seed);
  }
  if (policy == "knorm" || policy == "keydiff")
    return all + "," + sinks + ",recent_window=32,only_at_prefill_end=true";
  return policy == "fullkv" ? "" : all;
}

std::vector<Contestant> contestants(std::size_t num_layers, std::size_t one_layer) {
  const std::string window = "observation_window=17,pooling=max,pool_kernel_size=7";
  std::vector<Contestant> all = {
      {"full cache", "fullkv", ""},
      {"random", "random_eviction", ""},
      {"StreamingLLM", "streaming_llm", ""},
      {"Knorm", "knorm", ""},
      {"KeyDiff", "keydiff", ""},
      {"TOVA", "tova", ""},
      {"SnapKV, all layers, sum", "snapkv", window, ScoreReduce::kSum, true},
      {"SnapKV, all layers, max", "snapkv", window, ScoreReduce::kMax, true},
      {"SnapKV, all layers, votes", "snapkv", window, ScoreReduce::kVotes, true},
      {"SnapKV, upper half, sum", "snapkv", window},
      {"SnapKV, upper half, window 32", "snapkv", ""},
  };
  if (one_layer < num_layers) {
    all.push_back({"SnapKV, layer " + std::to_string(one_layer),
                   "snapkv",
                   window,
                   ScoreReduce::kSum,
                   false,
                   {one_layer}});
  }
  return all;
}

struct RecallOptions {
  std::size_t num_trials = 10;
  std::size_t one_layer = 17;
  std::string only;
};

struct Case {
  lm::RecallKind kind;
  std::size_t prompt_len;
  std::size_t budget;
};

/// Feeds the question and looks for the answer in what the model says then.
bool answers(Runtime& runtime, const Text& text, const lm::Question& question, Session& session) {
  for (const Token token : question.feed)
    session.decode(token);
  Tokens said = {runtime.greedy()};
  while (said.size() < question.max_new_tokens) {
    session.decode(said.back());
    said.push_back(runtime.greedy());
  }
  return text.tokenizer.decode(said).find(question.answer) != std::string::npos;
}

int recall(const Common& common, const RecallOptions& options) {
  const std::vector<Case> cases = {{lm::RecallKind::kPassKey, 500, 100},
                                   {lm::RecallKind::kPassKey, 1000, 100},
                                   {lm::RecallKind::kWord, 500, 50},
                                   {lm::RecallKind::kWord, 1000, 100}};
  constexpr std::size_t kLastCall = 64;
  const Model model(common.model);
  const Text text(common.model);
  Runtime runtime(model,
                  {.num_cells = 1280, .num_sequences = 2, .num_threads = common.num_threads});
  const std::size_t num_layers = runtime.engine().shape().num_layers;
  std::vector<Contestant> field = contestants(num_layers, options.one_layer);
  std::erase_if(
      field, [&](const Contestant& c) { return c.label.find(options.only) == std::string::npos; });
  std::vector<std::vector<std::size_t>> right(field.size(), std::vector<std::size_t>(cases.size()));
  for (std::size_t c = 0; c < cases.size(); ++c) {
    for (std::size_t seed = 0; seed < options.num_trials; ++seed) {
      const double depth =
          0.1 + 0.8 * (static_cast<double>(seed) + 0.5) / static_cast<double>(options.num_trials);
      const lm::Trial trial = lm::make_trial(text.file, text.tokenizer,
                                             {.kind = cases[c].kind,
                                              .prompt_len = cases[c].prompt_len,
                                              .depth = depth,
                                              .seed = 100 * c + seed});
      const std::span<const Token> prompt(trial.prompt);
      // All but the last call is read once, and each policy goes on from there.
      const std::size_t shared = prompt.size() - kLastCall;
      Session base(runtime.engine(), runtime.make_policy("fullkv", ""));
      base.begin_prompt(shared);
      base.feed(prompt.first(shared));
      for (std::size_t i = 0; i < field.size(); ++i) {
        const Contestant& one = field[i];
        Granularity granularity{.lane_reduce = one.reduce, .layers = one.layers};
        if (one.all_layers) {
          granularity.layers.resize(num_layers);
          std::iota(granularity.layers.begin(), granularity.layers.end(), std::size_t{0});
        }
        std::string policy_options = options_for(one.policy, cases[c].budget, seed);
        if (!one.options.empty())
          policy_options += "," + one.options;
        Session session(runtime.engine(), runtime.make_policy(one.policy, policy_options),
                        {.granularity = granularity, .skip_layers_without_say = true}, 1);
        session.begin_prompt(prompt.size());
        session.share_prompt(base);
        session.feed(prompt.subspan(shared));
        session.end_prompt();
        right[i][c] += answers(runtime, text, trial.questions[0], session) ? 1 : 0;
        session.reset();
      }
      base.reset();
      std::fprintf(stderr, "\rcase %zu of %zu, trial %zu of %zu ", c + 1, cases.size(), seed + 1,
                   options.num_trials);
    }
  }
  std::fprintf(stderr, "\n");
  std::vector<std::string> header = {"answers right of " + std::to_string(options.num_trials)};
  for (const Case& one : cases) {
    header.push_back(std::string(one.kind == lm::RecallKind::kWord ? "word " : "number ") +
                     std::to_string(one.budget) + "/" + std::to_string(one.prompt_len));
  }
  lm::Table table(header);
  for (std::size_t i = 0; i < field.size(); ++i) {
    std::vector<std::string> row = {field[i].label};
    for (const std::size_t count : right[i])
      row.push_back(std::to_string(count));
    table.add(row);
  }
  table.print(stdout);
  return 0;
}

// --- bench ----------------------------------------------------------------------------------

struct BenchOptions {
  std::size_t prompt_len = 6000;
  std::size_t budget = 600;
  std::size_t num_rounds = 21;
};

/// Median of single decode steps in ms. The tokens are taken back afterwards.
double decode_ms(Session& session, std::size_t rounds) {
  std::vector<double> ms;
  const std::size_t length = session.policy().length();
  for (std::size_t i = 0; i < rounds + 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    session.decode(static_cast<Token>(100 + i));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  session.truncate(length);
  ms.erase(ms.begin(), ms.begin() + 2);
  std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
  return ms[ms.size() / 2];
}

Tokens long_text(const Text& text, std::size_t length) {
  Tokens tokens = text.tokenizer.encode_start("");
  for (std::size_t i = 0; tokens.size() < length; ++i) {
    const Tokens more = text.tokenizer.encode(lm::kFiller[i * 7 % lm::kFiller.size()]);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  tokens.resize(length);
  return tokens;
}

int bench(const Common& common, const BenchOptions& options) {
  const Model model(common.model);
  const Text text(common.model);
  const Tokens prompt = long_text(text, options.prompt_len);
  const auto num_cells = static_cast<std::uint32_t>((options.prompt_len + 511) / 256 * 256);
  Runtime runtime(model,
                  {.num_cells = num_cells, .num_sequences = 2, .num_threads = common.num_threads});
  const std::size_t kept = options.budget;
  lm::Table table({"decode, " + std::to_string(options.prompt_len) + " tokens read", "live", "ms"});
  const auto add = [&](const std::string& label, Session& session) {
    table.add({label, std::to_string(session.num_live()),
               lm::fixed(decode_ms(session, options.num_rounds), 2)});
  };
  const auto policy = [&](const std::string& name) {
    return runtime.make_policy(name, options_for(name, kept, 1));
  };
  {
    auto base = std::make_unique<Session>(runtime.engine(), policy("fullkv"));
    base->begin_prompt(prompt.size());
    base->feed(prompt);
    base->end_prompt();
    add("full cache", *base);
    Session session(runtime.engine(), policy("random_eviction"), {.compact = false}, 1);
    session.begin_prompt(prompt.size());
    session.share_prompt(*base);
    session.end_prompt();
    base->reset();
    base.reset();
    add("random, holes", session);
    const auto start = std::chrono::steady_clock::now();
    session.compact();
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    add("random, compacted in " + lm::fixed(ms, 1) + " ms", session);
    session.reset();
  }
  table.print(stdout);
  return 0;
}

// --- endless --------------------------------------------------------------------------------

struct EndlessOptions {
  std::uint32_t num_cells = 512;
  std::size_t num_tokens = 3000;
  std::size_t budget = 400;
};

int endless(const Common& common, const EndlessOptions& options) {
  const Model model(common.model);
  const Text text(common.model);
  const Tokens story = text.tokenizer.encode(lm::kStory);
  const Tokens prompt = text.tokenizer.encode_start(
      "These are notes on a walk along the coast, written down day by day.\n\n");
  lm::Table table({"policy", "n_ctx", "tokens", "live", "evicted", "runs", "compactions",
                   "moved up", "story NLL"});
  const auto run = [&](const std::string& label, const std::string& policy, std::size_t generated,
                       std::uint32_t num_cells) {
    Runtime runtime(model, {.num_cells = num_cells, .num_threads = common.num_threads});
    std::string policy_options = options_for(policy, options.budget, 1);
    if (policy == "knorm" || policy == "random_eviction")
      policy_options += ",only_at_prefill_end=false";
    Session session(runtime.engine(), runtime.make_policy(policy, policy_options),
                    {.cut_interval = 32});
    session.prompt(prompt);
    for (std::size_t i = 0; i < generated; ++i)
      session.decode(i % 16 == 15 ? story[i % story.size()] : runtime.greedy());  // no loops
    double nll = 0.0;
    for (const Token token : story) {
      nll += runtime.surprise(token);
      session.decode(token);
    }
    const auto& n = session.counters();
    table.add({label, std::to_string(num_cells), std::to_string(session.policy().length()),
               std::to_string(session.num_live()), std::to_string(n.evicted),
               std::to_string(n.removals), std::to_string(n.compactions), std::to_string(n.shifts),
               lm::fixed(nll / static_cast<double>(story.size()), 3)});
  };
  run("full cache, story alone", "fullkv", 0, 2048);
  run("StreamingLLM", "streaming_llm", options.num_tokens, options.num_cells);
  run("TOVA", "tova", options.num_tokens, options.num_cells);
  run("Knorm", "knorm", options.num_tokens, options.num_cells);
  table.print(stdout);
  return 0;
}

// --- check ----------------------------------------------------------------------------------

/// How far what the adapter sees is from what the engine computed: attention rows from the queries
/// and the session's view, times V, against the node's own output. Relative to its largest value.
class Rebuild {
 public:
  explicit Rebuild(Session*& session) : session_(&session) {}

  void operator()(const ggml_tensor& node) {
    const auto attention =
        kvevict::llama_cpp::nodes::read_attention<kvevict::llama_cpp::Ggml>(node);
    if (!attention || *session_ == nullptr)
      return;
    const auto& queries = attention->queries;
    const std::size_t group = attention->shape.group_size();
    const std::size_t dim = attention->shape.head_dim;
    const auto view = (*session_)->view();
    double worst = 0.0;
    double largest = 0.0;
    for (std::size_t h = 0; h < queries.num_q_heads; ++h) {
      const kvevict::Lane lane = view.lane(attention->layer, h / group);
      load(lane.keys, lane.seq_len, dim, keys_);
      load(lane.values, lane.seq_len, dim, values_);
      for (std::size_t back = 0; back < std::min<std::size_t>(4, queries.num_rows); ++back) {
        const std::size_t row = queries.num_rows - 1 - back;
        const float* q = queries.data + static_cast<std::ptrdiff_t>(h) * queries.head_stride +
                         static_cast<std::ptrdiff_t>(row) * queries.row_stride;
        const std::size_t seen = lane.seq_len - back;
        weights_.assign(seen, 0.0);
        for (std::size_t s = 0; s < seen; ++s) {
          for (std::size_t c = 0; c < dim; ++c)
            weights_[s] += static_cast<double>(q[c]) * static_cast<double>(keys_[s * dim + c]);
          weights_[s] *= static_cast<double>(queries.scale);
        }
        const double highest = *std::max_element(weights_.begin(), weights_.end());
        double sum = 0.0;
        for (double& weight : weights_)
          sum += weight = std::exp(weight - highest);
        const auto* out = reinterpret_cast<const float*>(static_cast<const char*>(node.data) +
                                                         h * node.nb[1] + row * node.nb[2]);
        for (std::size_t c = 0; c < dim; ++c) {
          double value = 0.0;
          for (std::size_t s = 0; s < seen; ++s)
            value += weights_[s] / sum * static_cast<double>(values_[s * dim + c]);
          worst = std::max(worst, std::abs(value - static_cast<double>(out[c])));
          largest = std::max(largest, std::abs(static_cast<double>(out[c])));
        }
      }
    }
    error_ = std::max(error_, worst / largest);
    ++num_nodes_;
  }

  /// Since the call before: the largest error of a layer, and how many nodes were seen.
  std::pair<double, std::size_t> take() {
    return {std::exchange(error_, 0.0), std::exchange(num_nodes_, std::size_t{0})};
  }

 private:
  // All rows of a lane, by slot.
  static void load(const kvevict::Rows& rows, std::size_t count, std::size_t size,
                   std::vector<float>& out) {
    out.resize(count * size);
    for (std::size_t slot = 0; slot < count; ++slot) {
      float* row = out.data() + slot * size;
      if (rows.load_row != nullptr) {
        rows.load_row(rows.cache, rows.layer, rows.kv_head, slot, row);
        continue;
      }
      for (std::size_t c = 0; c < size; ++c) {
        const std::byte* element = rows.row(slot) + c * kvevict::element_size(rows.type);
        std::uint16_t half = 0;
        if (rows.type == kvevict::ElementType::kF32) {
          std::memcpy(&row[c], element, sizeof(float));
        } else {
          std::memcpy(&half, element, sizeof(half));
          row[c] = rows.type == kvevict::ElementType::kF16 ? kvevict::kernels::from_f16(half)
                                                           : kvevict::kernels::from_bf16(half);
        }
      }
    }
  }

  Session** session_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<double> weights_;
  double error_ = 0.0;
  std::size_t num_nodes_ = 0;
};

int check(const Common& common, const std::string& cache) {
  const ggml_type cache_type = cache == "f32"    ? GGML_TYPE_F32
                               : cache == "bf16" ? GGML_TYPE_BF16
                               : cache == "q8_0" ? GGML_TYPE_Q8_0
                                                 : GGML_TYPE_F16;
  // llama.cpp rounds queries to the type of a cache that is not f16, and f32 to f16.
  const bool exact = cache_type == GGML_TYPE_F16;

  const Model model(common.model);
  const Text text(common.model);
  const Tokens story = text.tokenizer.encode(lm::kStory);
  const std::span<const Token> tokens(story);
  Runtime runtime(model,
                  {.num_cells = 1024, .num_threads = common.num_threads, .cache_type = cache_type});
  Session* current = nullptr;
  Rebuild rebuild(current);
  runtime.tap = std::ref(rebuild);
  lm::Table table({"attention rebuilt, " + cache + " cache", "nodes", "error", "allowed"});
  bool good = true;
  // llama.cpp rounds more in ubatches of fewer than 64 tokens.
  const auto report = [&](const std::string& label, double allowed_f16) {
    const double allowed = exact ? allowed_f16 : 5e-2;
    const auto [error, nodes] = rebuild.take();
    char number[32];
    std::snprintf(number, sizeof(number), "%.1e", error);
    char limit[32];
    std::snprintf(limit, sizeof(limit), "%.0e", allowed);
    table.add({label, std::to_string(nodes), number, limit});
    good = good && nodes > 0 && error < allowed;
  };
  Session session(runtime.engine(),
                  runtime.make_policy("random_eviction",
                                      "budget=120,shared=true,num_sink_tokens=4,recent_window=8,"
                                      "only_at_prefill_end=true"),
                  {.compact = false, .max_distance = 600});
  current = &session;
  session.begin_prompt(300);
  session.feed(tokens.first(300));
  report("prompt", 1e-5);
  session.end_prompt();
  session.decode(tokens[300]);
  report("decode, holes", 5e-2);
  session.begin_prompt(100);
  session.feed(tokens.subspan(301, 100));
  report("100 tokens into holes", 1e-5);
  session.end_prompt();
  const bool compacted = session.compact();
  session.decode(tokens[401]);
  report("decode, compacted", 5e-2);
  session.begin_prompt(300);
  session.feed(tokens.subspan(402, 300));
  report("300 tokens, compacted", 1e-5);
  session.end_prompt();
  session.decode(tokens[702]);
  rebuild.take();
  const auto shifts = session.counters().shifts;
  session.begin_prompt(100);
  session.feed(tokens.subspan(703, 100));
  report(shifts > 0 ? "100 tokens, old block moved up" : "100 tokens more", 1e-5);
  table.print(stdout);
  const bool moved = shifts > 0 || !runtime.engine().can_shift();
  if (!compacted || !moved)
    std::printf("the cache was not compacted, or the old block not moved\n");
  return good && compacted && moved ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("kvevict in llama.cpp", "kvevict_llama_cpp");
  app.require_subcommand(1);
  app.fallthrough();
  Common common;
  app.add_option("--model", common.model, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--threads", common.num_threads, "threads of llama.cpp")->capture_default_str();

  RecallOptions recall_options;
  CLI::App* recall_command = app.add_subcommand("recall", "a fact, asked for after the cut");
  recall_command->add_option("--trials", recall_options.num_trials, "trials of each case")
      ->capture_default_str();
  recall_command->add_option("--layer", recall_options.one_layer, "for the one-layer row")
      ->capture_default_str();
  recall_command->add_option("--only", recall_options.only, "rows whose label contains this");

  BenchOptions bench_options;
  CLI::App* bench_command = app.add_subcommand("bench", "ms of a decode step");
  bench_command->add_option("--prompt-len", bench_options.prompt_len, "tokens")
      ->capture_default_str();
  bench_command->add_option("--budget", bench_options.budget, "tokens kept")->capture_default_str();

  EndlessOptions endless_options;
  CLI::App* endless_command =
      app.add_subcommand("endless", "text without end in a cache of fixed size");
  endless_command->add_option("--cells", endless_options.num_cells, "n_ctx")->capture_default_str();
  endless_command->add_option("--tokens", endless_options.num_tokens, "tokens generated")
      ->capture_default_str();
  endless_command->add_option("--budget", endless_options.budget, "tokens kept")
      ->capture_default_str();
  CLI::App* check_command =
      app.add_subcommand("check", "does the adapter see what the engine computed with");
  std::string cache = "f16";
  check_command->add_option("--cache", cache, "type of K and V")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    if (*recall_command)
      return recall(common, recall_options);
    if (*bench_command)
      return bench(common, bench_options);
    if (*check_command)
      return check(common, cache);
    return endless(common, endless_options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict_llama_cpp: %s\n", error.what());
    return 1;
  }
}
