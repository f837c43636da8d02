#ifndef KVEVICT_SCORING_ROW_MOMENTS_HPP_
#define KVEVICT_SCORING_ROW_MOMENTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Mean of rows and sums of their products about it, in double, of any number of rows that come one
/// by one or in blocks. A view: the caller owns the sums, which start at 0, and counts the rows.
struct RowMoments {
  static constexpr std::size_t kBlockRows = 128;

  // Of the block's channels: a power of two would have them share few sets of the cache.
  static constexpr std::size_t kStride = kBlockRows + 16;

  std::size_t dim;
  double* mean;      ///< [dim]
  double* products;  ///< [dim, dim], the lower triangle; null: not wanted

  /// What add_rows needs beside.
  [[nodiscard]] static constexpr std::size_t num_floats(std::size_t dim) noexcept {
    return dim * (kStride + dim);
  }

  /// Adds a finite row to `before` others.
  void add_row(std::size_t before, const float* row) const noexcept {
    const double share = 1.0 / (to_double(before) + 1.0);
    // Welford: with d the distance to the mean before, n / (n + 1) d d^T is what the products gain.
    for (std::size_t i = 0; products != nullptr && i < dim; ++i) {
      const double factor = to_double(before) * share * (static_cast<double>(row[i]) - mean[i]);
      for (std::size_t j = 0; j <= i; ++j)
        products[i * dim + j] += factor * (static_cast<double>(row[j]) - mean[j]);
    }
    for (std::size_t c = 0; c < dim; ++c)
      mean[c] += (static_cast<double>(row[c]) - mean[c]) * share;
  }
  /// Adds the moments of `added` > 0 rows to those of `before` others (Chan, Golub and LeVeque).
  template <class Real>
  void merge(std::size_t before, std::size_t added, const double* mean_added,
             const Real* products_added) const noexcept {
    const double share = to_double(added) / to_double(before + added);
    for (std::size_t i = 0; products != nullptr && i < dim; ++i) {
      const double factor = to_double(before) * share * (mean_added[i] - mean[i]);
      double* sums = products + i * dim;
      for (std::size_t j = 0; j <= i; ++j) {
        sums[j] +=
            static_cast<double>(products_added[i * dim + j]) + factor * (mean_added[j] - mean[j]);
      }
    }
    for (std::size_t c = 0; c < dim; ++c)
      mean[c] += share * (mean_added[c] - mean[c]);
  }
  /// Adds finite rows [num_rows, dim] to `before` others. Products of a block of kBlockRows about
  /// its own mean are in float.
  /// @param floats   scratch [num_floats(dim)]
  /// @param doubles  scratch [dim]
  void add_rows(std::size_t before, const float* rows, std::size_t num_rows,
                const kernels::KernelSet& kernel, std::span<float> floats,
                std::span<double> doubles) const noexcept {
    for (std::size_t first = 0; first < num_rows; first += kBlockRows) {
      const std::size_t count = std::min(kBlockRows, num_rows - first);
      const float* block = rows + first * dim;
      const bool adds_block = products != nullptr && count > 1 &&
                              find_block(block, count, kernel, floats, doubles.data());
      if (adds_block) {
        merge(before + first, count, doubles.data(), floats.data() + kStride * dim);
        continue;
      }
      for (std::size_t r = 0; r < count; ++r)
        add_row(before + first + r, block + r * dim);
    }
  }

 private:
  [[nodiscard]] static double to_double(std::size_t count) noexcept {
    return static_cast<double>(count);
  }
  // Returns whether the products fit a float.
  [[nodiscard]] bool find_block(const float* rows, std::size_t count,
                                const kernels::KernelSet& kernel, std::span<float> floats,
                                double* block_mean) const noexcept {
    std::fill_n(block_mean, dim, 0.0);
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t c = 0; c < dim; ++c)
        block_mean[c] += static_cast<double>(rows[r * dim + c]);
    }
    for (std::size_t c = 0; c < dim; ++c)
      block_mean[c] /= to_double(count);
    // Channels as rows of whole vectors, zeros behind: products of channels are dots of rows.
    constexpr std::size_t kLanes = 8;
    const std::size_t len = (count + kLanes - 1) / kLanes * kLanes;
    float* centred = floats.data();
    float* block_products = centred + kStride * dim;
    for (std::size_t r = 0; r < len; ++r) {
      float* row = block_products;  // until the products come
      for (std::size_t c = 0; c < dim; ++c) {
        row[c] = r < count
                     ? static_cast<float>(static_cast<double>(rows[r * dim + c]) - block_mean[c])
                     : 0.0F;
      }
      for (std::size_t c = 0; c < dim; ++c)
        centred[c * kStride + r] = row[c];
    }
    constexpr std::size_t kTile = 16;
    bool fits = true;
    for (std::size_t i = 0; i < dim; i += kTile) {
      const std::size_t last = std::min(dim, i + kTile);
      kernel.row_dots(centred + i * kStride, last - i, static_cast<std::ptrdiff_t>(kStride),
                      {centred, static_cast<std::ptrdiff_t>(kStride * sizeof(float)), last, len,
                       ElementType::kF32},
                      block_products + i * dim, static_cast<std::ptrdiff_t>(dim));
      // No product is larger than the larger one of its two squares.
      for (std::size_t c = i; c < last; ++c)
        fits = fits && std::isfinite(block_products[c * dim + c]);
    }
    return fits;
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_ROW_MOMENTS_HPP_
