#ifndef KVEVICT_SCORING_QUERY_STATISTICS_HPP_
#define KVEVICT_SCORING_QUERY_STATISTICS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/linalg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Mean and covariance (divisor n) of the queries of every layer and query head, as they are before
/// rotary embedding. Gathered while a prompt is fed, or offline over many texts and then shared.
///
/// Memory: head_dim doubles for each head, and head_dim^2 with the covariance: 128 MiB for a model
/// of 32 layers and 32 heads of 128.
class QueryStatistics {
 public:
  QueryStatistics(const CacheShape& shape, bool with_covariance)
      : shape_((detail::check_shape(shape, "QueryStatistics"), shape)),
        with_covariance_(with_covariance),
        counts_(shape.num_layers * shape.num_q_heads),
        means_(counts_.size() * shape.head_dim),
        products_(with_covariance ? means_.size() * shape.head_dim : 0) {}

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] bool has_covariance() const noexcept { return with_covariance_; }
  /// Queries that were added.
  [[nodiscard]] std::size_t count(std::size_t layer, std::size_t q_head) const noexcept {
    return counts_[head(layer, q_head)];
  }
  [[nodiscard]] std::span<const double> mean(std::size_t layer, std::size_t q_head) const noexcept {
    return std::span(means_).subspan(head(layer, q_head) * shape_.head_dim, shape_.head_dim);
  }
  /// Writes the covariance [head_dim, head_dim]; 0 where no query was added.
  void covariance(std::size_t layer, std::size_t q_head, std::span<double> out) const noexcept {
    const std::span<const double> sums = products(head(layer, q_head));
    const auto n = static_cast<double>(std::max<std::size_t>(1, count(layer, q_head)));
    for (std::size_t i = 0; i < sums.size(); ++i)
      out[i] = sums[i] / n;
    kernels::mirror_lower(out.data(), shape_.head_dim);
  }

  /// Adds one query [head_dim], as it is before rotary embedding. Returns whether it was finite;
  /// it is left out otherwise (rule R19).
  bool add(std::size_t layer, std::size_t q_head, const float* query) noexcept {
    const std::size_t dim = shape_.head_dim;
    for (std::size_t c = 0; c < dim; ++c) {
      if (!std::isfinite(query[c]))
        return false;
    }
    const std::size_t h = head(layer, q_head);
    const auto n = static_cast<double>(++counts_[h]);
    double* mean = means_.data() + h * dim;
    if (with_covariance_) {
      // Welford: with d the distance to the mean before, (n - 1) / n d d^T is what the sum of
      // products about the mean gains.
      double* sums = products_.data() + h * dim * dim;
      for (std::size_t i = 0; i < dim; ++i) {
        const double factor = (n - 1.0) / n * (static_cast<double>(query[i]) - mean[i]);
        for (std::size_t j = 0; j <= i; ++j)
          sums[i * dim + j] += factor * (static_cast<double>(query[j]) - mean[j]);
      }
    }
    for (std::size_t c = 0; c < dim; ++c)
      mean[c] += (static_cast<double>(query[c]) - mean[c]) / n;
    return true;
  }
  /// Sets a head's statistics, gathered elsewhere: mean [head_dim], covariance [head_dim, head_dim]
  /// or empty. Throws InvalidArgument for another size.
  void set(std::size_t layer, std::size_t q_head, std::span<const float> mean,
           std::span<const float> covariance) {
    const std::size_t dim = shape_.head_dim;
    detail::require(layer < shape_.num_layers, "QueryStatistics", "layer", layer,
                    "must be < num_layers");
    detail::require(q_head < shape_.num_q_heads, "QueryStatistics", "q_head", q_head,
                    "must be < num_q_heads");
    detail::require(mean.size() == dim, "QueryStatistics", "mean.size()", mean.size(),
                    "must be head_dim");
    detail::require(covariance.size() == (with_covariance_ ? dim * dim : 0), "QueryStatistics",
                    "covariance.size()", covariance.size(),
                    "must be head_dim^2, or 0 without a covariance");
    const std::size_t h = head(layer, q_head);
    counts_[h] = 1;
    std::copy(mean.begin(), mean.end(), means_.begin() + static_cast<std::ptrdiff_t>(h * dim));
    std::copy(
        covariance.begin(), covariance.end(),
        products_.begin() + static_cast<std::ptrdiff_t>(with_covariance_ ? h * dim * dim : 0));
  }
  /// Forgets all queries, memory kept.
  void clear() noexcept {
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(means_.begin(), means_.end(), 0.0);
    std::fill(products_.begin(), products_.end(), 0.0);
  }

 private:
  [[nodiscard]] std::size_t head(std::size_t layer, std::size_t q_head) const noexcept {
    return layer * shape_.num_q_heads + q_head;
  }
  [[nodiscard]] std::span<const double> products(std::size_t h) const noexcept {
    const std::size_t size = with_covariance_ ? shape_.head_dim * shape_.head_dim : 0;
    return std::span(products_).subspan(h * size, size);
  }

  CacheShape shape_;
  bool with_covariance_;
  std::vector<std::size_t> counts_;
  std::vector<double> means_;
  std::vector<double> products_;  // about the mean; the lower triangle of each head
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_QUERY_STATISTICS_HPP_
