#ifndef KVEVICT_EXAMPLES_ENGINE_SAMPLER_HPP_
#define KVEVICT_EXAMPLES_ENGINE_SAMPLER_HPP_

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

// From logits to a token (greedy, Sampler) and to the probability of a given one.
namespace engine {

using Logits = Eigen::Ref<const Eigen::RowVectorXf>;  ///< [vocabulary_size]

/// ln p(token) under the softmax of the logits.
[[nodiscard]] inline double log_likelihood(const Logits& logits, std::int32_t token) {
  const auto shifted = logits.array().cast<double>() - double{logits.maxCoeff()};
  return shifted[token] - std::log(shifted.exp().sum());
}

/// The most probable token; of equal ones the lowest.
[[nodiscard]] inline std::int32_t greedy(const Logits& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.data(), logits.data() + logits.size()) -
                                   logits.data());
}

class Sampler {
 public:
  /// @param temperature  0 is greedy
  /// @param top_k        how many of the most probable tokens are considered; 0 means all
  explicit Sampler(float temperature, std::uint64_t seed = 0, std::size_t top_k = 0)
      : temperature_(temperature), top_k_(top_k), random_(seed) {}

  [[nodiscard]] std::int32_t sample(const Logits& logits) {
    if (temperature_ <= 0.0F)
      return greedy(logits);
    const auto size = static_cast<std::size_t>(logits.size());
    const std::size_t count = top_k_ == 0 ? size : std::min(top_k_, size);
    candidates_.resize(size);
    std::iota(candidates_.begin(), candidates_.end(), 0);
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count),
                      candidates_.end(), [&](std::int32_t a, std::int32_t b) {
                        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    weights_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const float below = logits[candidates_[i]] - logits[candidates_[0]];
      weights_.push_back(std::exp(double{below / temperature_}));
    }
    // Not a standard distribution: their results differ between standard libraries.
    const double uniform = static_cast<double>(random_() >> 11U) * 0x1p-53;
    double rest = uniform * std::accumulate(weights_.begin(), weights_.end(), 0.0);
    std::size_t chosen = 0;
    while (chosen + 1 < count && rest >= weights_[chosen])
      rest -= weights_[chosen++];
    return candidates_[chosen];
  }

 private:
  float temperature_;
  std::size_t top_k_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> candidates_;
  std::vector<double> weights_;
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_SAMPLER_HPP_
