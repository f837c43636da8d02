#ifndef KVEVICT_KERNELS_AVX2_HPP_
#define KVEVICT_KERNELS_AVX2_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/scalar.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

// AVX2, FMA, F16C. Tails of reductions go through a zeroed buffer; tails of elementwise kernels
// are left to the scalar form.
#define KVEVICT_AVX2 KVEVICT_TARGET("avx2,fma,f16c")

KVEVICT_NAMESPACE_BEGIN
namespace kernels::avx2 {

inline constexpr std::size_t kLanes = 8;

/// Elements index .. index + 8 of a row as float.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline __m256 load(const std::byte* row, std::size_t index) noexcept {
  if constexpr (kType == ElementType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * index));
  } else {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * index));
    if constexpr (kType == ElementType::kF16) {
      return _mm256_cvtph_ps(halves);
    } else {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
  }
}

/// The same for the last `count` < 8 elements; the other lanes are 0 and not read.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline __m256 load_tail(const std::byte* row, std::size_t index,
                                                   std::size_t count) noexcept {
  alignas(32) std::array<std::byte, 32> buffer{};
  std::memcpy(buffer.data(), row + element_size(kType) * index, element_size(kType) * count);
  return load<kType>(buffer.data(), 0);
}

/// Elements from `index` on, as many as a row of `dim` has left.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline __m256 load_some(const std::byte* row, std::size_t index,
                                                   std::size_t dim) noexcept {
  return index + kLanes <= dim ? load<kType>(row, index)
                               : load_tail<kType>(row, index, dim - index);
}
[[nodiscard]] KVEVICT_AVX2 inline __m256 load_some(const float* x, std::size_t index,
                                                   std::size_t n) noexcept {
  return load_some<ElementType::kF32>(reinterpret_cast<const std::byte*>(x), index, n);
}

/// Sum of the lanes, always in the same order.
[[nodiscard]] KVEVICT_AVX2 inline float reduce(__m256 x_f32x8) noexcept {
  const __m128 sum_f32x4 =
      _mm_add_ps(_mm256_castps256_ps128(x_f32x8), _mm256_extractf128_ps(x_f32x8, 1));
  const __m128 sum_f32x2 = _mm_add_ps(sum_f32x4, _mm_movehl_ps(sum_f32x4, sum_f32x4));
  return _mm_cvtss_f32(_mm_add_ss(sum_f32x2, _mm_movehdup_ps(sum_f32x2)));
}
[[nodiscard]] KVEVICT_AVX2 inline double reduce(__m256d x_f64x4) noexcept {
  const __m128d sum_f64x2 =
      _mm_add_pd(_mm256_castpd256_pd128(x_f64x4), _mm256_extractf128_pd(x_f64x4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum_f64x2, _mm_unpackhi_pd(sum_f64x2, sum_f64x2)));
}
[[nodiscard]] KVEVICT_AVX2 inline __m256d low_half(__m256 x_f32x8) noexcept {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(x_f32x8));
}
[[nodiscard]] KVEVICT_AVX2 inline __m256d high_half(__m256 x_f32x8) noexcept {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(x_f32x8, 1));
}

template <ElementType kType>
KVEVICT_AVX2 inline void widen_as(const std::byte* source, std::size_t n,
                                  float* destination) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_ps(destination + i, load<kType>(source, i));
  for (; i < n; ++i)
    destination[i] = scalar::load(source, kType, i);
}

/// Sums of the lanes of eight vectors, {low[0], .., low[3], high[0], .., high[3]}, each in the
/// order of reduce().
[[nodiscard]] KVEVICT_AVX2 inline __m256 reduce_each(const __m256 (&low)[4],
                                                     const __m256 (&high)[4]) noexcept {
  __m256 halves[4];
  for (std::size_t i = 0; i < 4; ++i) {
    halves[i] = _mm256_add_ps(_mm256_permute2f128_ps(low[i], high[i], 0x20),
                              _mm256_permute2f128_ps(low[i], high[i], 0x31));
  }
  __m256 quarters[2];
  for (std::size_t i = 0; i < 2; ++i) {
    quarters[i] =
        _mm256_add_ps(_mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], _MM_SHUFFLE(1, 0, 1, 0)),
                      _mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], _MM_SHUFFLE(3, 2, 3, 2)));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm256_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(3, 1, 3, 1)));
}

/// Products of one query with one row.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline float dot(const float* query, const std::byte* row,
                                            std::size_t dim) noexcept {
  __m256 sum_f32x8 = _mm256_setzero_ps();
  for (std::size_t c = 0; c < dim; c += kLanes) {
    sum_f32x8 = _mm256_fmadd_ps(load_some(query, c, dim), load_some<kType>(row, c, dim), sum_f32x8);
  }
  return reduce(sum_f32x8);
}

/// Eight products at once, of `kQueries` (1 or 2) queries with 8 / kQueries rows: enough sums to
/// hide the latency of the multiply-add, and one reduction for all.
template <ElementType kType, std::size_t kQueries>
KVEVICT_AVX2 inline void dot_tile(const float* queries, std::ptrdiff_t query_stride,
                                  const std::byte* rows, std::ptrdiff_t row_stride_bytes,
                                  std::size_t dim, float* out, std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = kLanes / kQueries;
  const float* const last_query = queries + (kQueries == 2 ? query_stride : 0);
  __m256 low[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
  __m256 high[4] = {low[0], low[0], low[0], low[0]};
  const std::size_t whole = dim / kLanes * kLanes;
  for (std::size_t c = 0; c < whole; c += kLanes) {
    const __m256 first = _mm256_loadu_ps(queries + c);
    const __m256 last = _mm256_loadu_ps(last_query + c);
    for (std::size_t r = 0; r < 4; ++r) {
      const std::byte* row = rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes;
      const __m256 row_f32x8 = load<kType>(row, c);
      low[r] = _mm256_fmadd_ps(first, row_f32x8, low[r]);
      high[r] = _mm256_fmadd_ps(
          last, kRows == 4 ? row_f32x8 : load<kType>(row + 4 * row_stride_bytes, c), high[r]);
    }
  }
  if (whole < dim) {
    const __m256 first = load_some(queries, whole, dim);
    const __m256 last = load_some(last_query, whole, dim);
    for (std::size_t r = 0; r < 4; ++r) {
      const std::byte* row = rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes;
      const __m256 row_f32x8 = load_some<kType>(row, whole, dim);
      low[r] = _mm256_fmadd_ps(first, row_f32x8, low[r]);
      high[r] = _mm256_fmadd_ps(
          last, kRows == 4 ? row_f32x8 : load_some<kType>(row + 4 * row_stride_bytes, whole, dim),
          high[r]);
    }
  }
  const __m256 sums = reduce_each(low, high);
  _mm_storeu_ps(out, _mm256_castps256_ps128(sums));
  _mm_storeu_ps(out + (kQueries == 2 ? out_stride : 4), _mm256_extractf128_ps(sums, 1));
}

/// Rows of more elements than this are widened anew for every pair of queries.
inline constexpr std::size_t kMaxWidenedDim = 512;

template <ElementType kType>
KVEVICT_AVX2 inline void row_dots_as(const float* queries, std::size_t num_queries,
                                     std::ptrdiff_t query_stride, const RowBlock& rows, float* out,
                                     std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = 8;
  if constexpr (kType != ElementType::kF32) {
    // From a few queries on it pays to widen eight rows once for all of them.
    if (num_queries > 2 && rows.dim <= kMaxWidenedDim) {
      alignas(32) float widened[kRows * kMaxWidenedDim];
      for (std::size_t i = 0; i < rows.num_rows; i += kRows) {
        const std::size_t num_rows = std::min(kRows, rows.num_rows - i);
        for (std::size_t r = 0; r < num_rows; ++r)
          widen_as<kType>(scalar::row_of(rows, i + r), rows.dim, widened + r * rows.dim);
        row_dots_as<ElementType::kF32>(
            queries, num_queries, query_stride,
            {widened, static_cast<std::ptrdiff_t>(rows.dim * sizeof(float)), num_rows, rows.dim,
             ElementType::kF32},
            out + i, out_stride);
      }
      return;
    }
  }
  const std::size_t whole = rows.num_rows / kRows * kRows;
  const auto query_of = [=](std::size_t q) {
    return queries + static_cast<std::ptrdiff_t>(q) * query_stride;
  };
  const auto out_of = [=](std::size_t q, std::size_t i) {
    return out + static_cast<std::ptrdiff_t>(q) * out_stride + static_cast<std::ptrdiff_t>(i);
  };
  for (std::size_t i = 0; i < whole; i += kRows) {
    std::size_t q = 0;
    for (; q + 2 <= num_queries; q += 2) {
      for (const std::size_t r : {i, i + 4}) {
        dot_tile<kType, 2>(query_of(q), query_stride, scalar::row_of(rows, r), rows.stride_bytes,
                           rows.dim, out_of(q, r), out_stride);
      }
    }
    if (q < num_queries) {
      dot_tile<kType, 1>(query_of(q), query_stride, scalar::row_of(rows, i), rows.stride_bytes,
                         rows.dim, out_of(q, i), out_stride);
    }
  }
  for (std::size_t i = whole; i < rows.num_rows; ++i) {
    for (std::size_t q = 0; q < num_queries; ++q)
      *out_of(q, i) = dot<kType>(query_of(q), scalar::row_of(rows, i), rows.dim);
  }
}

/// A sum of squares or of values in double, in four chains of four.
struct WideSum {
  __m256d chains[4];
};
[[nodiscard]] KVEVICT_AVX2 inline WideSum wide_zero() noexcept {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
[[nodiscard]] KVEVICT_AVX2 inline double reduce(const WideSum& sum) noexcept {
  return reduce(_mm256_add_pd(_mm256_add_pd(sum.chains[0], sum.chains[1]),
                              _mm256_add_pd(sum.chains[2], sum.chains[3])));
}
KVEVICT_AVX2 inline void add_squares(__m256d low, __m256d high, std::size_t step,
                                     WideSum& sum) noexcept {
  __m256d* const chains = sum.chains + step / kLanes % 2 * 2;
  chains[0] = _mm256_fmadd_pd(low, low, chains[0]);
  chains[1] = _mm256_fmadd_pd(high, high, chains[1]);
}

template <ElementType kType>
KVEVICT_AVX2 inline void row_norms_as(const RowBlock& rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
    WideSum squares = wide_zero();
    std::size_t c = 0;
    for (; c + 2 * kLanes <= rows.dim; c += 2 * kLanes) {
      const __m256 first = load<kType>(row, c);
      const __m256 second = load<kType>(row, c + kLanes);
      add_squares(low_half(first), high_half(first), 0, squares);
      add_squares(low_half(second), high_half(second), kLanes, squares);
    }
    for (; c < rows.dim; c += kLanes) {
      const __m256 x_f32x8 = load_some<kType>(row, c, rows.dim);
      add_squares(low_half(x_f32x8), high_half(x_f32x8), 0, squares);
    }
    out[i] = static_cast<float>(std::sqrt(reduce(squares)));
  }
}

template <ElementType kType>
KVEVICT_AVX2 inline void row_variances_as(const RowBlock& rows, float* out) noexcept {
  const auto dim = static_cast<double>(rows.dim);
  const std::size_t whole = rows.dim / kLanes * kLanes;
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
    __m256d low_f64x4 = _mm256_setzero_pd();
    __m256d high_f64x4 = _mm256_setzero_pd();
    for (std::size_t c = 0; c < rows.dim; c += kLanes) {
      const __m256 x_f32x8 = load_some<kType>(row, c, rows.dim);
      low_f64x4 = _mm256_add_pd(low_f64x4, low_half(x_f32x8));
      high_f64x4 = _mm256_add_pd(high_f64x4, high_half(x_f32x8));
    }
    const double mean = reduce(_mm256_add_pd(low_f64x4, high_f64x4)) / dim;
    const __m256d mean_f64x4 = _mm256_set1_pd(mean);
    WideSum squares = wide_zero();
    for (std::size_t c = 0; c < whole; c += kLanes) {
      const __m256 x_f32x8 = load<kType>(row, c);
      add_squares(_mm256_sub_pd(low_half(x_f32x8), mean_f64x4),
                  _mm256_sub_pd(high_half(x_f32x8), mean_f64x4), c, squares);
    }
    double total = reduce(squares);
    for (std::size_t c = whole; c < rows.dim; ++c) {
      const double difference = scalar::load(row, kType, c) - mean;
      total += difference * difference;
    }
    out[i] = rows.dim > 1 ? static_cast<float>(total / (dim - 1.0)) : 0.0F;
  }
}

inline constexpr std::size_t kMaxProjectedDim = 512;

/// Columns j .. j + 8 kVectors of C^T v for each of `kRows` rows, squared and added to `squares`.
/// Row j of C^T v is summed over c >= j only, so the upper triangle is skipped 8 columns at a time.
template <std::size_t kRows, std::size_t kVectors>
KVEVICT_AVX2 inline void add_projected_columns(const float* factor, std::size_t dim, std::size_t j,
                                               const float (*values)[kMaxProjectedDim],
                                               __m256d* squares) noexcept {
  __m256 sum_f32x8[kRows][kVectors];
  for (auto& row : sum_f32x8) {
    for (__m256& sum : row)
      sum = _mm256_setzero_ps();
  }
  const bool whole = j + kVectors * kLanes <= dim;
  std::size_t c = j;
  if constexpr (kVectors == 2) {
    for (; c < j + kLanes; ++c) {
      const __m256 factor_f32x8 = _mm256_loadu_ps(factor + c * dim + j);
      for (std::size_t r = 0; r < kRows; ++r) {
        sum_f32x8[r][0] =
            _mm256_fmadd_ps(_mm256_set1_ps(values[r][c]), factor_f32x8, sum_f32x8[r][0]);
      }
    }
  }
  for (; c < dim; ++c) {
    __m256 factor_f32x8[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      const float* from = factor + c * dim + j + v * kLanes;
      factor_f32x8[v] = whole ? _mm256_loadu_ps(from) : load_some(factor + c * dim, j, dim);
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      const __m256 value_f32x8 = _mm256_set1_ps(values[r][c]);
      for (std::size_t v = 0; v < kVectors; ++v)
        sum_f32x8[r][v] = _mm256_fmadd_ps(value_f32x8, factor_f32x8[v], sum_f32x8[r][v]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (const __m256 sum : sum_f32x8[r]) {
      const __m256d low = low_half(sum);
      const __m256d high = high_half(sum);
      squares[r] = _mm256_fmadd_pd(low, low, _mm256_fmadd_pd(high, high, squares[r]));
    }
  }
}

// Six rows and sixteen columns at once are twelve sums: they hide the latency of the multiply-add
// and fill the registers.
template <ElementType kType>
KVEVICT_AVX2 inline void projected_norms_as(const float* factor, const RowBlock& rows,
                                            float* out) noexcept {
  constexpr std::size_t kRows = 6;
  alignas(32) float values[kRows][kMaxProjectedDim];
  for (std::size_t first = 0; first < rows.num_rows; first += kRows) {
    const std::size_t num_rows = std::min(kRows, rows.num_rows - first);
    for (std::size_t r = 0; r < kRows; ++r) {
      // Rows behind the last one repeat it; their results are not stored.
      widen_as<kType>(scalar::row_of(rows, first + std::min(r, num_rows - 1)), rows.dim, values[r]);
    }
    __m256d squares_f64x4[kRows];
    for (auto& squares : squares_f64x4)
      squares = _mm256_setzero_pd();
    std::size_t j = 0;
    for (; j + 2 * kLanes <= rows.dim; j += 2 * kLanes)
      add_projected_columns<kRows, 2>(factor, rows.dim, j, values, squares_f64x4);
    for (; j < rows.dim; j += kLanes)
      add_projected_columns<kRows, 1>(factor, rows.dim, j, values, squares_f64x4);
    for (std::size_t r = 0; r < num_rows; ++r)
      out[first + r] = static_cast<float>(std::sqrt(reduce(squares_f64x4[r])));
  }
}

// One switch on the element type for each kernel that reads stored rows.
KVEVICT_AVX2 inline void widen(const void* source, ElementType type, std::size_t n,
                               float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  switch (type) {
    case ElementType::kF32:
      return widen_as<ElementType::kF32>(bytes, n, destination);
    case ElementType::kF16:
      return widen_as<ElementType::kF16>(bytes, n, destination);
    case ElementType::kBF16:
      return widen_as<ElementType::kBF16>(bytes, n, destination);
  }
}
KVEVICT_AVX2 inline void row_dots(const float* queries, std::size_t num_queries,
                                  std::ptrdiff_t query_stride, RowBlock rows, float* out,
                                  std::ptrdiff_t out_stride) noexcept {
  switch (rows.type) {
    case ElementType::kF32:
      return row_dots_as<ElementType::kF32>(queries, num_queries, query_stride, rows, out,
                                            out_stride);
    case ElementType::kF16:
      return row_dots_as<ElementType::kF16>(queries, num_queries, query_stride, rows, out,
                                            out_stride);
    case ElementType::kBF16:
      return row_dots_as<ElementType::kBF16>(queries, num_queries, query_stride, rows, out,
                                             out_stride);
  }
}
KVEVICT_AVX2 inline void row_norms(RowBlock rows, float* out) noexcept {
  switch (rows.type) {
    case ElementType::kF32:
      return row_norms_as<ElementType::kF32>(rows, out);
    case ElementType::kF16:
      return row_norms_as<ElementType::kF16>(rows, out);
    case ElementType::kBF16:
      return row_norms_as<ElementType::kBF16>(rows, out);
  }
}
KVEVICT_AVX2 inline void row_variances(RowBlock rows, float* out) noexcept {
  switch (rows.type) {
    case ElementType::kF32:
      return row_variances_as<ElementType::kF32>(rows, out);
    case ElementType::kF16:
      return row_variances_as<ElementType::kF16>(rows, out);
    case ElementType::kBF16:
      return row_variances_as<ElementType::kBF16>(rows, out);
  }
}
KVEVICT_AVX2 inline void projected_norms(const float* factor, RowBlock rows, float* out) noexcept {
  if (rows.dim > kMaxProjectedDim)
    return scalar::projected_norms(factor, rows, out);
  switch (rows.type) {
    case ElementType::kF32:
      return projected_norms_as<ElementType::kF32>(factor, rows, out);
    case ElementType::kF16:
      return projected_norms_as<ElementType::kF16>(factor, rows, out);
    case ElementType::kBF16:
      return projected_norms_as<ElementType::kBF16>(factor, rows, out);
  }
}

[[nodiscard]] KVEVICT_AVX2 inline double squared_distance(const float* a, const float* b,
                                                          std::size_t n) noexcept {
  __m256d low_f64x4 = _mm256_setzero_pd();
  __m256d high_f64x4 = _mm256_setzero_pd();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m256 a_f32x8 = load_some(a, i, n);
    const __m256 b_f32x8 = load_some(b, i, n);
    const __m256d low = _mm256_sub_pd(low_half(a_f32x8), low_half(b_f32x8));
    const __m256d high = _mm256_sub_pd(high_half(a_f32x8), high_half(b_f32x8));
    low_f64x4 = _mm256_fmadd_pd(low, low, low_f64x4);
    high_f64x4 = _mm256_fmadd_pd(high, high, high_f64x4);
  }
  return reduce(_mm256_add_pd(low_f64x4, high_f64x4));
}

[[nodiscard]] KVEVICT_AVX2 inline double sum(const float* x, std::size_t n) noexcept {
  __m256d low_f64x4 = _mm256_setzero_pd();
  __m256d high_f64x4 = _mm256_setzero_pd();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m256 x_f32x8 = load_some(x, i, n);
    low_f64x4 = _mm256_add_pd(low_f64x4, low_half(x_f32x8));
    high_f64x4 = _mm256_add_pd(high_f64x4, high_half(x_f32x8));
  }
  return reduce(_mm256_add_pd(low_f64x4, high_f64x4));
}

[[nodiscard]] KVEVICT_AVX2 inline float max_value(const float* x, std::size_t n) noexcept {
  __m256 largest_f32x8 = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    // The instruction returns its second operand where one is NaN, so NaN never gets in.
    largest_f32x8 = _mm256_max_ps(_mm256_loadu_ps(x + i), largest_f32x8);
  }
  alignas(32) std::array<float, kLanes> lanes;
  _mm256_store_ps(lanes.data(), largest_f32x8);
  return std::max(*std::max_element(lanes.begin(), lanes.end()), scalar::max_value(x + i, n - i));
}

KVEVICT_AVX2 inline void scale(float factor, std::size_t n, float* x) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor_f32x8));
  }
  scalar::scale(factor, n - i, x + i);
}

/// exp for x <= 88 and -infinity, not NaN: x = k ln 2 + r, exp(r) by a polynomial of degree 6
/// (relative error below 2e-7), scaled by 2^k. Results below the smallest normal float are 0.
[[nodiscard]] KVEVICT_AVX2 inline __m256 exp_f32x8(__m256 x) noexcept {
  const __m256 vanishes = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33F), _CMP_LT_OQ);
  const __m256 k = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504F)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693359375F), x);
  r = _mm256_fnmadd_ps(k, _mm256_set1_ps(-2.12194440e-4F), r);
  __m256 p = _mm256_set1_ps(1.0F / 720);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  const __m256i exponent_i32x8 =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(vanishes, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent_i32x8)));
}

KVEVICT_AVX2 inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  // Larger than the shift by more than this is left to the scalar form, which may overflow.
  constexpr float kLargest = 80.0F;
  if (!(shift < std::numeric_limits<float>::infinity()) || max_value(x, n) - shift > kLargest) {
    return scalar::exp_shifted(shift, n, x);
  }
  const __m256 shift_f32x8 = _mm256_set1_ps(shift);
  __m256d low_f64x4 = _mm256_setzero_pd();
  __m256d high_f64x4 = _mm256_setzero_pd();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 x_f32x8 = _mm256_loadu_ps(x + i);
    const __m256 counted = _mm256_cmp_ps(x_f32x8, x_f32x8, _CMP_ORD_Q);
    const __m256 e_f32x8 = _mm256_and_ps(counted, exp_f32x8(_mm256_sub_ps(x_f32x8, shift_f32x8)));
    _mm256_storeu_ps(x + i, e_f32x8);
    low_f64x4 = _mm256_add_pd(low_f64x4, low_half(e_f32x8));
    high_f64x4 = _mm256_add_pd(high_f64x4, high_half(e_f32x8));
  }
  return reduce(_mm256_add_pd(low_f64x4, high_f64x4)) + scalar::exp_shifted(shift, n - i, x + i);
}

/// All ones in the lanes of x that are neither infinite nor NaN.
[[nodiscard]] KVEVICT_AVX2 inline __m256 finite(__m256 x) noexcept {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
  return _mm256_cmp_ps(magnitude, _mm256_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ);
}

/// Stores `next` over `old` where `sample` is finite; each lane of `skipped` counts where it is
/// not.
KVEVICT_AVX2 inline void store_finite(__m256 sample, __m256 old, __m256 next, float* y,
                                      __m256i& skipped) noexcept {
  const __m256 wanted = finite(sample);
  _mm256_storeu_ps(y, _mm256_blendv_ps(old, next, wanted));
  skipped = _mm256_add_epi32(
      skipped, _mm256_andnot_si256(_mm256_castps_si256(wanted), _mm256_set1_epi32(1)));
}
[[nodiscard]] KVEVICT_AVX2 inline std::size_t count(__m256i lanes) noexcept {
  alignas(32) std::array<std::uint32_t, kLanes> counts;
  _mm256_store_si256(reinterpret_cast<__m256i*>(counts.data()), lanes);
  std::size_t total = 0;
  for (const std::uint32_t lane : counts)
    total += lane;
  return total;
}

KVEVICT_AVX2 inline std::size_t add(float factor, const float* x, std::size_t n,
                                    float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    __m256 sample = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x + i));
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_add_ps(old, sample), y + i, skipped);
  }
  return count(skipped) + scalar::add(factor, x + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t add_squared(float factor, const float* x, std::size_t n,
                                            float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 scaled = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x + i));
    __m256 sample = _mm256_mul_ps(scaled, scaled);
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_add_ps(old, sample), y + i, skipped);
  }
  return count(skipped) + scalar::add_squared(factor, x + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t add_product(float factor, const float* a, const float* b,
                                            std::size_t n, float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    __m256 sample =
        _mm256_mul_ps(_mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(a + i)), _mm256_loadu_ps(b + i));
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_add_ps(old, sample), y + i, skipped);
  }
  return count(skipped) + scalar::add_product(factor, a + i, b + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t take_max(float factor, const float* x, std::size_t n,
                                         float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    __m256 sample = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x + i));
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_max_ps(sample, old), y + i, skipped);
  }
  return count(skipped) + scalar::take_max(factor, x + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t ema(float decay, const float* sample, std::size_t n,
                                    float* state) noexcept {
  const __m256 decay_f32x8 = _mm256_set1_ps(decay);
  const __m256 rest_f32x8 = _mm256_set1_ps(1.0F - decay);
  const __m256 smallest_f32x8 = _mm256_set1_ps(std::numeric_limits<float>::min());
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 sample_f32x8 = _mm256_loadu_ps(sample + i);
    const __m256 old = _mm256_loadu_ps(state + i);
    __m256 old_part = _mm256_mul_ps(decay_f32x8, old);
    __m256 new_part = _mm256_mul_ps(rest_f32x8, sample_f32x8);
    KVEVICT_ROUND(old_part);
    KVEVICT_ROUND(new_part);
    const __m256 next = _mm256_add_ps(old_part, new_part);
    const __m256 tiny =
        _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), next), smallest_f32x8, _CMP_LT_OQ);
    store_finite(sample_f32x8, old, _mm256_andnot_ps(tiny, next), state + i, skipped);
  }
  return count(skipped) + scalar::ema(decay, sample + i, n - i, state + i);
}

// The mean under the kernel for 8 entries at once where the whole kernel fits in; added up in the
// order of the scalar form, so the bits are the same.
KVEVICT_AVX2 inline void average_pool(const float* x, std::size_t n, std::size_t kernel,
                                      PoolEdge edge, float* out) noexcept {
  const std::size_t reach = kernel / 2;
  const __m256d divisor_f64x4 = _mm256_set1_pd(static_cast<double>(kernel));
  std::size_t i = 0;
  for (; i < std::min(reach, n); ++i)
    out[i] = scalar::window_mean(x, n, kernel, edge, i);
  for (; i + reach + kLanes <= n; i += kLanes) {
    __m256d low_f64x4 = _mm256_setzero_pd();
    __m256d high_f64x4 = _mm256_setzero_pd();
    for (std::size_t j = 0; j < kernel; ++j) {
      const float* from = x + i - reach + j;
      low_f64x4 = _mm256_add_pd(low_f64x4, _mm256_cvtps_pd(_mm_loadu_ps(from)));
      high_f64x4 = _mm256_add_pd(high_f64x4, _mm256_cvtps_pd(_mm_loadu_ps(from + 4)));
    }
    _mm_storeu_ps(out + i, _mm256_cvtpd_ps(_mm256_div_pd(low_f64x4, divisor_f64x4)));
    _mm_storeu_ps(out + i + 4, _mm256_cvtpd_ps(_mm256_div_pd(high_f64x4, divisor_f64x4)));
  }
  for (; i < n; ++i)
    out[i] = scalar::window_mean(x, n, kernel, edge, i);
}

// A maximum over the kernel for 8 entries at once where the whole kernel fits in.
KVEVICT_AVX2 inline void max_pool(const float* x, std::size_t n, std::size_t kernel,
                                  float* out) noexcept {
  const std::size_t reach = kernel / 2;
  std::size_t i = 0;
  for (; i < std::min(reach, n); ++i)
    out[i] = scalar::window_max(x, 0, std::min(n, i + reach + 1));
  for (; i + reach + kLanes <= n; i += kLanes) {
    __m256 largest_f32x8 = _mm256_loadu_ps(x + i - reach);
    for (std::size_t j = 1; j < kernel; ++j) {
      // The instruction returns its second operand where one is NaN.
      const __m256 next_f32x8 = _mm256_loadu_ps(x + i - reach + j);
      const __m256 nan = _mm256_cmp_ps(largest_f32x8, largest_f32x8, _CMP_UNORD_Q);
      largest_f32x8 = _mm256_blendv_ps(_mm256_max_ps(next_f32x8, largest_f32x8), next_f32x8, nan);
    }
    _mm256_storeu_ps(out + i, largest_f32x8);
  }
  for (; i < n; ++i)
    out[i] = scalar::window_max(x, i - reach, std::min(n, i + reach + 1));
}

inline constexpr KernelSet kSet{Isa::kAvx2,    widen,           row_dots,         row_norms,
                                row_variances, projected_norms, squared_distance, sum,
                                max_value,     scale,           scalar::soft_cap, exp_shifted,
                                add,           add_squared,     add_product,      take_max,
                                ema,           average_pool,    max_pool};

}  // namespace kernels::avx2
KVEVICT_NAMESPACE_END

#undef KVEVICT_AVX2

#endif  // KVEVICT_KERNELS_AVX2_HPP_
