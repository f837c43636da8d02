#ifndef KVEVICT_TESTS_SUPPORT_GOLDEN_HPP_
#define KVEVICT_TESTS_SUPPORT_GOLDEN_HPP_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Reader of the text format "kvevict-golden 1" and the comparison rules of its cases.
namespace kvevict_test {

/// One file: inputs and the outputs that an independent implementation computed from them.
class GoldenCase {
 public:
  struct Tensor {
    std::vector<std::size_t> shape;
    std::vector<double> values;  // row-major

    [[nodiscard]] std::vector<float> floats() const { return {values.begin(), values.end()}; }
    [[nodiscard]] std::vector<int> ints() const { return {values.begin(), values.end()}; }
  };

  static GoldenCase read(const std::string& path) {
    std::ifstream file(path);
    GoldenCase result;
    result.path_ = path;
    std::string line;
    if (!std::getline(file, line) || line != "kvevict-golden 1")
      fail(path, "not a golden file");
    std::string word;
    while (file >> word) {
      if (word[0] == '#') {
        std::getline(file, line);
        continue;
      }
      std::string name;
      file >> name;
      if (word == "text") {
        std::getline(file, line);
        result.texts_[name] = line.empty() ? line : line.substr(1);
      } else if (word == "int" || word == "real") {
        file >> line;
        result.numbers_[name] = number(path, line);
      } else if (word == "tensor") {
        result.tensors_[name] = read_tensor(file, path, name);
      } else {
        fail(path, "unknown record " + word);
      }
    }
    return result;
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool has(const std::string& name) const {
    asked_.insert(name);
    return texts_.count(name) + numbers_.count(name) + tensors_.count(name) > 0;
  }
  [[nodiscard]] bool has_text(const std::string& name) const { return texts_.count(name) > 0; }
  [[nodiscard]] const std::string& text(const std::string& name) const { return get(texts_, name); }
  [[nodiscard]] double real(const std::string& name) const { return get(numbers_, name); }
  [[nodiscard]] double real_or(const std::string& name, double otherwise) const {
    asked_.insert(name);
    return numbers_.count(name) > 0 ? numbers_.at(name) : otherwise;
  }
  [[nodiscard]] std::size_t count(const std::string& name) const {
    return static_cast<std::size_t>(get(numbers_, name));
  }
  [[nodiscard]] const Tensor& tensor(const std::string& name) const { return get(tensors_, name); }
  /// Names of the records that were asked for.
  [[nodiscard]] const std::set<std::string>& asked() const { return asked_; }
  /// Options that nobody asked for: numbers but for outputs ("n_kept.a") and those of a layer, and
  /// texts but for what says where the case comes from. With a prefix ("A.") those of a run.
  [[nodiscard]] std::vector<std::string> unasked_options(const std::string& prefix = "") const {
    std::vector<std::string> names;
    const auto look = [&](const auto& map) {
      for (const auto& [name, value] : map) {
        if (asked_.count(name) == 0 && name.starts_with(prefix) &&
            name.find('.', prefix.size()) == std::string::npos)
          names.push_back(name);
      }
    };
    look(numbers_);
    look(texts_);
    return names;
  }
  /// Words of a text record, "text runs A B".
  [[nodiscard]] std::vector<std::string> words(const std::string& name) const {
    std::istringstream stream(text(name));
    std::vector<std::string> result;
    for (std::string word; stream >> word;)
      result.push_back(word);
    return result;
  }

 private:
  [[noreturn]] static void fail(const std::string& path, const std::string& what) {
    throw std::runtime_error(path + ": " + what);
  }
  static double number(const std::string& path, const std::string& word) {
    std::size_t used = 0;
    const double value = std::stod(word, &used);
    if (used != word.size())
      fail(path, "not a number: " + word);
    return value;
  }
  static Tensor read_tensor(std::istream& file, const std::string& path, const std::string& name) {
    std::string type;
    std::size_t rank = 0;
    file >> type >> rank;
    Tensor tensor;
    tensor.shape.resize(rank);
    std::size_t size = 1;
    for (std::size_t& dim : tensor.shape) {
      file >> dim;
      size *= dim;
    }
    tensor.values.reserve(size);
    std::string word;
    for (std::size_t i = 0; i < size; ++i) {
      if (!(file >> word))
        fail(path, "tensor " + name + " ends early");
      tensor.values.push_back(number(path, word));
    }
    return tensor;
  }
  template <class Map>
  const typename Map::mapped_type& get(const Map& map, const std::string& name) const {
    asked_.insert(name);
    const auto found = map.find(name);
    if (found == map.end())
      fail(path_, "no record " + name);
    return found->second;
  }

  std::string path_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, double> numbers_;
  std::map<std::string, Tensor> tensors_;
  mutable std::set<std::string> asked_;
};

/// Counts what was compared and throws, naming file and record, at the first difference.
class GoldenReport {
 public:
  explicit GoldenReport(const GoldenCase& golden)
      : path_(golden.path()), tolerance_(golden.real_or("tolerance", 2e-5)) {}

  /// Scores: within the tolerance times the largest expected magnitude (finite ones).
  template <class Actual>
  void scores(const std::string& record, const std::vector<double>& expected,
              const Actual& actual) {
    scores(record, expected, actual, tolerance_);
  }
  template <class Actual>
  void scores(const std::string& record, const std::vector<double>& expected, const Actual& actual,
              double tolerance) {
    check_size(record, expected.size(), actual.size());
    double largest = 0;
    for (const double value : expected) {
      if (std::isfinite(value))
        largest = std::max(largest, std::abs(value));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto value = static_cast<double>(actual[i]);
      if (!std::isfinite(expected[i]) || !std::isfinite(value)) {
        const bool same = std::isnan(expected[i]) ? std::isnan(value) : expected[i] == value;
        if (!same)
          differ(record, i, expected[i], value);
        continue;
      }
      const double deviation =
          largest > 0 ? std::abs(value - expected[i]) / largest : std::abs(value - expected[i]);
      largest_deviation_ = std::max(largest_deviation_, deviation);
      if (deviation > tolerance)
        differ(record, i, expected[i], value);
    }
    ++records_;
  }
  /// Values with an absolute tolerance.
  template <class Actual>
  void near(const std::string& record, const std::vector<double>& expected, const Actual& actual,
            double tolerance) {
    check_size(record, expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto value = static_cast<double>(actual[i]);
      if (!(std::abs(value - expected[i]) <= tolerance))
        differ(record, i, expected[i], value);
    }
    ++records_;
  }
  /// Masks, slots, positions, counts: equal.
  template <class Actual>
  void equal(const std::string& record, const std::vector<double>& expected, const Actual& actual) {
    check_size(record, expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] != static_cast<double>(actual[i])) {
        differ(record, i, expected[i], static_cast<double>(actual[i]));
      }
    }
    ++records_;
  }
  void is_true(const std::string& record, bool condition) {
    if (!condition)
      throw std::runtime_error(path_ + ": " + record);
    ++records_;
  }
  /// The case is one of the policy of this name.
  void covers(std::string_view policy) { policies_.emplace(policy); }

  [[nodiscard]] std::size_t records() const { return records_; }
  [[nodiscard]] const std::set<std::string>& policies() const { return policies_; }
  [[nodiscard]] double largest_deviation() const { return largest_deviation_; }

 private:
  void check_size(const std::string& record, std::size_t expected, std::size_t actual) const {
    if (expected != actual) {
      throw std::runtime_error(path_ + ": " + record + ": " + std::to_string(actual) +
                               " values, expected " + std::to_string(expected));
    }
  }
  [[noreturn]] void differ(const std::string& record, std::size_t index, double expected,
                           double actual) const {
    std::ostringstream text;
    text.precision(12);
    text << path_ << ": " << record << "[" << index << "] = " << actual << ", expected "
         << expected;
    throw std::runtime_error(text.str());
  }

  std::string path_;
  double tolerance_;
  std::size_t records_ = 0;
  std::set<std::string> policies_;
  double largest_deviation_ = 0;
};

/// Drives one kind of case: runs the library on its inputs and hands what comes out to the report.
using GoldenDriver = std::function<void(const GoldenCase&, GoldenReport&)>;

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_GOLDEN_HPP_
