#ifndef KVEVICT_KERNELS_LINALG_HPP_
#define KVEVICT_KERNELS_LINALG_HPP_

#include "kvevict/config.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <limits>

static_assert(EIGEN_VERSION_AT_LEAST(3, 4, 0), "kvevict needs Eigen 3.4 or newer");

// The only file that includes Eigen. Work of the third power of head_dim, in double.
KVEVICT_NAMESPACE_BEGIN
namespace kernels {
namespace detail {

using FloatRows =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
               Eigen::Unaligned, Eigen::OuterStride<>>;
using DoubleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using DoubleMap = Eigen::Map<DoubleMatrix, Eigen::Unaligned>;

[[nodiscard]] inline DoubleMatrix widened(const float* weight, std::size_t rows, std::size_t cols,
                                          std::ptrdiff_t row_stride) {
  return FloatRows(weight, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(cols),
                   Eigen::OuterStride<>(row_stride))
      .cast<double>();
}

}  // namespace detail

/// The lower-triangular `factor` C [dim, dim] (row-major, zeros above the diagonal) with C C^T =
/// `gram` [dim, dim], which is symmetric and positive semidefinite of any rank, and is overwritten:
/// where a pivot is lost in rounding, its column is zero. Allocates nothing.
inline void semidefinite_cholesky(double* gram, std::size_t dim, float* factor) noexcept {
  const auto n = static_cast<Eigen::Index>(dim);
  detail::DoubleMap rest(gram, n, n);
  const double largest = n > 0 ? rest.diagonal().maxCoeff() : 0.0;
  const double negligible =
      largest * static_cast<double>(dim) * std::numeric_limits<double>::epsilon();
  // Right-looking Cholesky in place: what is left of `gram` is the Schur complement.
  for (Eigen::Index j = 0; j < n; ++j) {
    const Eigen::Index below = n - j - 1;
    if (!(rest(j, j) > negligible)) {
      // Of a positive semidefinite matrix, a zero pivot's whole column is zero.
      rest.col(j).tail(below + 1).setZero();
      continue;
    }
    rest(j, j) = std::sqrt(rest(j, j));
    rest.col(j).tail(below) /= rest(j, j);
    rest.bottomRightCorner(below, below).noalias() -=
        rest.col(j).tail(below) * rest.col(j).tail(below).transpose();
  }
  for (Eigen::Index row = 0; row < n; ++row) {
    for (Eigen::Index col = 0; col < n; ++col) {
      factor[row * n + col] = col <= row ? static_cast<float>(rest(row, col)) : 0.0F;
    }
  }
}

/// The lower-triangular `factor` C [dim, dim] (row-major, zeros above the diagonal) with
/// C C^T = W W^T for W [dim, hidden_size]. Then || v W ||_2 = || C^T v ||_2: dim^2 / 2
/// multiply-adds for each v instead of dim * hidden_size.
///
/// W may have any rank.
/// @param row_stride  floats between rows of W
inline void gram_cholesky(const float* weight, std::size_t dim, std::size_t hidden_size,
                          std::ptrdiff_t row_stride, float* factor) {
  const detail::DoubleMatrix w = detail::widened(weight, dim, hidden_size, row_stride);
  detail::DoubleMatrix gram = w * w.transpose();
  semidefinite_cholesky(gram.data(), dim, factor);
}

/// Replaces the symmetric positive definite `matrix` [dim, dim] by its inverse (the sweep operator,
/// pivot by pivot). A pivot that is not positive is left out, as if its row and column were not
/// there. Allocates nothing.
inline void invert_definite(double* matrix, std::size_t dim) noexcept {
  for (std::size_t k = 0; k < dim; ++k) {
    double* pivot_row = matrix + k * dim;
    const double pivot = pivot_row[k];
    const double inverse = pivot > 0.0 ? 1.0 / pivot : 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      if (i == k)
        continue;
      double* row = matrix + i * dim;
      const double factor = row[k] * inverse;
      for (std::size_t j = 0; j < dim; ++j)
        row[j] -= factor * pivot_row[j];
      row[k] = -factor;
    }
    for (std::size_t j = 0; j < dim; ++j)
      pivot_row[j] *= inverse;
    pivot_row[k] = inverse;
  }
}

/// sum [dim, dim] += weight * row row^T: the lower triangle alone.
inline void add_outer_product(double weight, const float* row, std::size_t dim,
                              double* sum) noexcept {
  for (std::size_t i = 0; i < dim; ++i) {
    const double factor = weight * static_cast<double>(row[i]);
    for (std::size_t j = 0; j <= i; ++j)
      sum[i * dim + j] += factor * static_cast<double>(row[j]);
  }
}
/// Copies the lower triangle to the upper one.
inline void mirror_lower(double* matrix, std::size_t dim) noexcept {
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      matrix[j * dim + i] = matrix[i * dim + j];
  }
}

}  // namespace kernels
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_LINALG_HPP_
