#ifndef KVEVICT_SCORING_QUERY_STATISTICS_HPP_
#define KVEVICT_SCORING_QUERY_STATISTICS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/rotary.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/linalg.hpp"
#include "kvevict/scoring/row_moments.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Mean and covariance (divisor n) of the queries of every layer and query head, as they are before
/// rotary embedding, and the mean lengths of their bands: pairs of channels that it turns together.
/// Gathered while a prompt is fed, or offline over many texts and then shared.
///
/// Memory: head_dim doubles for each head, half as many for bands, and head_dim^2 with the
/// covariance: 128 MiB for a model of 32 layers and 32 heads of 128.
class QueryStatistics {
 public:
  /// @param rotary  where mean lengths of bands are wanted: which channels are pairs
  QueryStatistics(const CacheShape& shape, bool with_covariance, RotaryEmbedding rotary = {})
      : shape_((detail::check_shape(shape, "QueryStatistics"), shape)),
        with_covariance_(with_covariance),
        rotary_((rotary.check("QueryStatistics", shape.head_dim), std::move(rotary))),
        counts_(shape.num_layers * shape.num_q_heads),
        means_(counts_.size() * shape.head_dim),
        products_(with_covariance ? means_.size() * shape.head_dim : 0),
        lengths_(counts_.size() * rotary_.num_pairs()) {}

  [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
  [[nodiscard]] bool has_covariance() const noexcept { return with_covariance_; }
  /// What the constructor was given: which channels the bands are.
  [[nodiscard]] const RotaryEmbedding& rotary() const noexcept { return rotary_; }
  /// Bands whose mean lengths are known; 0: none.
  [[nodiscard]] std::size_t num_bands() const noexcept { return rotary_.num_pairs(); }
  /// Queries that were added.
  [[nodiscard]] std::size_t count(std::size_t layer, std::size_t q_head) const noexcept {
    return counts_[head(layer, q_head)];
  }
  [[nodiscard]] std::span<const double> mean(std::size_t layer, std::size_t q_head) const noexcept {
    return std::span(means_).subspan(head(layer, q_head) * shape_.head_dim, shape_.head_dim);
  }
  /// [num_bands()] mean length of each band of a query.
  [[nodiscard]] std::span<const double> band_lengths(std::size_t layer,
                                                     std::size_t q_head) const noexcept {
    return std::span(lengths_).subspan(head(layer, q_head) * num_bands(), num_bands());
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
    moments(h).add_row(counts_[h], query);
    add_lengths(h, query);
    return true;
  }
  /// The same for queries [num_rows, head_dim], whose products are made together. Returns how many
  /// were left out; `rows` is overwritten.
  /// @param scratch  buffer 0 of floats and of doubles
  std::size_t add_rows(std::size_t layer, std::size_t q_head, std::span<float> rows,
                       const kernels::KernelSet& kernel, Scratch& scratch) {
    const std::size_t dim = shape_.head_dim;
    const std::size_t num_rows = rows.size() / dim;
    std::size_t finite = 0;
    for (std::size_t r = 0; r < num_rows; ++r) {
      const float* row = rows.data() + r * dim;
      if (!std::isfinite(kernel.sum(row, dim)))  // in double, which sums of floats do not leave
        continue;
      if (finite != r)
        std::copy_n(row, dim, rows.data() + finite * dim);
      ++finite;
    }
    const std::size_t h = head(layer, q_head);
    const std::size_t num_floats = with_covariance_ ? RowMoments::num_floats(dim) : 0;
    moments(h).add_rows(counts_[h], rows.data(), finite, kernel, scratch.floats(0, num_floats),
                        scratch.doubles(0, dim));
    for (std::size_t r = 0; r < finite; ++r)
      add_lengths(h, rows.data() + r * dim);
    return num_rows - finite;
  }
  /// Adds what `other` gathered, as if its queries had been added here. Throws InvalidArgument for
  /// statistics of another shape or of other things.
  void merge(const QueryStatistics& other) {
    detail::check_same_shape(other.shape_, shape_, "QueryStatistics");
    detail::require(other.with_covariance_ == with_covariance_, "QueryStatistics",
                    "has_covariance()", other.with_covariance_ ? 1 : 0, "must be the same");
    detail::require(other.num_bands() == num_bands(), "QueryStatistics", "num_bands()",
                    other.num_bands(), "must be the same");
    const std::size_t dim = shape_.head_dim;
    for (std::size_t h = 0; h < counts_.size(); ++h) {
      if (other.counts_[h] == 0)
        continue;
      const std::size_t added = other.counts_[h];
      moments(h).merge(counts_[h], added, other.means_.data() + h * dim, other.products(h).data());
      counts_[h] += added;
      const double share = static_cast<double>(added) / static_cast<double>(counts_[h]);
      for (std::size_t at = h * num_bands(); at < (h + 1) * num_bands(); ++at)
        lengths_[at] += share * (other.lengths_[at] - lengths_[at]);
    }
  }
  /// Sets a head's statistics, gathered elsewhere: mean [head_dim], covariance [head_dim, head_dim]
  /// or empty, mean lengths of bands [num_bands()]; of `count` queries. Throws InvalidArgument for
  /// another size.
  void set(std::size_t layer, std::size_t q_head, std::span<const float> mean,
           std::span<const float> covariance, std::span<const float> band_lengths = {},
           std::size_t count = 1) {
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
    detail::require(band_lengths.size() == num_bands(), "QueryStatistics", "band_lengths.size()",
                    band_lengths.size(), "must be num_bands()");
    detail::require(count > 0, "QueryStatistics", "count", count, "must be > 0");
    const std::size_t h = head(layer, q_head);
    counts_[h] = count;
    std::copy(band_lengths.begin(), band_lengths.end(),
              lengths_.begin() + static_cast<std::ptrdiff_t>(h * num_bands()));
    std::copy(mean.begin(), mean.end(), means_.begin() + static_cast<std::ptrdiff_t>(h * dim));
    // The lower triangle of products is what a covariance times the count is.
    double* products = products_.data() + (with_covariance_ ? h * dim * dim : 0);
    for (std::size_t i = 0; i < covariance.size(); ++i)
      products[i] = static_cast<double>(covariance[i]) * static_cast<double>(count);
  }
  /// Forgets all queries, memory kept.
  void clear() noexcept {
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(means_.begin(), means_.end(), 0.0);
    std::fill(products_.begin(), products_.end(), 0.0);
    std::fill(lengths_.begin(), lengths_.end(), 0.0);
  }

 private:
  [[nodiscard]] std::size_t head(std::size_t layer, std::size_t q_head) const noexcept {
    return layer * shape_.num_q_heads + q_head;
  }
  [[nodiscard]] RowMoments moments(std::size_t h) noexcept {
    const std::size_t dim = shape_.head_dim;
    return {dim, means_.data() + h * dim,
            with_covariance_ ? products_.data() + h * dim * dim : nullptr};
  }
  // Counts a query.
  void add_lengths(std::size_t h, const float* query) noexcept {
    const double share = 1.0 / static_cast<double>(++counts_[h]);
    double* lengths = lengths_.data() + h * num_bands();
    for (std::size_t band = 0; band < num_bands(); ++band) {
      const auto [c, d] = rotary_.channels(band);
      const auto x = static_cast<double>(query[c]);  // squares of floats fit a double
      const auto y = static_cast<double>(query[d]);
      lengths[band] += (std::sqrt(x * x + y * y) - lengths[band]) * share;
    }
  }
  [[nodiscard]] std::span<const double> products(std::size_t h) const noexcept {
    const std::size_t size = with_covariance_ ? shape_.head_dim * shape_.head_dim : 0;
    return std::span(products_).subspan(h * size, size);
  }

  CacheShape shape_;
  bool with_covariance_;
  RotaryEmbedding rotary_;  // empty where lengths of bands are not wanted
  std::vector<std::size_t> counts_;
  std::vector<double> means_;
  std::vector<double> products_;  // about the mean; the lower triangle of each head
  std::vector<double> lengths_;   // of bands
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_QUERY_STATISTICS_HPP_
