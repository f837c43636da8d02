#ifndef KVEVICT_KERNELS_LINALG_HPP_
#define KVEVICT_KERNELS_LINALG_HPP_

#include "kvevict/config.hpp"

#include <Eigen/Core>

#include <algorithm>
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
  double largest = 0.0;
  for (std::size_t i = 0; i < dim; ++i)
    largest = std::max(largest, gram[i * dim + i]);
  const double negligible =
      largest * static_cast<double>(dim) * std::numeric_limits<double>::epsilon();
  // Right-looking Cholesky in place: what is left of the lower triangle is the Schur complement.
  // Column j goes to row j of the upper triangle too, where it lies side by side.
  for (std::size_t j = 0; j < dim; ++j) {
    double* column = gram + j * dim;
    const double pivot = column[j];
    // Of a positive semidefinite matrix, a zero pivot's whole column is zero.
    const double root = pivot > negligible ? std::sqrt(pivot) : 0.0;
    column[j] = root;
    for (std::size_t i = j + 1; i < dim; ++i)
      gram[i * dim + j] = column[i] = root > 0.0 ? gram[i * dim + j] / root : 0.0;
    for (std::size_t i = j + 1; root > 0.0 && i < dim; ++i) {
      double* row = gram + i * dim;
      const double weight = row[j];
      for (std::size_t c = j + 1; c <= i; ++c)
        row[c] -= weight * column[c];
    }
  }
  for (std::size_t row = 0; row < dim; ++row) {
    for (std::size_t col = 0; col < dim; ++col) {
      factor[row * dim + col] = col <= row ? static_cast<float>(gram[row * dim + col]) : 0.0F;
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

/// The lower-triangular `factor` C [dim, dim] (row-major, zeros above the diagonal) with C C^T the
/// inverse of the symmetric positive definite `matrix` [dim, dim], which is overwritten: |C^T x|^2
/// is x^T matrix^-1 x with the digits that solving a system would leave, and the inverse itself,
/// which has fewer, is not made. A pivot that is not positive is left out. Allocates nothing.
inline void inverse_cholesky(double* matrix, std::size_t dim, float* factor) noexcept {
  // matrix = U U^T, U upper triangular, from the last column on; then C^T = U^-1.
  for (std::size_t j = dim; j-- > 0;) {
    const double pivot = matrix[j * dim + j];
    const double root = pivot > 0.0 ? std::sqrt(pivot) : 0.0;
    const double inverse = root > 0.0 ? 1.0 / root : 0.0;
    for (std::size_t i = 0; i < j; ++i)
      matrix[i * dim + j] *= inverse;
    for (std::size_t i = 0; i < j; ++i) {
      for (std::size_t c = i; c < j; ++c)
        matrix[i * dim + c] -= matrix[i * dim + j] * matrix[c * dim + j];
    }
    matrix[j * dim + j] = inverse;
  }
  // Row j of C takes the place of what lies below the diagonal.
  for (std::size_t j = 0; j < dim; ++j) {
    double* const row = matrix + j * dim;
    for (std::size_t i = j; i-- > 0;) {
      const double* const u = matrix + i * dim;
      double sum = u[j] * row[j];
      for (std::size_t k = i + 1; k < j; ++k)
        sum += u[k] * row[k];
      row[i] = -sum * u[i];
    }
  }
  for (std::size_t row = 0; row < dim; ++row) {
    for (std::size_t col = 0; col < dim; ++col) {
      factor[row * dim + col] = col <= row ? static_cast<float>(matrix[row * dim + col]) : 0.0F;
    }
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
