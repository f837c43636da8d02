#include "kvevict/kernels/linalg.hpp"

#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace kvevict;

std::vector<float> random_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> matrix(rows * cols);
  for (float& x : matrix)
    x = normal(random);
  return matrix;
}

// || v W ||_2 by the definition, in double.
double norm_of_product(const std::vector<float>& v, const std::vector<float>& weight,
                       std::size_t hidden_size, std::size_t stride) {
  double squares = 0;
  for (std::size_t j = 0; j < hidden_size; ++j) {
    double sum = 0;
    for (std::size_t c = 0; c < v.size(); ++c) {
      sum += static_cast<double>(v[c]) * static_cast<double>(weight[c * stride + j]);
    }
    squares += sum * sum;
  }
  return std::sqrt(squares);
}

double projected_norm(const std::vector<float>& factor, const std::vector<float>& v) {
  float out = 0;
  kernels::best().projected_norms(factor.data(), {v.data(), 0, 1, v.size(), ElementType::kF32},
                                  &out);
  return static_cast<double>(out);
}

TEST(GramCholesky, NormThroughTheFactorIsTheNormOfTheProduct) {
  for (const std::size_t dim : {1U, 2U, 7U, 64U, 80U, 128U}) {
    for (const std::size_t hidden_size : {1U, 5U, 64U, 300U}) {
      const std::size_t stride = hidden_size + 3;
      const auto weight = random_matrix(dim, stride, 5);
      std::vector<float> factor(dim * dim);
      kernels::gram_cholesky(weight.data(), dim, hidden_size, static_cast<std::ptrdiff_t>(stride),
                             factor.data());
      for (unsigned seed = 0; seed < 4; ++seed) {
        const auto v = random_matrix(1, dim, 100 + seed);
        const double expected = norm_of_product(v, weight, hidden_size, stride);
        // hidden_size < dim makes the Gram matrix singular; the factor's columns then vanish.
        EXPECT_NEAR(projected_norm(factor, v), expected, 5e-6 * expected + 2e-6)
            << dim << " x " << hidden_size;
      }
    }
  }
}

TEST(GramCholesky, FactorIsLowerTriangularAndFiniteForAnyRank) {
  // Rows: zero, a, a, b: rank 2.
  std::vector<float> weight(4 * 6, 0.0F);
  for (std::size_t j = 0; j < 6; ++j) {
    weight[6 + j] = weight[12 + j] = static_cast<float>(j) - 2.0F;
    weight[18 + j] = j % 2 == 0 ? 1.0F : -1.0F;
  }
  std::vector<float> factor(16);
  kernels::gram_cholesky(weight.data(), 4, 6, 6, factor.data());
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t col = 0; col < 4; ++col) {
      EXPECT_TRUE(std::isfinite(factor[row * 4 + col]));
      if (col > row) {
        EXPECT_EQ(factor[row * 4 + col], 0.0F);
      }
    }
  }
  // a - a = 0 and (1, 1, -1, 0) meets zero and a - a only.
  EXPECT_NEAR(projected_norm(factor, {1.0F, 1.0F, -1.0F, 0.0F}), 0.0, 1e-5);
  const std::vector<float> v = {3.0F, 0.5F, 0.25F, -1.0F};
  EXPECT_NEAR(projected_norm(factor, v), norm_of_product(v, weight, 6, 6), 1e-5);
  std::vector<float> zero(4);
  const std::vector<float> nothing(8, 0.0F);
  kernels::gram_cholesky(nothing.data(), 2, 4, 4, zero.data());
  for (const float x : zero)
    EXPECT_EQ(x, 0.0F);
}

// Case O-32: V = identity, W_O = [[1,1,1],[1,9,1]] row-major: norms sqrt(3) and sqrt(83).
TEST(GramCholesky, ReadsTheWeightRowMajor) {
  const std::vector<float> weight = {1, 1, 1, 1, 9, 1};
  std::vector<float> factor(4);
  kernels::gram_cholesky(weight.data(), 2, 3, 3, factor.data());
  EXPECT_NEAR(projected_norm(factor, {1.0F, 0.0F}), 1.732051, 2e-6);
  EXPECT_NEAR(projected_norm(factor, {0.0F, 1.0F}), 9.110434, 1e-5);
}

/// What inverse_cholesky is compared with: the inverse in the place of `matrix`, by the sweep
/// operator, pivot by pivot; one that is not positive is left out.
void invert_definite(double* matrix, std::size_t dim) noexcept {
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

// A = L L^T + I of random L: A A^-1 is the identity, and a factor of A^-1 gives v A^-1 v.
TEST(InvertDefinite, TimesTheMatrixIsTheIdentity) {
  for (const std::size_t dim : {1U, 2U, 5U, 48U}) {
    const auto rows = random_matrix(3, dim, 8);
    std::vector<double> matrix(dim * dim);
    for (std::size_t r = 0; r < 3; ++r)
      kernels::add_outer_product(0.5, rows.data() + r * dim, dim, matrix.data());
    kernels::mirror_lower(matrix.data(), dim);
    for (std::size_t i = 0; i < dim; ++i)
      matrix[i * dim + i] += 1;
    std::vector<double> inverse = matrix;
    invert_definite(inverse.data(), dim);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) {
        double product = 0;
        for (std::size_t k = 0; k < dim; ++k)
          product += matrix[i * dim + k] * inverse[k * dim + j];
        EXPECT_NEAR(product, i == j ? 1 : 0, 1e-12) << dim;
      }
    }
    const auto v = random_matrix(1, dim, 9);
    double form = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j)
        form += static_cast<double>(v[i]) * inverse[i * dim + j] * static_cast<double>(v[j]);
    }
    std::vector<float> factor(dim * dim);
    kernels::semidefinite_cholesky(inverse.data(), dim, factor.data());
    EXPECT_NEAR(projected_norm(factor, v), std::sqrt(form), 1e-6 * std::sqrt(form));
    kernels::inverse_cholesky(matrix.data(), dim, factor.data());
    EXPECT_NEAR(projected_norm(factor, v), std::sqrt(form), 1e-6 * std::sqrt(form));
  }
}

// The inverse of (4, 2; 2, 5) is (5, -2; -2, 4) / 16, whose Cholesky factor is unique: sqrt(5) / 4,
// -1 / (2 sqrt(5)), 1 / sqrt(5).
TEST(InverseCholesky, IsTheFactorOfTheInverse) {
  std::vector<double> matrix = {4, 2, 2, 5};
  std::vector<float> factor(4, 9.0F);
  kernels::inverse_cholesky(matrix.data(), 2, factor.data());
  EXPECT_FLOAT_EQ(factor[0], std::sqrt(5.0F) / 4);
  EXPECT_EQ(factor[1], 0.0F);
  EXPECT_FLOAT_EQ(factor[2], -.5F / std::sqrt(5.0F));
  EXPECT_FLOAT_EQ(factor[3], 1 / std::sqrt(5.0F));
}

// A = W W^T + ridge I: w_0 A^-1 w_0 is what the inverse says where the ridge is large, and as good
// as 1, where W has full rank, under a ridge of 1e-11 of A.
TEST(InverseCholesky, GivesTheQuadraticFormOfTheInverse) {
  for (const std::size_t dim : {1U, 2U, 5U, 48U}) {
    for (const double ridge : {1.0, 1e-10}) {
      const auto rows = random_matrix(3, dim, 8);
      std::vector<double> matrix(dim * dim);
      for (std::size_t r = 0; r < 3; ++r)
        kernels::add_outer_product(1, rows.data() + r * dim, dim, matrix.data());
      kernels::mirror_lower(matrix.data(), dim);
      for (std::size_t i = 0; i < dim; ++i)
        matrix[i * dim + i] += ridge;
      std::vector<double> inverse = matrix;
      invert_definite(inverse.data(), dim);
      double form = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        for (std::size_t j = 0; j < dim; ++j)
          form +=
              static_cast<double>(rows[i]) * inverse[i * dim + j] * static_cast<double>(rows[j]);
      }
      std::vector<float> factor(dim * dim);
      kernels::inverse_cholesky(matrix.data(), dim, factor.data());
      const std::vector<float> row(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(dim));
      const double norm = projected_norm(factor, row);
      if (ridge == 1.0) {
        EXPECT_NEAR(norm * norm, form, 2e-6 * form) << dim;
      } else if (dim >= 3) {
        EXPECT_NEAR(norm, 1.0, .01) << dim;  // three rows that are independent
      }
    }
  }
}

TEST(InvertDefinite, APivotThatIsNotPositiveIsLeftOut) {
  std::vector<double> matrix = {4, 0, 0, 0};
  invert_definite(matrix.data(), 2);
  EXPECT_EQ(matrix, (std::vector<double>{.25, 0, 0, 0}));
  matrix = {4, 0, 0, 0};
  std::vector<float> factor(4, 9.0F);
  kernels::inverse_cholesky(matrix.data(), 2, factor.data());
  EXPECT_EQ(factor, (std::vector<float>{.5F, 0, 0, 0}));
}

}  // namespace
