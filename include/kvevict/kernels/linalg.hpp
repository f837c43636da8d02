#ifndef KVEVICT_KERNELS_LINALG_HPP_
#define KVEVICT_KERNELS_LINALG_HPP_

#include "kvevict/config.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <limits>

static_assert(EIGEN_VERSION_AT_LEAST(3, 4, 0), "kvevict needs Eigen 3.4 or newer");

// The only file that includes Eigen. Work that is done once per model, in double.
KVEVICT_NAMESPACE_BEGIN
namespace kernels {
namespace detail {

using FloatRows =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
               Eigen::Unaligned, Eigen::OuterStride<>>;
using DoubleMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

[[nodiscard]] inline DoubleMatrix widened(const float* weight, std::size_t rows, std::size_t cols,
                                          std::ptrdiff_t row_stride) {
  return FloatRows(weight, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(cols),
                   Eigen::OuterStride<>(row_stride))
      .cast<double>();
}

}  // namespace detail

/// The lower-triangular `factor` C [dim, dim] (row-major, zeros above the diagonal) with
/// C C^T = W W^T for W [dim, hidden_size]. Then || v W ||_2 = || C^T v ||_2: dim^2 / 2
/// multiply-adds for each v instead of dim * hidden_size.
///
/// W may have any rank: where a pivot is lost in rounding, its column is zero.
/// @param row_stride  floats between rows of W
inline void gram_cholesky(const float* weight, std::size_t dim, std::size_t hidden_size,
                          std::ptrdiff_t row_stride, float* factor) {
  const detail::DoubleMatrix w = detail::widened(weight, dim, hidden_size, row_stride);
  detail::DoubleMatrix gram = w * w.transpose();
  const double largest = gram.rows() > 0 ? gram.diagonal().maxCoeff() : 0.0;
  const double negligible =
      largest * static_cast<double>(dim) * std::numeric_limits<double>::epsilon();
  // Right-looking Cholesky in place: what is left of `gram` is the Schur complement.
  for (Eigen::Index j = 0; j < gram.rows(); ++j) {
    const Eigen::Index below = gram.rows() - j - 1;
    if (!(gram(j, j) > negligible)) {
      // Of a positive semidefinite matrix, a zero pivot's whole column is zero.
      gram.col(j).tail(below + 1).setZero();
      continue;
    }
    gram(j, j) = std::sqrt(gram(j, j));
    gram.col(j).tail(below) /= gram(j, j);
    gram.bottomRightCorner(below, below).noalias() -=
        gram.col(j).tail(below) * gram.col(j).tail(below).transpose();
  }
  for (Eigen::Index row = 0; row < gram.rows(); ++row) {
    for (Eigen::Index col = 0; col < gram.cols(); ++col) {
      factor[row * gram.cols() + col] = col <= row ? static_cast<float>(gram(row, col)) : 0.0F;
    }
  }
}

}  // namespace kernels
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_LINALG_HPP_
