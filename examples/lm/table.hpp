#ifndef KVEVICT_EXAMPLES_LM_TABLE_HPP_
#define KVEVICT_EXAMPLES_LM_TABLE_HPP_

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace lm {

/// A number with a fixed count of decimals.
[[nodiscard]] inline std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

/// A plain table: the first column to the left, all others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::FILE* out) const {
    std::vector<std::size_t> widths(rows_[0].size());
    for (const auto& row : rows_) {
      for (std::size_t c = 0; c < row.size(); ++c)
        widths[c] = std::max(widths[c], row[c].size());
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      std::string line;
      for (std::size_t c = 0; c < rows_[r].size(); ++c) {
        const std::string padding(widths[c] - rows_[r][c].size(), ' ');
        if (c > 0)
          line += "  ";
        line += c == 0 ? rows_[r][c] + padding : padding + rows_[r][c];
      }
      std::fprintf(out, "%s\n", line.c_str());
      if (r == 0)
        std::fprintf(out, "%s\n", std::string(line.size(), '-').c_str());
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_TABLE_HPP_
