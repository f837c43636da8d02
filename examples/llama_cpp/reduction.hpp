#ifndef KVEVICT_EXAMPLES_LLAMA_CPP_REDUCTION_HPP_
#define KVEVICT_EXAMPLES_LLAMA_CPP_REDUCTION_HPP_

#include "kvevict/selection/projection.hpp"
#include "llama_cpp/runtime.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace llama_example {

/// How scores per head and layer become one set, as the command line says it.
struct Reduction {
  std::string layers = "upper";  ///< "all", "upper" (half), or numbers: "17,21"
  std::string reduce = "sum";    ///< "sum", "mean", "max", "votes"

  [[nodiscard]] std::string label() const {
    const bool is_named = layers == "all" || layers == "upper";
    return (layers == "all"     ? "all layers"
            : layers == "upper" ? "upper half"
                                : "layer " + layers) +
           (is_named ? ", " + reduce : "");
  }
  [[nodiscard]] kvevict::Granularity granularity(std::size_t num_layers) const {
    kvevict::Granularity granularity;
    const auto names = enum_names(kvevict::ScoreReduce{});
    const auto* const named = std::find_if(
        names.begin(), names.end(), [&](const auto& entry) { return entry.first == reduce; });
    if (named == names.end())
      throw std::invalid_argument("'" + reduce + "': expected sum, mean, max or votes");
    granularity.lane_reduce = named->second;
    if (layers == "upper") {
      granularity.layers = kvevict::upper_half(num_layers);
    } else if (layers == "all") {
      granularity.layers.resize(num_layers);
      std::iota(granularity.layers.begin(), granularity.layers.end(), std::size_t{0});
    } else {
      for (std::size_t begin = 0; begin <= layers.size();) {
        const std::size_t comma = std::min(layers.find(',', begin), layers.size());
        const char* const end = layers.data() + comma;
        std::size_t layer = 0;
        const auto read = std::from_chars(layers.data() + begin, end, layer);
        if (read.ec != std::errc() || read.ptr != end)
          throw std::invalid_argument("layers '" + layers + "': expected all, upper or 17,21");
        granularity.layers.push_back(layer);
        begin = comma + 1;
      }
    }
    return granularity;
  }
};

}  // namespace llama_example

#endif  // KVEVICT_EXAMPLES_LLAMA_CPP_REDUCTION_HPP_
