// bench_report REPORT.json RESULT.json...
//
// Reads what Google Benchmark wrote, prints one table of ratios and one of growth, and writes the
// same as JSON. The names are kernel/<work>/<isa|naive>, policy/<name>/<isa|naive>,
// growth/<work>/<n> and ceiling/<fma|read|copy|l2>. A label of words "key=value" says what a
// benchmark is measured against: ceiling=<name>, max_exponent=<number>. Targets stand here
// (kTargets), beside what was reached in the table; a row below one is marked.

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

/// What is aimed at; 0: nothing. They hold for the best instruction set of the machine.
struct Target {
  const char* work;     // sizes behind it, "n=4096" or "K=512", left out
  double ratio;         // of the naive form's time to this one's
  double fraction = 0;  // of the ceiling
  double seconds = 0;   // at most
};

constexpr Target kTargets[] = {
    {"kernel/projected_norms", 120, .7},
    {"kernel/projected_norms_f16", 0, .7},
    // A third of the time of Eigen; elements of other types at 1.3 times that of floats.
    {"kernel/window_columns", 3, .5},
    {"kernel/window_columns_f16", 0, .38},
    {"kernel/window_columns_q8_0", 0, .38},
    {"kernel/one_query_dots", 0, .85},
    {"kernel/row_norms", 0, .85},
    {"kernel/row_variances", 0, .85},
    {"kernel/scaled_variance", 0, .85},
    // Passes over slots.
    {"kernel/add", 0, .85},
    {"kernel/add_rows_4", 0, .85},
    {"kernel/ema", 0, .85},
    {"kernel/average_pool_7", 0, .85},
    {"kernel/max_pool_7", 0, .85},
    {"kernel/standardise", 0, .85},
    {"kernel/global_top_k", 5},
    {"kernel/compact_f16", 0, .8},
    {"policy/EpiKV step", 0, 0, 2e-6},
    {"policy/EpiKV mask step", 1},
    {"policy/H2O step", 1},
    {"policy/InertiaKV step", 0, .8},
    {"policy/KeyDiff select", 0, .85},
    {"policy/Knorm select", 0, .85},
    {"policy/Knorm step", 1},
    {"policy/LagKV select", 0, .85},
    {"policy/TriAttention event", 100},
    // Against one worker.
    {"policy/KeyDiff select 2 workers", 1.8},
    {"policy/LaProx select 2 workers", 1.8},
    {"policy/SnapKV observe 2 workers", 1.8},
    {"policy/TriAttention event 2 workers", 1.8},
};

/// Of a row's work; nothing where none is set.
Target target_of(std::string work) {
  for (const char* size : {" n=", " K="})
    work.resize(std::min(work.find(size), work.size()));
  for (const Target& target : kTargets) {
    if (work == target.work)
      return target;
  }
  return {nullptr, 0};
}

/// All repetitions of one benchmark.
struct Samples {
  std::vector<double> seconds;           // of one iteration, wall clock
  std::vector<double> cpu_seconds;       // the same on the processor
  std::vector<double> bytes_per_second;  // empty if the benchmark does not count bytes
  std::vector<double> items_per_second;  // floating-point operations; empty if not counted
  std::map<std::string, std::string> label;
};

struct Row {
  std::string work;  // kernel/<work> or policy/<name>
  std::string isa;
  double seconds = 0;
  std::optional<double> naive_seconds;
  std::optional<double> ratio;
  std::optional<std::string> ceiling;
  std::optional<double> ceiling_fraction;
  Target target = {nullptr, 0};

  [[nodiscard]] bool below_target() const {
    return ratio.value_or(target.ratio) < target.ratio ||
           ceiling_fraction.value_or(target.fraction) < target.fraction ||
           (target.seconds > 0 && seconds > target.seconds);
  }
};

/// How the CPU time of a work grows with its size.
struct Growth {
  std::string work;                  // growth/<work>
  std::map<double, double> seconds;  // by size
  double exponent = 0;               // of the power law that fits best
  std::optional<double> max_exponent;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double seconds_per_unit(const std::string& unit) {
  if (unit == "ns")
    return 1e-9;
  if (unit == "us")
    return 1e-6;
  if (unit == "ms")
    return 1e-3;
  if (unit == "s")
    return 1;
  throw std::runtime_error("time unit '" + unit + "' is not known");
}

/// By name without the suffixes that repetitions, arguments and UseRealTime add.
std::map<std::string, Samples> read_results(const std::vector<std::string>& paths) {
  std::map<std::string, Samples> samples;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file)
      throw std::runtime_error(path + ": cannot be read");
    const Json results = Json::parse(file);
    for (const Json& run : results.at("benchmarks")) {
      if (run.value("run_type", "iteration") != "iteration")
        continue;
      std::string name = run.at("name");
      if (run.value("error_occurred", false)) {
        throw std::runtime_error(name + ": " + run.value("error_message", "failed"));
      }
      std::size_t end = name.find('/');
      if (!name.starts_with("ceiling/"))
        end = name.find('/', end + 1);
      name.resize(std::min(name.find('/', end + 1), name.size()));

      Samples& entry = samples[name];
      const double unit = seconds_per_unit(run.at("time_unit"));
      entry.seconds.push_back(run.at("real_time").get<double>() * unit);
      entry.cpu_seconds.push_back(run.at("cpu_time").get<double>() * unit);
      if (run.contains("bytes_per_second")) {
        entry.bytes_per_second.push_back(run["bytes_per_second"]);
      }
      if (run.contains("items_per_second")) {
        entry.items_per_second.push_back(run["items_per_second"]);
      }
      std::istringstream words(run.value("label", ""));
      for (std::string word; words >> word;) {
        const std::size_t equals = word.find('=');
        if (equals != std::string::npos) {
          entry.label[word.substr(0, equals)] = word.substr(equals + 1);
        }
      }
    }
  }
  return samples;
}

/// What the ceiling `name` counts: operations for fma, bytes for the others.
std::optional<double> rate(const Samples& samples, const std::string& ceiling) {
  const auto& rates = ceiling == "fma" ? samples.items_per_second : samples.bytes_per_second;
  if (rates.empty())
    return std::nullopt;
  return median(rates);
}

std::optional<std::string> label_word(const Samples& samples, const std::string& key) {
  const auto found = samples.label.find(key);
  if (found == samples.label.end())
    return std::nullopt;
  return found->second;
}

std::optional<double> label_number(const Samples& samples, const std::string& key) {
  const auto word = label_word(samples, key);
  if (!word)
    return std::nullopt;
  return std::stod(*word);
}

std::vector<Row> make_rows(const std::map<std::string, Samples>& samples) {
  std::vector<Row> rows;
  for (const auto& [name, measured] : samples) {
    const std::size_t slash = name.rfind('/');
    if (slash == std::string::npos || name.starts_with("ceiling/") || name.starts_with("growth/"))
      continue;
    Row row;
    row.work = name.substr(0, slash);
    row.isa = name.substr(slash + 1);
    if (row.isa == "naive")
      continue;
    row.seconds = median(measured.seconds);
    if (const auto naive = samples.find(row.work + "/naive"); naive != samples.end()) {
      row.naive_seconds = median(naive->second.seconds);
      row.ratio = *row.naive_seconds / row.seconds;
    }
    row.ceiling = label_word(measured, "ceiling");
    if (row.ceiling) {
      const auto ceiling = samples.find("ceiling/" + *row.ceiling);
      if (ceiling != samples.end()) {
        const auto here = rate(measured, *row.ceiling);
        const auto peak = rate(ceiling->second, *row.ceiling);
        if (here && peak)
          row.ceiling_fraction = *here / *peak;
      }
    }
    rows.push_back(row);
  }
  // What is there for other instruction sets than the best stands for comparison.
  const auto rank = [](const Row& row) {
    constexpr std::array<std::string_view, 4> kIsas = {"scalar", "neon", "avx2", "avx512"};
    return std::find(kIsas.begin(), kIsas.end(), row.isa) - kIsas.begin();
  };
  for (Row& row : rows) {
    const bool is_best = std::none_of(rows.begin(), rows.end(), [&](const Row& other) {
      return other.work == row.work && rank(other) > rank(row);
    });
    if (is_best)
      row.target = target_of(row.work);
  }
  return rows;
}

std::string text(const char* format, double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

/// Slope of log(time) against log(size), least squares, of at least two sizes.
double fit_exponent(const std::map<double, double>& seconds) {
  double mean_x = 0;
  double mean_y = 0;
  for (const auto& [size, time] : seconds) {
    mean_x += std::log(size) / static_cast<double>(seconds.size());
    mean_y += std::log(time) / static_cast<double>(seconds.size());
  }
  double squares = 0;
  double products = 0;
  for (const auto& [size, time] : seconds) {
    squares += std::pow(std::log(size) - mean_x, 2);
    products += (std::log(size) - mean_x) * (std::log(time) - mean_y);
  }
  return products / squares;
}

std::vector<Growth> find_growth(const std::map<std::string, Samples>& samples) {
  std::map<std::string, Growth> found;
  for (const auto& [name, measured] : samples) {
    if (!name.starts_with("growth/"))
      continue;
    const std::size_t slash = name.rfind('/');
    Growth& growth = found[name.substr(0, slash)];
    growth.work = name.substr(0, slash);
    growth.seconds[std::stod(name.substr(slash + 1))] = median(measured.cpu_seconds);
    growth.max_exponent = label_number(measured, "max_exponent");
  }
  std::vector<Growth> result;
  for (auto& [work, growth] : found) {
    if (growth.seconds.size() < 2)
      continue;  // the others were filtered out
    growth.exponent = fit_exponent(growth.seconds);
    result.push_back(growth);
  }
  return result;
}

Json to_json(const std::vector<Row>& rows, const std::vector<Growth>& growths) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  const auto or_none = [](double target) { return target > 0 ? Json(target) : Json(nullptr); };
  Json report = Json::array();
  for (const Row& row : rows) {
    report.push_back({{"work", row.work},
                      {"isa", row.isa},
                      {"seconds", row.seconds},
                      {"naive_seconds", or_null(row.naive_seconds)},
                      {"ratio", or_null(row.ratio)},
                      {"ceiling", or_null(row.ceiling)},
                      {"ceiling_fraction", or_null(row.ceiling_fraction)},
                      {"target_ratio", or_none(row.target.ratio)},
                      {"target_ceiling_fraction", or_none(row.target.fraction)},
                      {"target_seconds", or_none(row.target.seconds)}});
  }
  for (const Growth& growth : growths) {
    Json seconds = Json::object();
    for (const auto& [size, time] : growth.seconds)
      seconds[text("%.0f", size)] = time;
    report.push_back({{"work", growth.work},
                      {"cpu_seconds_by_size", seconds},
                      {"exponent", growth.exponent},
                      {"max_exponent", or_null(growth.max_exponent)}});
  }
  return report;
}

std::string time_text(double seconds) {
  if (seconds < 1e-6)
    return text("%.1f ns", seconds * 1e9);
  if (seconds < 1e-3)
    return text("%.1f us", seconds * 1e6);
  if (seconds < 1)
    return text("%.1f ms", seconds * 1e3);
  return text("%.2f s", seconds);
}

void print_table(const std::map<std::string, Samples>& samples, const std::vector<Row>& rows) {
  for (const char* ceiling : {"fma", "read", "copy", "l2"}) {
    const auto found = samples.find(std::string("ceiling/") + ceiling);
    if (found == samples.end())
      continue;
    if (const auto peak = rate(found->second, ceiling)) {
      std::printf("ceiling %-5s %8.1f %s\n", ceiling, *peak / 1e9,
                  std::string(ceiling) == "fma" ? "GFLOP/s" : "GB/s");
    }
  }
  // A target stands behind what it is for.
  const auto or_dash = [](const char* format, double value) {
    return value > 0 ? text(format, value) : "-";
  };
  std::printf("\n%-44s %-7s %10s %8s %10s %7s %7s %8s %9s %7s\n", "what", "isa", "this", "target",
              "naive", "ratio", "target", "ceiling", "fraction", "target");
  std::size_t num_targets = 0;
  std::size_t num_below = 0;
  for (const Row& row : rows) {
    const Target& target = row.target;
    num_targets += target.work != nullptr ? 1 : 0;
    num_below += row.below_target() ? 1 : 0;
    std::printf("%-44s %-7s %10s %8s %10s %7s %7s %8s %9s %7s%s\n", row.work.c_str(),
                row.isa.c_str(), time_text(row.seconds).c_str(),
                target.seconds > 0 ? time_text(target.seconds).c_str() : "-",
                row.naive_seconds ? time_text(*row.naive_seconds).c_str() : "-",
                row.ratio ? text("%.2f", *row.ratio).c_str() : "-",
                or_dash("%.1f", target.ratio).c_str(), row.ceiling ? row.ceiling->c_str() : "-",
                row.ceiling_fraction ? text("%.2f", *row.ceiling_fraction).c_str() : "-",
                or_dash("%.2f", target.fraction).c_str(), row.below_target() ? "  below" : "");
  }
  if (num_targets > 0) {
    std::printf(
        "\n%zu of %zu rows with a target are below it: see \"Where it falls short\" in "
        "bench/README.md\n",
        num_below, num_targets);
  }
}

void print_growth(const std::vector<Growth>& growths) {
  if (growths.empty())
    return;
  std::printf("\n%-32s %9s %10s %9s %10s %9s %7s\n", "growth of CPU time", "from", "", "to", "",
              "exponent", "bound");
  for (const Growth& growth : growths) {
    const auto& [smallest, first] = *growth.seconds.begin();
    const auto& [largest, last] = *growth.seconds.rbegin();
    const bool above = growth.max_exponent && growth.exponent > *growth.max_exponent;
    std::printf("%-32s %9.0f %10s %9.0f %10s %9.2f %7s%s\n", growth.work.c_str(), smallest,
                time_text(first).c_str(), largest, time_text(last).c_str(), growth.exponent,
                growth.max_exponent ? text("%.2f", *growth.max_exponent).c_str() : "-",
                above ? "  above" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2) {
    std::fprintf(stderr, "usage: bench_report REPORT.json RESULT.json...\n");
    return 2;
  }
  try {
    const auto samples = read_results({arguments.begin() + 1, arguments.end()});
    const std::vector<Row> rows = make_rows(samples);
    const std::vector<Growth> growths = find_growth(samples);
    if (!rows.empty() || growths.empty())
      print_table(samples, rows);
    print_growth(growths);
    std::ofstream file(arguments[0]);
    file << to_json(rows, growths).dump(2) << '\n';
    if (!file.flush())
      throw std::runtime_error(arguments[0] + ": cannot be written");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_report: %s\n", error.what());
    return 1;
  }
  return 0;
}
