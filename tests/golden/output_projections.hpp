#ifndef KVEVICT_TESTS_GOLDEN_OUTPUT_PROJECTIONS_HPP_
#define KVEVICT_TESTS_GOLDEN_OUTPUT_PROJECTIONS_HPP_

#include "kvevict/core/shape.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace kvevict_test {

/// Of a case whose layers have a W_O each, for sizes |v W_O^h| averaged over a group.
[[nodiscard]] inline std::shared_ptr<const kvevict::OutputProjection> projection_of_layers(
    const GoldenCase& golden, const kvevict::CacheShape& shape) {
  auto projection = std::make_shared<kvevict::OutputProjection>(
      shape, golden.count("hidden_size"), kvevict::GroupReading::kMeanNorms, true);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    projection->set_layer(layer,
                          golden.tensor("L" + std::to_string(layer) + ".W_O").floats().data());
  }
  return projection;
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_OUTPUT_PROJECTIONS_HPP_
