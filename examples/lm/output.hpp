#ifndef KVEVICT_EXAMPLES_LM_OUTPUT_HPP_
#define KVEVICT_EXAMPLES_LM_OUTPUT_HPP_

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

// Progress, times and files of the programs that run a model.
namespace lm {

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

#endif  // KVEVICT_EXAMPLES_LM_OUTPUT_HPP_
