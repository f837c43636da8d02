#ifndef KVEVICT_KERNELS_AVX2_HPP_
#define KVEVICT_KERNELS_AVX2_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/q8_0.hpp"
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

/// Elements index .. index + 8 of a row as float; `index` is a multiple of 8 where the type has
/// blocks.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline __m256 load(const std::byte* row, std::size_t index) noexcept {
  if constexpr (kType == ElementType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * index));
  } else if constexpr (kType == ElementType::kQ8_0) {
    const BlockPlace place = q8_0_place(row, index);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(place.bytes));
    const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<std::int16_t>(place.scale)));
    return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
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
  std::memcpy(buffer.data(), row + row_bytes(kType, index), row_bytes(kType, count));
  return load<kType>(buffer.data(), 0);
}

/// Elements from `index` on, as many as a row of `dim` has left.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline __m256 load_some(const std::byte* row, std::size_t index,
                                                   std::size_t dim) noexcept {
  if constexpr (block_len(kType) % kLanes == 0) {
    return load<kType>(row, index);  // rows are whole blocks
  } else {
    return index + kLanes <= dim ? load<kType>(row, index)
                                 : load_tail<kType>(row, index, dim - index);
  }
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
[[nodiscard, gnu::always_inline]] KVEVICT_AVX2 inline __m256 reduce_each(
    const __m256 (&low)[4], const __m256 (&high)[4]) noexcept {
  __m256 halves[4];
  KVEVICT_UNROLL
  for (std::size_t i = 0; i < 4; ++i) {
    halves[i] = _mm256_add_ps(_mm256_permute2f128_ps(low[i], high[i], 0x20),
                              _mm256_permute2f128_ps(low[i], high[i], 0x31));
  }
  __m256 quarters[2];
  KVEVICT_UNROLL
  for (std::size_t i = 0; i < 2; ++i) {
    quarters[i] =
        _mm256_add_ps(_mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], _MM_SHUFFLE(1, 0, 1, 0)),
                      _mm256_shuffle_ps(halves[2 * i], halves[2 * i + 1], _MM_SHUFFLE(3, 2, 3, 2)));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm256_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(3, 1, 3, 1)));
}

/// The product of one query with one row.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline float dot(const float* query, const std::byte* row,
                                            std::size_t dim) noexcept {
  __m256 sum_f32x8 = _mm256_setzero_ps();
  for (std::size_t c = 0; c < dim; c += kLanes) {
    sum_f32x8 = _mm256_fmadd_ps(load_some(query, c, dim), load_some<kType>(row, c, dim), sum_f32x8);
  }
  return reduce(sum_f32x8);
}

/// The products of two queries with four rows: as many sums as hide the latency of the
/// multiply-add. `kWhole` says that dim is a multiple of eight, since code for the rest would take
/// the sums out of registers. The barriers keep a load a load: compilers fold it into each of its
/// uses.
template <ElementType kType, bool kWhole>
KVEVICT_AVX2 inline void dot_tile(const float* queries, std::ptrdiff_t query_stride,
                                  const std::byte* rows, std::ptrdiff_t row_stride_bytes,
                                  std::size_t dim, float* out, std::ptrdiff_t out_stride) noexcept {
  __m256 sums[2][4];
  KVEVICT_UNROLL
  for (std::size_t r = 0; r < 4; ++r)
    sums[0][r] = sums[1][r] = _mm256_setzero_ps();
  for (std::size_t c = 0; c < dim; c += kLanes) {
    const float* const other = queries + query_stride;
    __m256 first = kWhole ? _mm256_loadu_ps(queries + c) : load_some(queries, c, dim);
    __m256 second = kWhole ? _mm256_loadu_ps(other + c) : load_some(other, c, dim);
    KVEVICT_ROUND(first);
    KVEVICT_ROUND(second);
    KVEVICT_UNROLL
    for (std::size_t r = 0; r < 4; ++r) {
      const std::byte* from = rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes;
      __m256 row = kWhole ? load<kType>(from, c) : load_some<kType>(from, c, dim);
      KVEVICT_ROUND(row);
      sums[0][r] = _mm256_fmadd_ps(first, row, sums[0][r]);
      sums[1][r] = _mm256_fmadd_ps(second, row, sums[1][r]);
    }
  }
  const __m256 both = reduce_each(sums[0], sums[1]);
  _mm_storeu_ps(out, _mm256_castps256_ps128(both));
  _mm_storeu_ps(out + out_stride, _mm256_extractf128_ps(both, 1));
}

/// The products of one query with eight rows: as many sums as hide the latency.
template <ElementType kType>
KVEVICT_AVX2 inline void dot_rows(const float* query, const std::byte* rows,
                                  std::ptrdiff_t row_stride_bytes, std::size_t dim,
                                  float* out) noexcept {
  __m256 sums[2][4];
  KVEVICT_UNROLL
  for (auto& half : sums) {
    KVEVICT_UNROLL
    for (__m256& sum : half)
      sum = _mm256_setzero_ps();
  }
  for (std::size_t c = 0; c < dim; c += kLanes) {
    const __m256 query_f32x8 = load_some(query, c, dim);
    KVEVICT_UNROLL
    for (std::size_t r = 0; r < 8; ++r) {
      const std::byte* row = rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes;
      sums[r / 4][r % 4] =
          _mm256_fmadd_ps(query_f32x8, load_some<kType>(row, c, dim), sums[r / 4][r % 4]);
    }
  }
  _mm256_storeu_ps(out, reduce_each(sums[0], sums[1]));
}

/// Asks for the rows that come next, between tiles: what the processor does by itself ends with
/// each page of 4 KiB, which is few rows.
[[gnu::always_inline]] KVEVICT_AVX2 inline void prefetch_rows(const RowBlock& rows,
                                                              std::size_t first,
                                                              std::size_t last) noexcept {
  const std::size_t num_bytes = row_bytes(rows.type, rows.dim);
  for (std::size_t i = first; i < std::min(last, rows.num_rows); ++i) {
    const auto* const row = reinterpret_cast<const char*>(scalar::row_of(rows, i));
    for (std::size_t byte = 0; byte < num_bytes; byte += 64)
      _mm_prefetch(row + byte, _MM_HINT_T0);
  }
}

/// The products of many queries with eight rows; from `next` on lie the rows of `all` that follow.
template <ElementType kType, bool kWhole>
KVEVICT_AVX2 inline void dot_eight(const float* queries, std::size_t num_queries,
                                   std::ptrdiff_t query_stride, const std::byte* rows,
                                   std::ptrdiff_t row_stride_bytes, std::size_t dim, float* out,
                                   std::ptrdiff_t out_stride, const RowBlock& all,
                                   std::size_t next) noexcept {
  const std::size_t num_pairs = std::max<std::size_t>(1, num_queries / 2);
  const std::size_t rows_per_pair = (8 + num_pairs - 1) / num_pairs;
  const std::size_t last = next + 8;
  std::size_t q = 0;
  for (; q + 2 <= num_queries; q += 2) {
    prefetch_rows(all, std::min(next, last), std::min(next + rows_per_pair, last));
    next += rows_per_pair;
    for (const std::ptrdiff_t r : {0, 4}) {
      dot_tile<kType, kWhole>(queries + static_cast<std::ptrdiff_t>(q) * query_stride, query_stride,
                              rows + r * row_stride_bytes, row_stride_bytes, dim,
                              out + static_cast<std::ptrdiff_t>(q) * out_stride + r, out_stride);
    }
  }
  if (q < num_queries) {
    prefetch_rows(all, std::min(next, last), last);
    dot_rows<kType>(queries + static_cast<std::ptrdiff_t>(q) * query_stride, rows, row_stride_bytes,
                    dim, out + static_cast<std::ptrdiff_t>(q) * out_stride);
  }
}

template <ElementType kType>
KVEVICT_AVX2 inline void row_dots_as(const float* queries, std::size_t num_queries,
                                     std::ptrdiff_t query_stride, const RowBlock& rows, float* out,
                                     std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = 8;
  // From a few queries on it pays to widen eight rows once for all of them.
  const bool widens =
      kType != ElementType::kF32 && num_queries > 2 && rows.dim <= scalar::kMaxWidenedDim;
  alignas(32) float widened[kType == ElementType::kF32 ? 1 : kRows * scalar::kMaxWidenedDim];
  const bool whole = rows.dim % kLanes == 0;
  std::size_t i = 0;
  for (; i + kRows <= rows.num_rows; i += kRows) {
    if (widens) {
      for (std::size_t r = 0; r < kRows; ++r)
        widen_as<kType>(scalar::row_of(rows, i + r), rows.dim, widened + r * rows.dim);
      const auto stride = static_cast<std::ptrdiff_t>(rows.dim * sizeof(float));
      const auto* block = reinterpret_cast<const std::byte*>(widened);
      if (whole) {
        dot_eight<ElementType::kF32, true>(queries, num_queries, query_stride, block, stride,
                                           rows.dim, out + i, out_stride, rows, i + kRows);
      } else {
        dot_eight<ElementType::kF32, false>(queries, num_queries, query_stride, block, stride,
                                            rows.dim, out + i, out_stride, rows, i + kRows);
      }
    } else if (whole) {
      dot_eight<kType, true>(queries, num_queries, query_stride, scalar::row_of(rows, i),
                             rows.stride_bytes, rows.dim, out + i, out_stride, rows, i + kRows);
    } else {
      dot_eight<kType, false>(queries, num_queries, query_stride, scalar::row_of(rows, i),
                              rows.stride_bytes, rows.dim, out + i, out_stride, rows, i + kRows);
    }
  }
  for (; i < rows.num_rows; ++i) {
    for (std::size_t q = 0; q < num_queries; ++q) {
      out[static_cast<std::ptrdiff_t>(q) * out_stride + static_cast<std::ptrdiff_t>(i)] =
          dot<kType>(queries + static_cast<std::ptrdiff_t>(q) * query_stride,
                     scalar::row_of(rows, i), rows.dim);
    }
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
    prefetch_rows(rows, i + 8, i + 9);
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
  KVEVICT_UNROLL
  for (auto& row : sum_f32x8) {
    KVEVICT_UNROLL
    for (__m256& sum : row)
      sum = _mm256_setzero_ps();
  }
  const bool whole = j + kVectors * kLanes <= dim;
  std::size_t c = j;
  if constexpr (kVectors == 2) {
    for (; c < j + kLanes; ++c) {
      const __m256 factor_f32x8 = _mm256_loadu_ps(factor + c * dim + j);
      KVEVICT_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        sum_f32x8[r][0] =
            _mm256_fmadd_ps(_mm256_set1_ps(values[r][c]), factor_f32x8, sum_f32x8[r][0]);
      }
    }
  }
  for (; c < dim; ++c) {
    __m256 factor_f32x8[kVectors];
    KVEVICT_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      const float* from = factor + c * dim + j + v * kLanes;
      factor_f32x8[v] = whole ? _mm256_loadu_ps(from) : load_some(factor + c * dim, j, dim);
    }
    KVEVICT_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      const __m256 value_f32x8 = _mm256_set1_ps(values[r][c]);
      KVEVICT_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v)
        sum_f32x8[r][v] = _mm256_fmadd_ps(value_f32x8, factor_f32x8[v], sum_f32x8[r][v]);
    }
  }
  KVEVICT_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    KVEVICT_UNROLL
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
    KVEVICT_UNROLL
    for (auto& squares : squares_f64x4)
      squares = _mm256_setzero_pd();
    std::size_t j = 0;
    for (; j + 2 * kLanes <= rows.dim; j += 2 * kLanes)
      add_projected_columns<kRows, 2>(factor, rows.dim, j, values, squares_f64x4);
    for (; j < rows.dim; j += kLanes)
      add_projected_columns<kRows, 1>(factor, rows.dim, j, values, squares_f64x4);
    for (std::size_t r = 0; r < num_rows; ++r) {
      const auto norm = static_cast<float>(std::sqrt(reduce(squares_f64x4[r])));
      out[first + r] = scalar::checked_norm(norm, factor, rows, first + r);
    }
  }
}

/// Where the bands of a row lie, and vectors to multiply it by, whose weights of band lengths stand
/// in the order in which load_bands gives these.
struct BandVectors {
  const float* channels;
  std::ptrdiff_t stride;
  const float* weights;  // [vectors, num_bands]
  std::size_t num_bands;
  bool interleaved;
};

/// Eight channels of a row where their bands begin and eight where these end, or sixteen in a row,
/// and the bands' lengths: in order, or 0, 1, 4, 5, 2, 3, 6, 7.
struct Bands {
  __m256 first;
  __m256 second;
  __m256 lengths;
};
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX2 inline Bands load_bands(const std::byte* row, std::size_t num_bands,
                                                   bool interleaved, std::size_t f) noexcept {
  Bands bands;
  bands.first = load<kType>(row, interleaved ? 2 * f : f);
  bands.second = load<kType>(row, interleaved ? 2 * f + kLanes : num_bands + f);
  KVEVICT_ROUND(bands.first);
  KVEVICT_ROUND(bands.second);
  __m256 x = bands.first;
  __m256 y = bands.second;
  if (interleaved) {
    x = _mm256_shuffle_ps(bands.first, bands.second, _MM_SHUFFLE(2, 0, 2, 0));
    y = _mm256_shuffle_ps(bands.first, bands.second, _MM_SHUFFLE(3, 1, 3, 1));
  }
  bands.lengths = _mm256_sqrt_ps(_mm256_fmadd_ps(x, x, _mm256_mul_ps(y, y)));
  return bands;
}

/// The products of `kVectors` <= 4 vectors with rows, two at a time; a length is used for all of
/// them.
template <ElementType kType, std::size_t kVectors>
KVEVICT_AVX2 inline void band_rows(const BandVectors& vectors, const RowBlock& rows, float* out,
                                   std::ptrdiff_t out_stride) noexcept {
  const auto [channels, stride, weights, num_bands, interleaved] = vectors;
  const std::size_t whole = num_bands / kLanes * kLanes;
  for (std::size_t i = 0; i < rows.num_rows; i += 2) {
    const bool has_second = i + 1 < rows.num_rows;
    const std::byte* pair[2] = {scalar::row_of(rows, i),
                                scalar::row_of(rows, i + (has_second ? 1 : 0))};
    prefetch_rows(rows, i + 16, i + 18);
    __m256 sums[2][4];  // of vectors 0 and 1, 2 and 3, with both rows
    KVEVICT_UNROLL
    for (std::size_t k = 0; k < 4; ++k)
      sums[0][k] = sums[1][k] = _mm256_setzero_ps();
    for (std::size_t f = 0; f < whole; f += kLanes) {
      const std::size_t x = interleaved ? 2 * f : f;
      const std::size_t y = interleaved ? 2 * f + kLanes : num_bands + f;
      const Bands bands[2] = {load_bands<kType>(pair[0], num_bands, interleaved, f),
                              load_bands<kType>(pair[1], num_bands, interleaved, f)};
      KVEVICT_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        const float* const vector = channels + static_cast<std::ptrdiff_t>(v) * stride;
        const __m256 u_x = _mm256_loadu_ps(vector + x);
        const __m256 u_y = _mm256_loadu_ps(vector + y);
        const __m256 w = _mm256_loadu_ps(weights + v * num_bands + f);
        KVEVICT_UNROLL
        for (std::size_t r = 0; r < 2; ++r) {
          __m256& sum = sums[v / 2][v % 2 * 2 + r];
          sum = _mm256_fmadd_ps(u_x, bands[r].first, sum);
          sum = _mm256_fmadd_ps(u_y, bands[r].second, sum);
          sum = _mm256_fmadd_ps(w, bands[r].lengths, sum);
        }
      }
    }
    const __m256 products = reduce_each(sums[0], sums[1]);
    const __m128 quarters[2] = {_mm256_castps256_ps128(products),
                                _mm256_extractf128_ps(products, 1)};
    KVEVICT_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m128 both =
          v % 2 == 0 ? quarters[v / 2] : _mm_movehl_ps(quarters[v / 2], quarters[v / 2]);
      float* const to = out + static_cast<std::ptrdiff_t>(v) * out_stride + i;
      if (has_second) {
        _mm_storel_pi(reinterpret_cast<__m64*>(to), both);
      } else {
        _mm_store_ss(to, both);
      }
    }
  }
  for (std::size_t i = 0; whole < num_bands && i < rows.num_rows; ++i) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      out[static_cast<std::ptrdiff_t>(v) * out_stride + static_cast<std::ptrdiff_t>(i)] +=
          scalar::band_dot(channels + static_cast<std::ptrdiff_t>(v) * stride,
                           scalar::row_of(rows, i), kType, num_bands, interleaved, whole);
    }
  }
}

template <ElementType kType>
KVEVICT_AVX2 inline void band_dots_as(const float* vectors, std::size_t num_vectors,
                                      std::ptrdiff_t vector_stride, const RowBlock& rows,
                                      bool interleaved, float* out,
                                      std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kMaxBands = scalar::kMaxWidenedDim / 2;
  const std::size_t num_bands = rows.dim / 2;
  // Where the second half of a row begins inside a load of a block.
  const bool splits_blocks = block_len(kType) > 1 && !interleaved && num_bands % kLanes != 0;
  if (splits_blocks || num_bands > kMaxBands) {
    return scalar::band_dots(vectors, num_vectors, vector_stride, rows, interleaved, out,
                             out_stride);
  }
  alignas(32) float weights[kVectors * kMaxBands];
  for (std::size_t v = 0; v < num_vectors; v += kVectors) {
    const std::size_t count = std::min(kVectors, num_vectors - v);
    const float* const channels = vectors + static_cast<std::ptrdiff_t>(v) * vector_stride;
    for (std::size_t k = 0; k < count; ++k) {
      const float* const from =
          channels + static_cast<std::ptrdiff_t>(k) * vector_stride + rows.dim;
      for (std::size_t f = 0; f + kLanes <= num_bands; f += kLanes) {
        const __m256 w = _mm256_loadu_ps(from + f);
        // The middle two pairs change places.
        const __m256d swapped = _mm256_permute4x64_pd(_mm256_castps_pd(w), _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_ps(weights + k * num_bands + f, interleaved ? _mm256_castpd_ps(swapped) : w);
      }
    }
    const BandVectors four = {channels, vector_stride, weights, num_bands, interleaved};
    float* const to = out + static_cast<std::ptrdiff_t>(v) * out_stride;
    switch (count) {
      case 1:
        band_rows<kType, 1>(four, rows, to, out_stride);
        break;
      case 2:
        band_rows<kType, 2>(four, rows, to, out_stride);
        break;
      case 3:
        band_rows<kType, 3>(four, rows, to, out_stride);
        break;
      default:
        band_rows<kType, 4>(four, rows, to, out_stride);
    }
  }
}

KVEVICT_AVX2 inline void widen(const void* source, ElementType type, std::size_t n,
                               float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  with_type(type, [&]<ElementType kType>() { widen_as<kType>(bytes, n, destination); });
}
KVEVICT_AVX2 inline void row_dots(const float* queries, std::size_t num_queries,
                                  std::ptrdiff_t query_stride, RowBlock rows, float* out,
                                  std::ptrdiff_t out_stride) noexcept {
  with_type(rows.type, [&]<ElementType kType>() {
    row_dots_as<kType>(queries, num_queries, query_stride, rows, out, out_stride);
  });
}
KVEVICT_AVX2 inline void row_norms(RowBlock rows, float* out) noexcept {
  with_type(rows.type, [&]<ElementType kType>() { row_norms_as<kType>(rows, out); });
}
KVEVICT_AVX2 inline void row_variances(RowBlock rows, float* out) noexcept {
  with_type(rows.type, [&]<ElementType kType>() { row_variances_as<kType>(rows, out); });
}
KVEVICT_AVX2 inline void band_dots(const float* vectors, std::size_t num_vectors,
                                   std::ptrdiff_t vector_stride, RowBlock rows, bool interleaved,
                                   float* out, std::ptrdiff_t out_stride) noexcept {
  with_type(rows.type, [&]<ElementType kType>() {
    band_dots_as<kType>(vectors, num_vectors, vector_stride, rows, interleaved, out, out_stride);
  });
}
KVEVICT_AVX2 inline void projected_norms(const float* factor, RowBlock rows, float* out) noexcept {
  if (rows.dim > kMaxProjectedDim)
    return scalar::projected_norms(factor, rows, out);
  with_type(rows.type, [&]<ElementType kType>() { projected_norms_as<kType>(factor, rows, out); });
}

[[nodiscard]] KVEVICT_AVX2 inline double squared_distance(const float* a, const float* b,
                                                          std::size_t n) noexcept {
  WideSum squares = wide_zero();
  const auto whole = n / (2 * kLanes) * (2 * kLanes);
  for (std::size_t i = 0; i < whole; i += 2 * kLanes) {
    KVEVICT_UNROLL
    for (std::size_t c = 0; c < 4; ++c) {
      const __m256d difference = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + i + 4 * c)),
                                               _mm256_cvtps_pd(_mm_loadu_ps(b + i + 4 * c)));
      squares.chains[c] = _mm256_fmadd_pd(difference, difference, squares.chains[c]);
    }
  }
  for (std::size_t i = whole; i < n; i += kLanes) {
    const __m256 a_f32x8 = load_some(a, i, n);
    const __m256 b_f32x8 = load_some(b, i, n);
    add_squares(_mm256_sub_pd(low_half(a_f32x8), low_half(b_f32x8)),
                _mm256_sub_pd(high_half(a_f32x8), high_half(b_f32x8)), 0, squares);
  }
  return reduce(squares);
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

[[nodiscard]] KVEVICT_AVX2 inline float largest_lane(__m256 x_f32x8) noexcept {
  alignas(32) std::array<float, kLanes> lanes;
  _mm256_store_ps(lanes.data(), x_f32x8);
  return *std::max_element(lanes.begin(), lanes.end());
}

[[nodiscard]] KVEVICT_AVX2 inline float max_value(const float* x, std::size_t n) noexcept {
  __m256 largest[4];
  KVEVICT_UNROLL
  for (__m256& chain : largest)
    chain = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    // The instruction returns its second operand where one is NaN, so NaN never gets in.
    KVEVICT_UNROLL
    for (std::size_t c = 0; c < 4; ++c)
      largest[c] = _mm256_max_ps(_mm256_loadu_ps(x + i + c * kLanes), largest[c]);
  }
  const __m256 all =
      _mm256_max_ps(_mm256_max_ps(largest[0], largest[1]), _mm256_max_ps(largest[2], largest[3]));
  return std::max(largest_lane(all), scalar::max_value(x + i, n - i));
}

/// How many of n floats come before the first that lies at a multiple of 32 bytes. Stores across
/// cache lines cost twice: what is written in place is brought to them first.
[[nodiscard]] inline std::size_t floats_to_aligned(const float* x, std::size_t n) noexcept {
  const std::uintptr_t past = std::bit_cast<std::uintptr_t>(x) % (kLanes * sizeof(float));
  return past % sizeof(float) != 0 ? 0  // never aligned
                                   : std::min(n, (kLanes - past / sizeof(float)) % kLanes);
}

KVEVICT_AVX2 inline void scale(float factor, std::size_t n, float* x) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  std::size_t i = floats_to_aligned(x, n);
  scalar::scale(factor, i, x);
  for (; i + kLanes <= n; i += kLanes) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor_f32x8));
  }
  scalar::scale(factor, n - i, x + i);
}

/// All ones in the lanes of x that are neither infinite nor NaN.
[[nodiscard]] KVEVICT_AVX2 inline __m256 finite(__m256 x) noexcept {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
  return _mm256_cmp_ps(magnitude, _mm256_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ);
}

KVEVICT_AVX2 inline void standardise(double mean, double factor, std::size_t n, float* x) noexcept {
  const __m256d mean_f64x4 = _mm256_set1_pd(mean);
  const __m256d factor_f64x4 = _mm256_set1_pd(factor);
  constexpr std::size_t kStep = 4;
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const __m256d difference = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), mean_f64x4);
    _mm_storeu_ps(x + i, _mm256_cvtpd_ps(_mm256_mul_pd(difference, factor_f64x4)));
  }
  scalar::standardise(mean, factor, n - i, x + i);
}

KVEVICT_AVX2 inline void take_ranges(const float* x, std::size_t n, float* low,
                                     float* high) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(x + i) + 1024, _MM_HINT_T0);
    // The instructions return their second operand where one is NaN.
    const __m256 x_f32x8 = _mm256_loadu_ps(x + i);
    _mm256_storeu_ps(low + i, _mm256_min_ps(x_f32x8, _mm256_loadu_ps(low + i)));
    _mm256_storeu_ps(high + i, _mm256_max_ps(x_f32x8, _mm256_loadu_ps(high + i)));
  }
  scalar::take_ranges(x + i, n - i, low + i, high + i);
}

/// Eight channels of scaled_variance.
[[nodiscard]] KVEVICT_AVX2 inline __m256 scaled_channels(const float* x, const float* low,
                                                         const float* scales) noexcept {
  const __m256 scaled = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(low)),
                                      _mm256_loadu_ps(scales));
  return _mm256_and_ps(finite(scaled), scaled);
}

/// In float, of differences from the first channel: what all have in common goes without loss, and
/// the first channel's own difference from the mean counts too, so that one far off costs nothing.
KVEVICT_AVX2 inline float scaled_variance(const float* x, const float* low, const float* scales,
                                          std::size_t n) noexcept {
  alignas(32) std::array<float, scalar::kMaxWidenedDim> differences;
  if (n < kLanes || n > differences.size())
    return scalar::scaled_variance(x, low, scales, n);
  const float origin = scalar::scaled_channel(x[0], low[0], scales[0]);
  const __m256 origin_f32x8 = _mm256_set1_ps(origin);
  __m256 sum_f32x8 = _mm256_setzero_ps();
  std::size_t whole = 0;
  for (; whole + kLanes <= n; whole += kLanes) {
    const __m256 difference =
        _mm256_sub_ps(scaled_channels(x + whole, low + whole, scales + whole), origin_f32x8);
    _mm256_store_ps(differences.data() + whole, difference);
    sum_f32x8 = _mm256_add_ps(sum_f32x8, difference);
  }
  auto sum = static_cast<double>(reduce(sum_f32x8));
  for (std::size_t i = whole; i < n; ++i) {
    differences[i] = scalar::scaled_channel(x[i], low[i], scales[i]) - origin;
    sum += static_cast<double>(differences[i]);
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  const __m256 mean_f32x8 = _mm256_set1_ps(mean);
  const __m256 zero = _mm256_setzero_ps();
  __m256 squares[4] = {zero, zero, zero, zero};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    KVEVICT_UNROLL
    for (std::size_t c = 0; c < 4; ++c) {
      const __m256 difference =
          _mm256_sub_ps(_mm256_load_ps(differences.data() + i + c * kLanes), mean_f32x8);
      squares[c] = _mm256_fmadd_ps(difference, difference, squares[c]);
    }
  }
  for (; i < whole; i += kLanes) {
    const __m256 difference = _mm256_sub_ps(_mm256_load_ps(differences.data() + i), mean_f32x8);
    squares[0] = _mm256_fmadd_ps(difference, difference, squares[0]);
  }
  auto total = static_cast<double>(reduce(
      _mm256_add_ps(_mm256_add_ps(squares[0], squares[1]), _mm256_add_ps(squares[2], squares[3]))));
  for (; i < n; ++i) {
    const auto difference = static_cast<double>(differences[i] - mean);
    total += difference * difference;
  }
  // Not finite: beyond a float, though the variance may be none.
  return std::isfinite(total) ? static_cast<float>(total / static_cast<double>(n - 1))
                              : scalar::scaled_variance(x, low, scales, n);
}

KVEVICT_AVX2 inline std::size_t scale_logits(float factor, std::size_t n, float* x,
                                             float& largest) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  const __m256 finite_f32x8 = _mm256_set1_ps(std::numeric_limits<float>::max());
  __m256 largest_f32x8 = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  std::size_t non_finite = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 x_f32x8 = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor_f32x8);
    _mm256_storeu_ps(x + i, x_f32x8);
    largest_f32x8 = _mm256_max_ps(x_f32x8, largest_f32x8);
    const int wrong = _mm256_movemask_ps(_mm256_cmp_ps(x_f32x8, finite_f32x8, _CMP_NLE_UQ));
    non_finite += static_cast<std::size_t>(std::popcount(static_cast<unsigned>(wrong)));
  }
  float rest;
  non_finite += scalar::scale_logits(factor, n - i, x + i, rest);
  largest = std::max(largest_lane(largest_f32x8), rest);
  return non_finite;
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

/// exp_shifted of eight entries. Larger than the shift by more than 80 is left to the scalar form,
/// lane by lane, since it may overflow.
[[nodiscard]] KVEVICT_AVX2 inline __m256 exp_lanes(__m256 x, __m256 shift) noexcept {
  const __m256 shifted = _mm256_sub_ps(x, shift);
  const __m256 ordered = _mm256_cmp_ps(x, x, _CMP_ORD_Q);
  const __m256 e = _mm256_and_ps(ordered, exp_f32x8(shifted));
  const int large = _mm256_movemask_ps(_mm256_cmp_ps(shifted, _mm256_set1_ps(80.0F), _CMP_GT_OQ));
  if (large == 0)
    return e;
  alignas(32) std::array<float, kLanes> lanes;
  alignas(32) std::array<float, kLanes> differences;
  _mm256_store_ps(lanes.data(), e);
  _mm256_store_ps(differences.data(), shifted);
  for (std::size_t i = 0; i < kLanes; ++i) {
    if ((large >> i & 1) != 0)
      lanes[i] = std::exp(differences[i]);
  }
  return _mm256_load_ps(lanes.data());
}

// The last entries take the same path as all others, so that equal ones stay equal.
KVEVICT_AVX2 inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  if (!std::isfinite(shift))
    return scalar::exp_shifted(shift, n, x);
  const __m256 shift_f32x8 = _mm256_set1_ps(shift);
  __m256d low_f64x4 = _mm256_setzero_pd();
  __m256d high_f64x4 = _mm256_setzero_pd();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 e_f32x8 = exp_lanes(_mm256_loadu_ps(x + i), shift_f32x8);
    _mm256_storeu_ps(x + i, e_f32x8);
    low_f64x4 = _mm256_add_pd(low_f64x4, low_half(e_f32x8));
    high_f64x4 = _mm256_add_pd(high_f64x4, high_half(e_f32x8));
  }
  double total = reduce(_mm256_add_pd(low_f64x4, high_f64x4));
  if (i < n) {
    alignas(32) std::array<float, kLanes> lanes;
    _mm256_store_ps(lanes.data(), exp_lanes(load_some(x, i, n), shift_f32x8));
    for (std::size_t j = 0; i < n; ++i, ++j) {
      x[i] = lanes[j];
      total += static_cast<double>(lanes[j]);
    }
  }
  return total;
}

/// tanh: near zero an odd polynomial (the minimax one of the Cephes library), 1 - 2 / (e^2x + 1)
/// elsewhere; relative error below 2e-7.
[[nodiscard]] KVEVICT_AVX2 inline __m256 tanh_f32x8(__m256 x) noexcept {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 one = _mm256_set1_ps(1.0F);
  // From 10 on it is 1.
  const __m256 magnitude = _mm256_min_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(10.0F));
  const __m256 square = _mm256_mul_ps(x, x);
  __m256 p = _mm256_set1_ps(-5.70498872745e-3F);
  p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(2.06390887954e-2F));
  p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(-5.37397155531e-2F));
  p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(1.33314422036e-1F));
  p = _mm256_fmadd_ps(p, square, _mm256_set1_ps(-3.33332819422e-1F));
  const __m256 near_zero = _mm256_fmadd_ps(_mm256_mul_ps(p, square), x, x);
  const __m256 e = exp_f32x8(_mm256_add_ps(magnitude, magnitude));
  const __m256 far = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0F), _mm256_add_ps(e, one)));
  const __m256 is_far = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0.625F), _CMP_GE_OQ);
  return _mm256_blendv_ps(near_zero, _mm256_or_ps(far, _mm256_and_ps(sign, x)), is_far);
}

[[nodiscard]] KVEVICT_AVX2 inline __m256 capped(__m256 x, __m256 cap) noexcept {
  const __m256 y = _mm256_mul_ps(cap, tanh_f32x8(_mm256_div_ps(x, cap)));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
KVEVICT_AVX2 inline void soft_cap(float cap, std::size_t n, float* x) noexcept {
  const __m256 cap_f32x8 = _mm256_set1_ps(cap);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_ps(x + i, capped(_mm256_loadu_ps(x + i), cap_f32x8));
  if (i < n) {
    alignas(32) std::array<float, kLanes> lanes;
    _mm256_store_ps(lanes.data(), capped(load_some(x, i, n), cap_f32x8));
    std::copy_n(lanes.begin(), n - i, x + i);
  }
}

/// Each lane of `skipped` counts where `wanted` is zero.
KVEVICT_AVX2 inline void add_unwanted(__m256 wanted, __m256i& skipped) noexcept {
  skipped = _mm256_add_epi32(
      skipped, _mm256_andnot_si256(_mm256_castps_si256(wanted), _mm256_set1_epi32(1)));
}

/// Stores `next` over `old` where `sample` is finite; each lane of `skipped` counts where it is
/// not.
KVEVICT_AVX2 inline void store_finite(__m256 sample, __m256 old, __m256 next, float* y,
                                      __m256i& skipped) noexcept {
  const __m256 wanted = finite(sample);
  _mm256_storeu_ps(y, _mm256_blendv_ps(old, next, wanted));
  add_unwanted(wanted, skipped);
}
[[nodiscard]] KVEVICT_AVX2 inline std::size_t count(__m256i lanes) noexcept {
  alignas(32) std::array<std::uint32_t, kLanes> counts;
  _mm256_store_si256(reinterpret_cast<__m256i*>(counts.data()), lanes);
  std::size_t total = 0;
  for (const std::uint32_t lane : counts)
    total += lane;
  return total;
}

KVEVICT_AVX2 inline void add_eight(__m256 factor_f32x8, const float* x, float* y,
                                   __m256i& skipped) noexcept {
  __m256 sample = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x));
  KVEVICT_ROUND(sample);
  const __m256 old = _mm256_loadu_ps(y);
  store_finite(sample, old, _mm256_add_ps(old, sample), y, skipped);
}
// Rows come from memory, and what they are added to is in cache: a few lines ahead hide the start
// of every page of 4 KiB.
KVEVICT_AVX2 inline std::size_t add(float factor, const float* x, std::size_t n,
                                    float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = floats_to_aligned(y, n);
  const std::size_t before = scalar::add(factor, x, i, y);
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(x + i) + 1024, _MM_HINT_T0);
    add_eight(factor_f32x8, x + i, y + i, skipped);
    add_eight(factor_f32x8, x + i + kLanes, y + i + kLanes, skipped);
  }
  return before + count(skipped) + scalar::add(factor, x + i, n - i, y + i);
}

inline constexpr std::size_t kRowsAtATime = 8;  // more at once are more than a processor foresees

/// Eight entries of add_rows.
KVEVICT_AVX2 inline void add_rows_eight(const float* factors, const float* x,
                                        std::ptrdiff_t row_stride, std::size_t num_rows, float* y,
                                        __m256i& skipped) noexcept {
  __m256 sum = _mm256_loadu_ps(y);
  for (std::size_t r = 0; r < num_rows; ++r) {
    __m256 sample = _mm256_mul_ps(_mm256_set1_ps(factors[r]),
                                  _mm256_loadu_ps(x + static_cast<std::ptrdiff_t>(r) * row_stride));
    KVEVICT_ROUND(sample);
    const __m256 wanted = finite(sample);
    sum = _mm256_blendv_ps(sum, _mm256_add_ps(sum, sample), wanted);
    add_unwanted(wanted, skipped);
  }
  _mm256_storeu_ps(y, sum);
}
KVEVICT_AVX2 inline std::size_t add_rows(const float* factors, const float* x,
                                         std::ptrdiff_t row_stride, std::size_t num_rows,
                                         std::size_t n, float* y) noexcept {
  const std::size_t before = floats_to_aligned(y, n);
  std::size_t total = scalar::add_rows_by<scalar::add>(factors, x, row_stride, num_rows, before, y);
  const std::size_t last = before + (n - before) / kLanes * kLanes;
  for (std::size_t r = 0; r < num_rows; r += kRowsAtATime) {
    const float* const rows = x + static_cast<std::ptrdiff_t>(r) * row_stride;
    const std::size_t count_rows = std::min(kRowsAtATime, num_rows - r);
    __m256i skipped = _mm256_setzero_si256();
    for (std::size_t i = before; i < last; i += kLanes)
      add_rows_eight(factors + r, rows + i, row_stride, count_rows, y + i, skipped);
    total += count(skipped);
  }
  return total + scalar::add_rows_by<scalar::add>(factors, x + last, row_stride, num_rows, n - last,
                                                  y + last);
}

KVEVICT_AVX2 inline std::size_t add_squared(float factor, const float* x, std::size_t n,
                                            float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = floats_to_aligned(y, n);
  const std::size_t before = scalar::add_squared(factor, x, i, y);
  for (; i + kLanes <= n; i += kLanes) {
    const __m256 scaled = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x + i));
    __m256 sample = _mm256_mul_ps(scaled, scaled);
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_add_ps(old, sample), y + i, skipped);
  }
  return before + count(skipped) + scalar::add_squared(factor, x + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t add_product(float factor, const float* a, const float* b,
                                            std::size_t n, float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = floats_to_aligned(y, n);
  const std::size_t before = scalar::add_product(factor, a, b, i, y);
  for (; i + kLanes <= n; i += kLanes) {
    __m256 sample =
        _mm256_mul_ps(_mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(a + i)), _mm256_loadu_ps(b + i));
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_add_ps(old, sample), y + i, skipped);
  }
  return before + count(skipped) + scalar::add_product(factor, a + i, b + i, n - i, y + i);
}

KVEVICT_AVX2 inline std::size_t take_max(float factor, const float* x, std::size_t n,
                                         float* y) noexcept {
  const __m256 factor_f32x8 = _mm256_set1_ps(factor);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = floats_to_aligned(y, n);
  const std::size_t before = scalar::take_max(factor, x, i, y);
  for (; i + kLanes <= n; i += kLanes) {
    __m256 sample = _mm256_mul_ps(factor_f32x8, _mm256_loadu_ps(x + i));
    KVEVICT_ROUND(sample);
    const __m256 old = _mm256_loadu_ps(y + i);
    store_finite(sample, old, _mm256_max_ps(sample, old), y + i, skipped);
  }
  return before + count(skipped) + scalar::take_max(factor, x + i, n - i, y + i);
}

KVEVICT_AVX2 inline void ema_eight(__m256 decay_f32x8, __m256 rest_f32x8, const float* sample,
                                   float* state, __m256i& skipped) noexcept {
  const __m256 sample_f32x8 = _mm256_loadu_ps(sample);
  const __m256 old = _mm256_loadu_ps(state);
  __m256 old_part = _mm256_mul_ps(decay_f32x8, old);
  __m256 new_part = _mm256_mul_ps(rest_f32x8, sample_f32x8);
  KVEVICT_ROUND(old_part);
  KVEVICT_ROUND(new_part);
  const __m256 next = _mm256_add_ps(old_part, new_part);
  const __m256 normal =
      _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), next),
                    _mm256_set1_ps(std::numeric_limits<float>::min()), _CMP_NLT_UQ);
  store_finite(sample_f32x8, old, _mm256_and_ps(normal, next), state, skipped);
}
KVEVICT_AVX2 inline std::size_t ema(float decay, const float* sample, std::size_t n,
                                    float* state) noexcept {
  const __m256 decay_f32x8 = _mm256_set1_ps(decay);
  const __m256 rest_f32x8 = _mm256_set1_ps(1.0F - decay);
  __m256i skipped = _mm256_setzero_si256();
  std::size_t i = floats_to_aligned(state, n);
  const std::size_t before = scalar::ema(decay, sample, i, state);
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    ema_eight(decay_f32x8, rest_f32x8, sample + i, state + i, skipped);
    ema_eight(decay_f32x8, rest_f32x8, sample + i + kLanes, state + i + kLanes, skipped);
  }
  return before + count(skipped) + scalar::ema(decay, sample + i, n - i, state + i);
}

// The mean under the kernel for 8 entries at once where the whole kernel fits in; added up in the
// order of the scalar form, so the bits are the same.
KVEVICT_AVX2 inline void average_pool(const float* x, std::size_t n, std::size_t kernel,
                                      PoolEdge edge, float* out) noexcept {
  const std::size_t reach = kernel / 2;
  const __m256d share_f64x4 = _mm256_set1_pd(1.0 / static_cast<double>(kernel));
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
    _mm_storeu_ps(out + i, _mm256_cvtpd_ps(_mm256_mul_pd(low_f64x4, share_f64x4)));
    _mm_storeu_ps(out + i + 4, _mm256_cvtpd_ps(_mm256_mul_pd(high_f64x4, share_f64x4)));
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

/// order_key as a signed integer: the topmost bit is the other one.
[[nodiscard]] KVEVICT_AVX2 inline __m256i signed_keys(__m256 x) noexcept {
  const __m256i bits = _mm256_castps_si256(
      _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ), x));  // -0 is +0
  const __m256i negative = _mm256_srli_epi32(_mm256_srai_epi32(bits, 31), 1);
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(_mm256_xor_si256(bits, negative)),
                                              _mm256_set1_ps(-0.0F), nan));
}

KVEVICT_AVX2 inline void order_keys(const float* x, std::size_t n, std::uint32_t* keys) noexcept {
  const __m256i top = _mm256_castps_si256(_mm256_set1_ps(-0.0F));
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + i),
                        _mm256_xor_si256(signed_keys(_mm256_loadu_ps(x + i)), top));
  }
  scalar::order_keys(x + i, n - i, keys + i);
}

[[nodiscard]] KVEVICT_AVX2 inline std::uint32_t lowest_key(const float* x, std::size_t n) noexcept {
  __m256i lowest[2] = {_mm256_set1_epi32(std::numeric_limits<std::int32_t>::max()),
                       _mm256_set1_epi32(std::numeric_limits<std::int32_t>::max())};
  std::size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    lowest[0] = _mm256_min_epi32(lowest[0], signed_keys(_mm256_loadu_ps(x + i)));
    lowest[1] = _mm256_min_epi32(lowest[1], signed_keys(_mm256_loadu_ps(x + i + kLanes)));
  }
  alignas(32) std::array<std::int32_t, kLanes> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()),
                     _mm256_min_epi32(lowest[0], lowest[1]));
  const std::int32_t least = *std::min_element(lanes.begin(), lanes.end());
  return std::min(static_cast<std::uint32_t>(least) ^ 0x80000000U,
                  scalar::lowest_key(x + i, n - i));
}

[[nodiscard]] KVEVICT_AVX2 inline KeyBits compare_keys(const float* x, std::size_t n,
                                                       std::uint32_t lowest,
                                                       std::uint32_t highest) noexcept {
  const __m256i lowest_i32x8 = _mm256_set1_epi32(static_cast<std::int32_t>(lowest ^ 0x80000000U));
  const __m256i highest_i32x8 = _mm256_set1_epi32(static_cast<std::int32_t>(highest ^ 0x80000000U));
  std::uint64_t above = 0;
  std::uint64_t below = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256i keys = signed_keys(_mm256_loadu_ps(x + i));
    const __m256 over = _mm256_castsi256_ps(_mm256_cmpgt_epi32(keys, highest_i32x8));
    const __m256 under = _mm256_castsi256_ps(_mm256_cmpgt_epi32(lowest_i32x8, keys));
    above |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_ps(over))} << i;
    below |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_ps(under))} << i;
  }
  const std::uint64_t whole = i < 64 ? (std::uint64_t{1} << i) - 1 : ~std::uint64_t{0};
  KeyBits bits{above, whole & ~above & ~below};
  if (i < n) {
    const KeyBits rest = scalar::compare_keys(x + i, n - i, lowest, highest);
    bits.above |= rest.above << i;
    bits.inside |= rest.inside << i;
  }
  return bits;
}

inline constexpr KernelSet kSet{
    .isa = Isa::kAvx2,
    .widen = widen,
    .row_dots = row_dots,
    .row_norms = row_norms,
    .row_variances = row_variances,
    .projected_norms = projected_norms,
    .band_dots = band_dots,
    .squared_distance = squared_distance,
    .sum = sum,
    .max_value = max_value,
    .scale = scale,
    .standardise = standardise,
    .scale_logits = scale_logits,
    .take_ranges = take_ranges,
    .scaled_variance = scaled_variance,
    .soft_cap = soft_cap,
    .exp_shifted = exp_shifted,
    .add = add,
    .add_rows = add_rows,
    .add_squared = add_squared,
    .add_product = add_product,
    .take_max = take_max,
    .ema = ema,
    .average_pool = average_pool,
    .max_pool = max_pool,
    .order_keys = order_keys,
    .lowest_key = lowest_key,
    .compare_keys = compare_keys,
};

}  // namespace kernels::avx2
KVEVICT_NAMESPACE_END

#undef KVEVICT_AVX2

#endif  // KVEVICT_KERNELS_AVX2_HPP_
