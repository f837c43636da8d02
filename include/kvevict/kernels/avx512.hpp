#ifndef KVEVICT_KERNELS_AVX512_HPP_
#define KVEVICT_KERNELS_AVX512_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/avx2.hpp"
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
#include <limits>

// AVX-512 F, BW, VL, DQ. Tails are masked loads, so every element takes the same path.
#define KVEVICT_AVX512 KVEVICT_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

KVEVICT_NAMESPACE_BEGIN
namespace kernels::avx512 {

inline constexpr std::size_t kLanes = 16;

// The unmasked forms of some intrinsics are written with an uninitialised operand in GCC 12's
// headers, which warns about it in the user's build. With all lanes set, these are the same
// instructions.
inline constexpr __mmask16 kAll16 = 0xFFFF;
inline constexpr __mmask8 kAll8 = 0xFF;

/// The mask of the first min(count, 16) lanes.
[[nodiscard]] inline __mmask16 first_lanes(std::size_t count) noexcept {
  return count >= kLanes ? static_cast<__mmask16>(0xFFFF)
                         : static_cast<__mmask16>((1U << count) - 1U);
}

/// Elements `index`.. of a row as float; lanes outside the mask are 0 and not read. `index` is a
/// multiple of 16 where the type has blocks.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX512 inline __m512 load(const std::byte* row, std::size_t index,
                                                __mmask16 mask) noexcept {
  if constexpr (kType == ElementType::kF32) {
    return _mm512_maskz_loadu_ps(mask, row + 4 * index);
  } else if constexpr (kType == ElementType::kQ8_0) {
    const BlockPlace place = q8_0_place(row, index);
    const __m128i bytes = _mm_maskz_loadu_epi8(mask, place.bytes);
    const __m512 scale =
        _mm512_maskz_cvtph_ps(kAll16, _mm256_set1_epi16(static_cast<std::int16_t>(place.scale)));
    return _mm512_maskz_mul_ps(
        mask, scale, _mm512_maskz_cvtepi32_ps(kAll16, _mm512_maskz_cvtepi8_epi32(kAll16, bytes)));
  } else {
    const __m256i halves = _mm256_maskz_loadu_epi16(mask, row + 2 * index);
    if constexpr (kType == ElementType::kF16) {
      return _mm512_maskz_cvtph_ps(kAll16, halves);
    } else {
      return _mm512_castsi512_ps(
          _mm512_maskz_slli_epi32(kAll16, _mm512_maskz_cvtepu16_epi32(kAll16, halves), 16));
    }
  }
}

/// Sum of the lanes, always in the same order.
[[nodiscard]] KVEVICT_AVX512 inline float reduce(__m512 x_f32x16) noexcept {
  const __m256 sum_f32x8 = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(kAll8, x_f32x16, 0),
                                         _mm512_maskz_extractf32x8_ps(kAll8, x_f32x16, 1));
  const __m128 sum_f32x4 =
      _mm_add_ps(_mm256_castps256_ps128(sum_f32x8), _mm256_extractf128_ps(sum_f32x8, 1));
  const __m128 sum_f32x2 = _mm_add_ps(sum_f32x4, _mm_movehl_ps(sum_f32x4, sum_f32x4));
  return _mm_cvtss_f32(_mm_add_ss(sum_f32x2, _mm_movehdup_ps(sum_f32x2)));
}
[[nodiscard]] KVEVICT_AVX512 inline double reduce(__m512d x_f64x8) noexcept {
  const __m256d sum_f64x4 = _mm256_add_pd(_mm512_maskz_extractf64x4_pd(kAll8, x_f64x8, 0),
                                          _mm512_maskz_extractf64x4_pd(kAll8, x_f64x8, 1));
  const __m128d sum_f64x2 =
      _mm_add_pd(_mm256_castpd256_pd128(sum_f64x4), _mm256_extractf128_pd(sum_f64x4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum_f64x2, _mm_unpackhi_pd(sum_f64x2, sum_f64x2)));
}
[[nodiscard]] KVEVICT_AVX512 inline __m512d low_half(__m512 x_f32x16) noexcept {
  return _mm512_maskz_cvtps_pd(kAll8, _mm512_maskz_extractf32x8_ps(kAll8, x_f32x16, 0));
}
[[nodiscard]] KVEVICT_AVX512 inline __m512d high_half(__m512 x_f32x16) noexcept {
  return _mm512_maskz_cvtps_pd(kAll8, _mm512_maskz_extractf32x8_ps(kAll8, x_f32x16, 1));
}

template <ElementType kType>
KVEVICT_AVX512 inline void widen_as(const std::byte* source, std::size_t n,
                                    float* destination) noexcept {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    _mm512_mask_storeu_ps(destination + i, mask, load<kType>(source, i, mask));
  }
}

/// Sums of the lanes of sixteen vectors, each in the order of reduce(): that of rows[r][q] is lane
/// r of quarter q. Inlined always: else the vectors are kept in memory while they are added up.
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline __m512 reduce_each(
    const __m512 (&rows)[4][4]) noexcept {
  __m512 quarters[4];
  KVEVICT_UNROLL
  for (std::size_t r = 0; r < 4; ++r) {
    __m512 halves[2];
    KVEVICT_UNROLL
    for (std::size_t i = 0; i < 2; ++i) {
      const __m512 first = rows[r][2 * i];
      const __m512 second = rows[r][2 * i + 1];
      halves[i] = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll16, first, second, 0x44),
                                _mm512_maskz_shuffle_f32x4(kAll16, first, second, 0xEE));
    }
    quarters[r] = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll16, halves[0], halves[1], 0x88),
                                _mm512_maskz_shuffle_f32x4(kAll16, halves[0], halves[1], 0xDD));
  }
  __m512 eighths[2];
  KVEVICT_UNROLL
  for (std::size_t i = 0; i < 2; ++i) {
    eighths[i] =
        _mm512_add_ps(_mm512_maskz_shuffle_ps(kAll16, quarters[2 * i], quarters[2 * i + 1], 0x44),
                      _mm512_maskz_shuffle_ps(kAll16, quarters[2 * i], quarters[2 * i + 1], 0xEE));
  }
  return _mm512_add_ps(_mm512_maskz_shuffle_ps(kAll16, eighths[0], eighths[1], 0x88),
                       _mm512_maskz_shuffle_ps(kAll16, eighths[0], eighths[1], 0xDD));
}

/// The product of one query with one row.
template <ElementType kType>
[[nodiscard]] KVEVICT_AVX512 inline float dot(const float* query, const std::byte* row,
                                              std::size_t dim) noexcept {
  __m512 sum_f32x16 = _mm512_setzero_ps();
  for (std::size_t c = 0; c < dim; c += kLanes) {
    const __mmask16 mask = first_lanes(dim - c);
    sum_f32x16 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, query + c), load<kType>(row, c, mask),
                                 sum_f32x16);
  }
  return reduce(sum_f32x16);
}

/// The products of `kQueries` (1, 2 or 4) queries with 16 / kQueries rows: sixteen sums, more than
/// hide the latency of the multiply-add. `kWhole` says that dim is a multiple of sixteen. The
/// barriers keep a load a load: compilers fold it into each of its uses.
template <ElementType kType, std::size_t kQueries, bool kWhole>
[[gnu::always_inline]] KVEVICT_AVX512 inline void dot_tile(const float* queries,
                                                           std::ptrdiff_t query_stride,
                                                           const std::byte* rows,
                                                           std::ptrdiff_t row_stride_bytes,
                                                           std::size_t dim, float* out,
                                                           std::ptrdiff_t out_stride) noexcept {
  __m512 sums[4][4];  // of query q and row r: [r % 4][r / 4 * kQueries + q]
  KVEVICT_UNROLL
  for (auto& four : sums) {
    KVEVICT_UNROLL
    for (__m512& sum : four)
      sum = _mm512_setzero_ps();
  }
  for (std::size_t c = 0; c < dim; c += kLanes) {
    const __mmask16 mask = kWhole ? kAll16 : first_lanes(dim - c);
    __m512 query[kQueries];
    KVEVICT_UNROLL
    for (std::size_t q = 0; q < kQueries; ++q) {
      query[q] =
          _mm512_maskz_loadu_ps(mask, queries + static_cast<std::ptrdiff_t>(q) * query_stride + c);
      KVEVICT_ROUND_ZMM(query[q]);
    }
    KVEVICT_UNROLL
    for (std::size_t r = 0; r < 16 / kQueries; ++r) {
      __m512 row = load<kType>(rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes, c, mask);
      KVEVICT_ROUND_ZMM(row);
      KVEVICT_UNROLL
      for (std::size_t q = 0; q < kQueries; ++q) {
        __m512& sum = sums[r % 4][r / 4 * kQueries + q];
        sum = _mm512_fmadd_ps(query[q], row, sum);
      }
    }
  }
  const __m512 all = reduce_each(sums);
  const auto place = [out, out_stride](std::size_t quarter) {
    return out + static_cast<std::ptrdiff_t>(quarter % kQueries) * out_stride +
           quarter / kQueries * 4;
  };
  _mm_storeu_ps(place(0), _mm512_maskz_extractf32x4_ps(kAll8, all, 0));
  _mm_storeu_ps(place(1), _mm512_maskz_extractf32x4_ps(kAll8, all, 1));
  _mm_storeu_ps(place(2), _mm512_maskz_extractf32x4_ps(kAll8, all, 2));
  _mm_storeu_ps(place(3), _mm512_maskz_extractf32x4_ps(kAll8, all, 3));
}

/// The products of `kQueries` queries with sixteen rows.
template <ElementType kType, std::size_t kQueries, bool kWhole>
KVEVICT_AVX512 inline void dot_sixteen(const float* queries, std::ptrdiff_t query_stride,
                                       const std::byte* rows, std::ptrdiff_t row_stride_bytes,
                                       std::size_t dim, float* out,
                                       std::ptrdiff_t out_stride) noexcept {
  constexpr std::ptrdiff_t kRows = 16 / kQueries;
  for (std::ptrdiff_t r = 0; r < 16; r += kRows) {
    dot_tile<kType, kQueries, kWhole>(queries, query_stride, rows + r * row_stride_bytes,
                                      row_stride_bytes, dim, out + r, out_stride);
  }
}

/// The products of many queries with sixteen rows; from `next` on lie the rows of `all` that
/// follow.
template <ElementType kType, bool kWhole>
KVEVICT_AVX512 inline void dot_block(const float* queries, std::size_t num_queries,
                                     std::ptrdiff_t query_stride, const std::byte* rows,
                                     std::ptrdiff_t row_stride_bytes, std::size_t dim, float* out,
                                     std::ptrdiff_t out_stride, const RowBlock& all,
                                     std::size_t next) noexcept {
  const std::size_t last = next + 16;
  const std::size_t num_turns = num_queries / 4 + num_queries % 4 / 2 + num_queries % 2;
  const std::size_t rows_per_turn = num_turns == 0 ? 0 : (16 + num_turns - 1) / num_turns;
  for (std::size_t q = 0; q < num_queries;) {
    avx2::prefetch_rows(all, std::min(next, last), std::min(next + rows_per_turn, last));
    next += rows_per_turn;
    const float* query = queries + static_cast<std::ptrdiff_t>(q) * query_stride;
    float* target = out + static_cast<std::ptrdiff_t>(q) * out_stride;
    if (q + 4 <= num_queries) {
      dot_sixteen<kType, 4, kWhole>(query, query_stride, rows, row_stride_bytes, dim, target,
                                    out_stride);
      q += 4;
    } else if (q + 2 <= num_queries) {
      dot_sixteen<kType, 2, kWhole>(query, query_stride, rows, row_stride_bytes, dim, target,
                                    out_stride);
      q += 2;
    } else {
      dot_sixteen<kType, 1, kWhole>(query, query_stride, rows, row_stride_bytes, dim, target,
                                    out_stride);
      ++q;
    }
  }
}

/// The products of queries with fewer than sixteen rows.
template <ElementType kType>
KVEVICT_AVX512 inline void dot_rest(const float* queries, std::size_t num_queries,
                                    std::ptrdiff_t query_stride, const RowBlock& rows,
                                    std::size_t first, float* out,
                                    std::ptrdiff_t out_stride) noexcept {
  std::size_t i = first;
  const std::size_t in_fours = num_queries / 4 * 4;
  for (; i + 4 <= rows.num_rows; i += 4) {
    for (std::size_t q = 0; q < in_fours; q += 4) {
      dot_tile<kType, 4, false>(queries + static_cast<std::ptrdiff_t>(q) * query_stride,
                                query_stride, scalar::row_of(rows, i), rows.stride_bytes, rows.dim,
                                out + static_cast<std::ptrdiff_t>(q) * out_stride + i, out_stride);
    }
  }
  for (std::size_t r = first; r < rows.num_rows; ++r) {
    for (std::size_t q = r < i ? in_fours : 0; q < num_queries; ++q) {
      out[static_cast<std::ptrdiff_t>(q) * out_stride + static_cast<std::ptrdiff_t>(r)] =
          dot<kType>(queries + static_cast<std::ptrdiff_t>(q) * query_stride,
                     scalar::row_of(rows, r), rows.dim);
    }
  }
}

template <ElementType kType>
KVEVICT_AVX512 inline void row_dots_as(const float* queries, std::size_t num_queries,
                                       std::ptrdiff_t query_stride, const RowBlock& rows,
                                       float* out, std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = 16;
  // From a few queries on it pays to widen sixteen rows once for all of them.
  const bool widens =
      kType != ElementType::kF32 && num_queries > 4 && rows.dim <= scalar::kMaxWidenedDim;
  alignas(64) float widened[kType == ElementType::kF32 ? 1 : kRows * scalar::kMaxWidenedDim];
  const bool whole = rows.dim % kLanes == 0;
  std::size_t i = 0;
  for (; i + kRows <= rows.num_rows; i += kRows) {
    if (widens) {
      for (std::size_t r = 0; r < kRows; ++r)
        widen_as<kType>(scalar::row_of(rows, i + r), rows.dim, widened + r * rows.dim);
      const auto stride = static_cast<std::ptrdiff_t>(rows.dim * sizeof(float));
      const auto* block = reinterpret_cast<const std::byte*>(widened);
      if (whole) {
        dot_block<ElementType::kF32, true>(queries, num_queries, query_stride, block, stride,
                                           rows.dim, out + i, out_stride, rows, i + kRows);
      } else {
        dot_block<ElementType::kF32, false>(queries, num_queries, query_stride, block, stride,
                                            rows.dim, out + i, out_stride, rows, i + kRows);
      }
    } else if (whole) {
      dot_block<kType, true>(queries, num_queries, query_stride, scalar::row_of(rows, i),
                             rows.stride_bytes, rows.dim, out + i, out_stride, rows, i + kRows);
    } else {
      dot_block<kType, false>(queries, num_queries, query_stride, scalar::row_of(rows, i),
                              rows.stride_bytes, rows.dim, out + i, out_stride, rows, i + kRows);
    }
  }
  dot_rest<kType>(queries, num_queries, query_stride, rows, i, out, out_stride);
}

template <ElementType kType>
KVEVICT_AVX512 inline void row_norms_as(const RowBlock& rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
    avx2::prefetch_rows(rows, i + 8, i + 9);
    __m512d low_f64x8 = _mm512_setzero_pd();
    __m512d high_f64x8 = _mm512_setzero_pd();
    for (std::size_t c = 0; c < rows.dim; c += kLanes) {
      const __m512 x_f32x16 = load<kType>(row, c, first_lanes(rows.dim - c));
      low_f64x8 = _mm512_fmadd_pd(low_half(x_f32x16), low_half(x_f32x16), low_f64x8);
      high_f64x8 = _mm512_fmadd_pd(high_half(x_f32x16), high_half(x_f32x16), high_f64x8);
    }
    out[i] = static_cast<float>(std::sqrt(reduce(_mm512_add_pd(low_f64x8, high_f64x8))));
  }
}

template <ElementType kType>
KVEVICT_AVX512 inline void row_variances_as(const RowBlock& rows, float* out) noexcept {
  const auto dim = static_cast<double>(rows.dim);
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
    avx2::prefetch_rows(rows, i + 8, i + 9);
    __m512d low_f64x8 = _mm512_setzero_pd();
    __m512d high_f64x8 = _mm512_setzero_pd();
    for (std::size_t c = 0; c < rows.dim; c += kLanes) {
      const __m512 x_f32x16 = load<kType>(row, c, first_lanes(rows.dim - c));
      low_f64x8 = _mm512_add_pd(low_f64x8, low_half(x_f32x16));
      high_f64x8 = _mm512_add_pd(high_f64x8, high_half(x_f32x16));
    }
    const __m512d mean_f64x8 = _mm512_set1_pd(reduce(_mm512_add_pd(low_f64x8, high_f64x8)) / dim);
    low_f64x8 = high_f64x8 = _mm512_setzero_pd();
    for (std::size_t c = 0; c < rows.dim; c += kLanes) {
      const __mmask16 mask = first_lanes(rows.dim - c);
      const __m512 x_f32x16 = load<kType>(row, c, mask);
      const __m512d low =
          _mm512_maskz_sub_pd(static_cast<__mmask8>(mask), low_half(x_f32x16), mean_f64x8);
      const __m512d high =
          _mm512_maskz_sub_pd(static_cast<__mmask8>(mask >> 8), high_half(x_f32x16), mean_f64x8);
      low_f64x8 = _mm512_fmadd_pd(low, low, low_f64x8);
      high_f64x8 = _mm512_fmadd_pd(high, high, high_f64x8);
    }
    const double total = reduce(_mm512_add_pd(low_f64x8, high_f64x8));
    out[i] = rows.dim > 1 ? static_cast<float>(total / (dim - 1.0)) : 0.0F;
  }
}

inline constexpr std::size_t kMaxProjectedDim = 512;

/// Columns j .. j + 16 kVectors of C^T v for each of `kRows` rows, squared and added to `squares`.
/// Row j of C^T v is summed over c >= j only, so the upper triangle is skipped 16 columns at a
/// time.
template <std::size_t kRows, std::size_t kVectors>
[[gnu::always_inline]] KVEVICT_AVX512 inline void add_projected_columns(
    const float* factor, std::size_t dim, std::size_t j, const float (*values)[kMaxProjectedDim],
    __m512d* squares) noexcept {
  const __mmask16 mask = first_lanes(dim - j - (kVectors - 1) * kLanes);  // of the last vector
  __m512 sum_f32x16[kRows][kVectors];
  KVEVICT_UNROLL
  for (auto& row : sum_f32x16) {
    KVEVICT_UNROLL
    for (__m512& sum : row)
      sum = _mm512_setzero_ps();
  }
  std::size_t c = j;
  if constexpr (kVectors == 2) {
    for (; c < j + kLanes; ++c) {
      const __m512 factor_f32x16 = _mm512_loadu_ps(factor + c * dim + j);
      KVEVICT_UNROLL
      for (std::size_t r = 0; r < kRows; ++r) {
        sum_f32x16[r][0] =
            _mm512_fmadd_ps(_mm512_set1_ps(values[r][c]), factor_f32x16, sum_f32x16[r][0]);
      }
    }
  }
  for (; c < dim; ++c) {
    __m512 factor_f32x16[kVectors];
    KVEVICT_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __mmask16 lanes = v + 1 < kVectors ? kAll16 : mask;
      factor_f32x16[v] = _mm512_maskz_loadu_ps(lanes, factor + c * dim + j + v * kLanes);
      KVEVICT_ROUND_ZMM(factor_f32x16[v]);
    }
    KVEVICT_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) {
      __m512 value_f32x16 = _mm512_set1_ps(values[r][c]);
      KVEVICT_ROUND_ZMM(value_f32x16);
      KVEVICT_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v)
        sum_f32x16[r][v] = _mm512_fmadd_ps(value_f32x16, factor_f32x16[v], sum_f32x16[r][v]);
    }
  }
  KVEVICT_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) {
    KVEVICT_UNROLL
    for (const __m512 sum : sum_f32x16[r]) {
      const __m512d low = low_half(sum);
      const __m512d high = high_half(sum);
      squares[r] = _mm512_fmadd_pd(low, low, _mm512_fmadd_pd(high, high, squares[r]));
    }
  }
}

// Twelve rows and 32 columns at once fill the registers.
template <ElementType kType>
KVEVICT_AVX512 inline void projected_norms_as(const float* factor, const RowBlock& rows,
                                              float* out) noexcept {
  constexpr std::size_t kRows = 12;
  alignas(64) float values[kRows][kMaxProjectedDim];
  for (std::size_t first = 0; first < rows.num_rows; first += kRows) {
    const std::size_t num_rows = std::min(kRows, rows.num_rows - first);
    for (std::size_t r = 0; r < kRows; ++r) {
      // Rows behind the last one repeat it; their results are not stored.
      widen_as<kType>(scalar::row_of(rows, first + std::min(r, num_rows - 1)), rows.dim, values[r]);
    }
    __m512d squares_f64x8[kRows];
    for (auto& squares : squares_f64x8)
      squares = _mm512_setzero_pd();
    std::size_t j = 0;
    for (; j + kLanes < rows.dim; j += 2 * kLanes)
      add_projected_columns<kRows, 2>(factor, rows.dim, j, values, squares_f64x8);
    if (j < rows.dim)
      add_projected_columns<kRows, 1>(factor, rows.dim, j, values, squares_f64x8);
    for (std::size_t r = 0; r < num_rows; ++r) {
      const auto norm = static_cast<float>(std::sqrt(reduce(squares_f64x8[r])));
      out[first + r] = scalar::checked_norm(norm, factor, rows, first + r);
    }
  }
}

KVEVICT_AVX512 inline void widen(const void* source, ElementType type, std::size_t n,
                                 float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  with_type(type, [&]<ElementType kType>() { widen_as<kType>(bytes, n, destination); });
}
KVEVICT_AVX512 inline void row_dots(const float* queries, std::size_t num_queries,
                                    std::ptrdiff_t query_stride, RowBlock rows, float* out,
                                    std::ptrdiff_t out_stride) noexcept {
  with_type(rows.type, [&]<ElementType kType>() {
    row_dots_as<kType>(queries, num_queries, query_stride, rows, out, out_stride);
  });
}
KVEVICT_AVX512 inline void row_norms(RowBlock rows, float* out) noexcept {
  with_type(rows.type, [&]<ElementType kType>() { row_norms_as<kType>(rows, out); });
}
KVEVICT_AVX512 inline void row_variances(RowBlock rows, float* out) noexcept {
  with_type(rows.type, [&]<ElementType kType>() { row_variances_as<kType>(rows, out); });
}
KVEVICT_AVX512 inline void projected_norms(const float* factor, RowBlock rows,
                                           float* out) noexcept {
  if (rows.dim > kMaxProjectedDim)
    return scalar::projected_norms(factor, rows, out);
  with_type(rows.type, [&]<ElementType kType>() { projected_norms_as<kType>(factor, rows, out); });
}

[[nodiscard]] KVEVICT_AVX512 inline double squared_distance(const float* a, const float* b,
                                                            std::size_t n) noexcept {
  __m512d low_f64x8 = _mm512_setzero_pd();
  __m512d high_f64x8 = _mm512_setzero_pd();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 a_f32x16 = _mm512_maskz_loadu_ps(mask, a + i);
    const __m512 b_f32x16 = _mm512_maskz_loadu_ps(mask, b + i);
    const __m512d low = _mm512_sub_pd(low_half(a_f32x16), low_half(b_f32x16));
    const __m512d high = _mm512_sub_pd(high_half(a_f32x16), high_half(b_f32x16));
    low_f64x8 = _mm512_fmadd_pd(low, low, low_f64x8);
    high_f64x8 = _mm512_fmadd_pd(high, high, high_f64x8);
  }
  return reduce(_mm512_add_pd(low_f64x8, high_f64x8));
}

[[nodiscard]] KVEVICT_AVX512 inline double sum(const float* x, std::size_t n) noexcept {
  __m512d low_f64x8 = _mm512_setzero_pd();
  __m512d high_f64x8 = _mm512_setzero_pd();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __m512 x_f32x16 = _mm512_maskz_loadu_ps(first_lanes(n - i), x + i);
    low_f64x8 = _mm512_add_pd(low_f64x8, low_half(x_f32x16));
    high_f64x8 = _mm512_add_pd(high_f64x8, high_half(x_f32x16));
  }
  return reduce(_mm512_add_pd(low_f64x8, high_f64x8));
}

[[nodiscard]] KVEVICT_AVX512 inline float largest_lane(__m512 x_f32x16) noexcept {
  alignas(64) std::array<float, kLanes> lanes;
  _mm512_store_ps(lanes.data(), x_f32x16);
  return *std::max_element(lanes.begin(), lanes.end());
}

[[nodiscard]] KVEVICT_AVX512 inline float max_value(const float* x, std::size_t n) noexcept {
  __m512 largest_f32x16 = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    // The instruction returns its second operand where one is NaN, so NaN never gets in.
    largest_f32x16 = _mm512_mask_max_ps(largest_f32x16, mask, _mm512_maskz_loadu_ps(mask, x + i),
                                        largest_f32x16);
  }
  return largest_lane(largest_f32x16);
}

KVEVICT_AVX512 inline void scale(float factor, std::size_t n, float* x) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    _mm512_mask_storeu_ps(x + i, mask,
                          _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor_f32x16));
  }
}

/// Lanes of x that are neither infinite nor NaN.
[[nodiscard]] KVEVICT_AVX512 inline __mmask16 finite(__m512 x) noexcept {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(std::numeric_limits<float>::max()),
                            _CMP_LE_OQ);
}

/// How many lanes a round over `x` takes first: stores across cache lines cost twice, so that what
/// is written in place is brought to them.
[[nodiscard]] inline std::size_t lanes_to_line(const float* x) noexcept {
  const std::uintptr_t past = std::bit_cast<std::uintptr_t>(x) % (kLanes * sizeof(float));
  return past % sizeof(float) != 0 ? kLanes  // never aligned
                                   : kLanes - past / sizeof(float);
}
/// Asks for what comes a few lines behind x: rows come from memory, where the processor stops at
/// every page of 4 KiB.
[[gnu::always_inline]] KVEVICT_AVX512 inline void prefetch(const float* x) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(x) + 1024, _MM_HINT_T0);
}

KVEVICT_AVX512 inline void standardise(double mean, double factor, std::size_t n,
                                       float* x) noexcept {
  const __m512d mean_f64x8 = _mm512_set1_pd(mean);
  const __m512d factor_f64x8 = _mm512_set1_pd(factor);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x_f32x16 = _mm512_maskz_loadu_ps(mask, x + i);
    const __m256 low_f32x8 = _mm512_maskz_cvtpd_ps(
        kAll8, _mm512_mul_pd(_mm512_sub_pd(low_half(x_f32x16), mean_f64x8), factor_f64x8));
    const __m256 high_f32x8 = _mm512_maskz_cvtpd_ps(
        kAll8, _mm512_mul_pd(_mm512_sub_pd(high_half(x_f32x16), mean_f64x8), factor_f64x8));
    _mm512_mask_storeu_ps(
        x + i, mask,
        _mm512_maskz_insertf32x8(kAll16, _mm512_castps256_ps512(low_f32x8), high_f32x8, 1));
  }
}

KVEVICT_AVX512 inline void take_ranges(const float* x, std::size_t n, float* low,
                                       float* high) noexcept {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    prefetch(x + i);
    // The instructions return their second operand where one is NaN.
    const __m512 x_f32x16 = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 low_f32x16 = _mm512_maskz_loadu_ps(mask, low + i);
    const __m512 high_f32x16 = _mm512_maskz_loadu_ps(mask, high + i);
    _mm512_mask_storeu_ps(low + i, mask, _mm512_maskz_min_ps(kAll16, x_f32x16, low_f32x16));
    _mm512_mask_storeu_ps(high + i, mask, _mm512_maskz_max_ps(kAll16, x_f32x16, high_f32x16));
  }
}

/// Sixteen channels of scaled_variance, less `origin`; lanes outside the mask are 0.
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline __m512 scaled_channels(
    __mmask16 mask, const float* x, const float* low, const float* scales, __m512 origin) noexcept {
  const __m512 scaled =
      _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x), _mm512_maskz_loadu_ps(mask, low)),
                    _mm512_maskz_loadu_ps(mask, scales));
  return _mm512_maskz_sub_ps(mask, _mm512_maskz_mov_ps(finite(scaled), scaled), origin);
}

// As avx2::scaled_variance: in float, of differences from the first channel. What is left of a
// vector stands behind the loop: a mask made anew in each round is kept in memory by GCC 12, and
// waiting for it took three times as long as all the rest.
KVEVICT_AVX512 inline float scaled_variance(const float* x, const float* low, const float* scales,
                                            std::size_t n) noexcept {
  alignas(64) std::array<float, scalar::kMaxWidenedDim> differences;
  if (n < kLanes || n > differences.size())
    return scalar::scaled_variance(x, low, scales, n);
  const __m512 origin_f32x16 = _mm512_set1_ps(scalar::scaled_channel(x[0], low[0], scales[0]));
  __m512 sum_f32x16 = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m512 difference = scaled_channels(kAll16, x + i, low + i, scales + i, origin_f32x16);
    _mm512_store_ps(differences.data() + i, difference);
    sum_f32x16 = _mm512_add_ps(sum_f32x16, difference);
  }
  if (i < n) {
    const __m512 difference =
        scaled_channels(first_lanes(n - i), x + i, low + i, scales + i, origin_f32x16);
    _mm512_store_ps(differences.data() + i, difference);
    sum_f32x16 = _mm512_add_ps(sum_f32x16, difference);
  }
  const auto mean =
      static_cast<float>(static_cast<double>(reduce(sum_f32x16)) / static_cast<double>(n));
  // Behind the last channel the differences count as the mean.
  for (i = n; i % (2 * kLanes) != 0; ++i)
    differences[i] = mean;
  const __m512 mean_f32x16 = _mm512_set1_ps(mean);
  __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (i = 0; i < n; i += 2 * kLanes) {
    KVEVICT_UNROLL
    for (std::size_t c = 0; c < 2; ++c) {
      const __m512 difference =
          _mm512_sub_ps(_mm512_load_ps(differences.data() + i + c * kLanes), mean_f32x16);
      squares[c] = _mm512_fmadd_ps(difference, difference, squares[c]);
    }
  }
  const auto total = static_cast<double>(reduce(_mm512_add_ps(squares[0], squares[1])));
  // Not finite: beyond a float, though the variance may be none.
  return std::isfinite(total) ? static_cast<float>(total / static_cast<double>(n - 1))
                              : scalar::scaled_variance(x, low, scales, n);
}

KVEVICT_AVX512 inline std::size_t scale_logits(float factor, std::size_t n, float* x,
                                               float& largest) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  const __m512 finite_f32x16 = _mm512_set1_ps(std::numeric_limits<float>::max());
  __m512 largest_f32x16 = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  std::size_t non_finite = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x_f32x16 = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor_f32x16);
    _mm512_mask_storeu_ps(x + i, mask, x_f32x16);
    largest_f32x16 = _mm512_mask_max_ps(largest_f32x16, mask, x_f32x16, largest_f32x16);
    const __mmask16 wrong = _mm512_mask_cmp_ps_mask(mask, x_f32x16, finite_f32x16, _CMP_NLE_UQ);
    non_finite += static_cast<std::size_t>(std::popcount(static_cast<unsigned>(wrong)));
  }
  largest = largest_lane(largest_f32x16);
  return non_finite;
}

/// exp for finite and infinite x, not NaN: x = k ln 2 + r, exp(r) by a polynomial of degree 6
/// (relative error below 2e-7), scaled by 2^k. Results that are subnormal may lose bits.
[[nodiscard]] KVEVICT_AVX512 inline __m512 exp_f32x16(__m512 x) noexcept {
  x = _mm512_maskz_max_ps(kAll16, x, _mm512_set1_ps(-105.0F));
  const __m512 k =
      _mm512_maskz_roundscale_ps(kAll16, _mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)), 0);
  __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(k, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.0F / 720);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  // x = +infinity makes r NaN; its result is infinity.
  const __mmask16 infinite =
      _mm512_cmp_ps_mask(x, _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_EQ_OQ);
  return _mm512_mask_mov_ps(_mm512_maskz_scalef_ps(kAll16, p, k), infinite, x);
}

/// What exp_shifted makes of sixteen entries; lanes outside the mask are 0 and not written.
[[nodiscard]] KVEVICT_AVX512 inline __m512 exp_lanes(__mmask16 mask, __m512 shift_f32x16,
                                                     float* x) noexcept {
  const __m512 x_f32x16 = _mm512_maskz_loadu_ps(mask, x);
  const __mmask16 counted = _mm512_mask_cmp_ps_mask(mask, x_f32x16, x_f32x16, _CMP_ORD_Q);
  const __m512 e_f32x16 =
      _mm512_maskz_mov_ps(counted, exp_f32x16(_mm512_sub_ps(x_f32x16, shift_f32x16)));
  _mm512_mask_storeu_ps(x, mask, e_f32x16);
  return e_f32x16;
}

// Four vectors are added up in float before they go to doubles; where that overflows, again.
KVEVICT_AVX512 inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  if (!std::isfinite(shift))
    return scalar::exp_shifted(shift, n, x);
  const __m512 shift_f32x16 = _mm512_set1_ps(shift);
  __m512d low_f64x8 = _mm512_setzero_pd();
  __m512d high_f64x8 = _mm512_setzero_pd();
  for (std::size_t i = 0; i < n; i += 4 * kLanes) {
    __m512 sum_f32x16 = _mm512_setzero_ps();
    if (i + 4 * kLanes <= n) {
      KVEVICT_UNROLL
      for (std::size_t c = 0; c < 4; ++c) {
        sum_f32x16 = _mm512_add_ps(sum_f32x16, exp_lanes(kAll16, shift_f32x16, x + i + c * kLanes));
      }
    } else {
      for (std::size_t j = i; j < n; j += kLanes) {
        sum_f32x16 = _mm512_add_ps(sum_f32x16, exp_lanes(first_lanes(n - j), shift_f32x16, x + j));
      }
    }
    low_f64x8 = _mm512_add_pd(low_f64x8, low_half(sum_f32x16));
    high_f64x8 = _mm512_add_pd(high_f64x8, high_half(sum_f32x16));
  }
  const double total = reduce(_mm512_add_pd(low_f64x8, high_f64x8));
  return std::isfinite(total) ? total : sum(x, n);
}

/// tanh: near zero an odd polynomial (the minimax one of the Cephes library), 1 - 2 / (e^2x + 1)
/// elsewhere; relative error below 2e-7.
[[nodiscard]] KVEVICT_AVX512 inline __m512 tanh_f32x16(__m512 x) noexcept {
  const __m512 one = _mm512_set1_ps(1.0F);
  // From 10 on it is 1.
  const __m512 magnitude = _mm512_maskz_min_ps(kAll16, _mm512_abs_ps(x), _mm512_set1_ps(10.0F));
  const __m512 square = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3F);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.06390887954e-2F));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-5.37397155531e-2F));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.33314422036e-1F));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-3.33332819422e-1F));
  const __m512 near_zero = _mm512_fmadd_ps(_mm512_mul_ps(p, square), x, x);
  const __m512 e = exp_f32x16(_mm512_add_ps(magnitude, magnitude));
  const __m512 far = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0F), _mm512_add_ps(e, one)));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0.0F), _CMP_LT_OQ);
  const __m512 signed_far = _mm512_mask_sub_ps(far, negative, _mm512_set1_ps(0.0F), far);
  const __mmask16 is_far = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.625F), _CMP_GE_OQ);
  return _mm512_mask_mov_ps(near_zero, is_far, signed_far);
}

KVEVICT_AVX512 inline void soft_cap(float cap, std::size_t n, float* x) noexcept {
  const __m512 cap_f32x16 = _mm512_set1_ps(cap);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x_f32x16 = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 capped =
        _mm512_mul_ps(cap_f32x16, tanh_f32x16(_mm512_div_ps(x_f32x16, cap_f32x16)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x_f32x16, x_f32x16, _CMP_UNORD_Q);
    _mm512_mask_storeu_ps(x + i, mask, _mm512_mask_mov_ps(capped, nan, x_f32x16));
  }
}

/// Calls kStep(mask, i, args...) for vectors of n floats from `i` on, and adds up what it returns;
/// all but the first are aligned in `written`. The masks of whole vectors are constants.
template <auto kStep, class... Args>
[[gnu::always_inline]] KVEVICT_AVX512 inline std::size_t for_each_vector(const float* written,
                                                                         std::size_t n,
                                                                         Args... args) noexcept {
  std::size_t i = 0;
  std::size_t skipped = 0;
  if (const std::size_t lanes = lanes_to_line(written); lanes < kLanes) {
    skipped = kStep(first_lanes(std::min(lanes, n)), 0, args...);
    i = std::min(lanes, n);
  }
  for (; i + kLanes <= n; i += kLanes)
    skipped += kStep(kAll16, i, args...);
  return i < n ? skipped + kStep(first_lanes(n - i), i, args...) : skipped;
}

/// Where `sample` is finite, y becomes `next`; returns how many of the `mask` lanes were not.
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t store_finite(
    __mmask16 mask, __m512 sample, __m512 next, float* y) noexcept {
  const auto wanted = static_cast<__mmask16>(mask & finite(sample));
  _mm512_mask_storeu_ps(y, wanted, next);
  return static_cast<std::size_t>(std::popcount(static_cast<unsigned>(mask & ~wanted)));
}

// The accumulators, sixteen entries each from `i` on.
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t add_lanes(
    __mmask16 mask, std::size_t i, float factor, const float* x, float* y) noexcept {
  prefetch(x + i);
  __m512 sample = _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(mask, x + i));
  KVEVICT_ROUND_ZMM(sample);
  return store_finite(mask, sample, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + i), sample),
                      y + i);
}
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t add_rows_lanes(
    __mmask16 mask, std::size_t i, const float* factors, const float* x, std::ptrdiff_t row_stride,
    std::size_t num_rows, float* y) noexcept {
  __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
  std::size_t skipped = 0;
  for (std::size_t r = 0; r < num_rows; ++r) {
    const float* row = x + static_cast<std::ptrdiff_t>(r) * row_stride + i;
    prefetch(row);
    __m512 sample = _mm512_mul_ps(_mm512_set1_ps(factors[r]), _mm512_maskz_loadu_ps(mask, row));
    KVEVICT_ROUND_ZMM(sample);
    const __mmask16 wanted = finite(sample);
    y_f32x16 = _mm512_mask_add_ps(y_f32x16, wanted, y_f32x16, sample);
    skipped += static_cast<std::size_t>(std::popcount(static_cast<unsigned>(mask & ~wanted)));
  }
  _mm512_mask_storeu_ps(y + i, mask, y_f32x16);
  return skipped;
}
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t add_squared_lanes(
    __mmask16 mask, std::size_t i, float factor, const float* x, float* y) noexcept {
  prefetch(x + i);
  const __m512 scaled = _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(mask, x + i));
  __m512 sample = _mm512_mul_ps(scaled, scaled);
  KVEVICT_ROUND_ZMM(sample);
  return store_finite(mask, sample, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + i), sample),
                      y + i);
}
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t add_product_lanes(
    __mmask16 mask, std::size_t i, float factor, const float* a, const float* b,
    float* y) noexcept {
  prefetch(a + i);
  __m512 sample =
      _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(mask, a + i)),
                    _mm512_maskz_loadu_ps(mask, b + i));
  KVEVICT_ROUND_ZMM(sample);
  return store_finite(mask, sample, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + i), sample),
                      y + i);
}
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t take_max_lanes(
    __mmask16 mask, std::size_t i, float factor, const float* x, float* y) noexcept {
  prefetch(x + i);
  __m512 sample = _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(mask, x + i));
  KVEVICT_ROUND_ZMM(sample);
  const __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
  return store_finite(mask, sample, _mm512_maskz_max_ps(kAll16, sample, y_f32x16), y + i);
}
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline std::size_t ema_lanes(
    __mmask16 mask, std::size_t i, float decay, const float* sample, float* state) noexcept {
  prefetch(sample + i);
  const __m512 sample_f32x16 = _mm512_maskz_loadu_ps(mask, sample + i);
  __m512 old_part = _mm512_mul_ps(_mm512_set1_ps(decay), _mm512_maskz_loadu_ps(mask, state + i));
  __m512 new_part = _mm512_mul_ps(_mm512_set1_ps(1.0F - decay), sample_f32x16);
  KVEVICT_ROUND_ZMM(old_part);
  KVEVICT_ROUND_ZMM(new_part);
  const __m512 next = _mm512_add_ps(old_part, new_part);
  const __mmask16 normal = _mm512_cmp_ps_mask(
      _mm512_abs_ps(next), _mm512_set1_ps(std::numeric_limits<float>::min()), _CMP_NLT_UQ);
  return store_finite(mask, sample_f32x16, _mm512_maskz_mov_ps(normal, next), state + i);
}

KVEVICT_AVX512 inline std::size_t add(float factor, const float* x, std::size_t n,
                                      float* y) noexcept {
  return for_each_vector<add_lanes>(y, n, factor, x, y);
}
KVEVICT_AVX512 inline std::size_t add_rows(const float* factors, const float* x,
                                           std::ptrdiff_t row_stride, std::size_t num_rows,
                                           std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t r = 0; r < num_rows; r += avx2::kRowsAtATime) {
    skipped += for_each_vector<add_rows_lanes>(
        y, n, factors + r, x + static_cast<std::ptrdiff_t>(r) * row_stride, row_stride,
        std::min(avx2::kRowsAtATime, num_rows - r), y);
  }
  return skipped;
}
KVEVICT_AVX512 inline std::size_t add_squared(float factor, const float* x, std::size_t n,
                                              float* y) noexcept {
  return for_each_vector<add_squared_lanes>(y, n, factor, x, y);
}
KVEVICT_AVX512 inline std::size_t add_product(float factor, const float* a, const float* b,
                                              std::size_t n, float* y) noexcept {
  return for_each_vector<add_product_lanes>(y, n, factor, a, b, y);
}
KVEVICT_AVX512 inline std::size_t take_max(float factor, const float* x, std::size_t n,
                                           float* y) noexcept {
  return for_each_vector<take_max_lanes>(y, n, factor, x, y);
}
KVEVICT_AVX512 inline std::size_t ema(float decay, const float* sample, std::size_t n,
                                      float* state) noexcept {
  return for_each_vector<ema_lanes>(state, n, decay, sample, state);
}

// The mean under the kernel for 16 entries at once where the whole kernel fits in; added up in the
// order of the scalar form, so the bits are the same.
KVEVICT_AVX512 inline void average_pool(const float* x, std::size_t n, std::size_t kernel,
                                        PoolEdge edge, float* out) noexcept {
  const std::size_t reach = kernel / 2;
  const __m512d share_f64x8 = _mm512_set1_pd(1.0 / static_cast<double>(kernel));
  std::size_t i = 0;
  for (; i < std::min(reach, n); ++i)
    out[i] = scalar::window_mean(x, n, kernel, edge, i);
  for (; i + reach + kLanes <= n; i += kLanes) {
    __m512d low_f64x8 = _mm512_setzero_pd();
    __m512d high_f64x8 = _mm512_setzero_pd();
    for (std::size_t j = 0; j < kernel; ++j) {
      const float* from = x + i - reach + j;
      low_f64x8 = _mm512_add_pd(low_f64x8, _mm512_maskz_cvtps_pd(kAll8, _mm256_loadu_ps(from)));
      high_f64x8 =
          _mm512_add_pd(high_f64x8, _mm512_maskz_cvtps_pd(kAll8, _mm256_loadu_ps(from + 8)));
    }
    const __m512d low_mean = _mm512_mul_pd(low_f64x8, share_f64x8);
    const __m512d high_mean = _mm512_mul_pd(high_f64x8, share_f64x8);
    _mm256_storeu_ps(out + i, _mm512_maskz_cvtpd_ps(kAll8, low_mean));
    _mm256_storeu_ps(out + i + 8, _mm512_maskz_cvtpd_ps(kAll8, high_mean));
  }
  for (; i < n; ++i)
    out[i] = scalar::window_mean(x, n, kernel, edge, i);
}

// A maximum over the kernel for 16 entries at once where the whole kernel fits in.
KVEVICT_AVX512 inline void max_pool(const float* x, std::size_t n, std::size_t kernel,
                                    float* out) noexcept {
  const std::size_t reach = kernel / 2;
  std::size_t i = 0;
  for (; i < std::min(reach, n); ++i)
    out[i] = scalar::window_max(x, 0, std::min(n, i + reach + 1));
  for (; i + reach + kLanes <= n; i += kLanes) {
    __m512 largest_f32x16 = _mm512_loadu_ps(x + i - reach);
    for (std::size_t j = 1; j < kernel; ++j) {
      // The instruction returns its second operand where one is NaN.
      const __m512 next_f32x16 = _mm512_loadu_ps(x + i - reach + j);
      const __mmask16 nan = _mm512_cmp_ps_mask(largest_f32x16, largest_f32x16, _CMP_UNORD_Q);
      largest_f32x16 = _mm512_mask_mov_ps(_mm512_maskz_max_ps(kAll16, next_f32x16, largest_f32x16),
                                          nan, next_f32x16);
    }
    _mm512_storeu_ps(out + i, largest_f32x16);
  }
  for (; i < n; ++i)
    out[i] = scalar::window_max(x, i - reach, std::min(n, i + reach + 1));
}

[[nodiscard]] KVEVICT_AVX512 inline __m512i order_keys(__m512 x) noexcept {
  const __mmask16 not_zero = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  const __mmask16 not_nan = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  const __m512i bits = _mm512_maskz_mov_epi32(not_zero, _mm512_castps_si512(x));  // -0 is +0
  const __m512i flipped = _mm512_or_si512(_mm512_maskz_srai_epi32(kAll16, bits, 31),
                                          _mm512_castps_si512(_mm512_set1_ps(-0.0F)));
  return _mm512_maskz_xor_epi32(not_nan, bits, flipped);
}

KVEVICT_AVX512 inline void order_keys(const float* x, std::size_t n, std::uint32_t* keys) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm512_storeu_ps(keys + i, _mm512_castsi512_ps(order_keys(_mm512_loadu_ps(x + i))));
  if (i < n) {
    const __mmask16 mask = first_lanes(n - i);
    _mm512_mask_storeu_epi32(keys + i, mask, order_keys(_mm512_maskz_loadu_ps(mask, x + i)));
  }
}

[[nodiscard]] KVEVICT_AVX512 inline std::uint32_t lowest_key(const float* x,
                                                             std::size_t n) noexcept {
  __m512i lowest[2] = {_mm512_set1_epi32(-1), _mm512_set1_epi32(-1)};
  std::size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    lowest[0] = _mm512_maskz_min_epu32(kAll16, lowest[0], order_keys(_mm512_loadu_ps(x + i)));
    lowest[1] =
        _mm512_maskz_min_epu32(kAll16, lowest[1], order_keys(_mm512_loadu_ps(x + i + kLanes)));
  }
  for (; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    lowest[0] = _mm512_mask_min_epu32(lowest[0], mask, lowest[0],
                                      order_keys(_mm512_maskz_loadu_ps(mask, x + i)));
  }
  alignas(64) std::array<std::uint32_t, kLanes> lanes;
  _mm512_store_si512(lanes.data(), _mm512_maskz_min_epu32(kAll16, lowest[0], lowest[1]));
  return *std::min_element(lanes.begin(), lanes.end());
}

/// compare_keys for sixteen entries, from bit 0 on.
[[nodiscard, gnu::always_inline]] KVEVICT_AVX512 inline KeyBits compare_sixteen(
    __mmask16 mask, const float* x, __m512i lowest, __m512i highest) noexcept {
  const __m512i keys = order_keys(_mm512_maskz_loadu_ps(mask, x));
  const __mmask16 above = _mm512_mask_cmpgt_epu32_mask(mask, keys, highest);
  const __mmask16 reaches = _mm512_mask_cmpge_epu32_mask(mask, keys, lowest);
  return {above, static_cast<__mmask16>(reaches & ~above)};
}
[[nodiscard]] KVEVICT_AVX512 inline KeyBits compare_keys(const float* x, std::size_t n,
                                                         std::uint32_t lowest,
                                                         std::uint32_t highest) noexcept {
  const __m512i lowest_u32x16 = _mm512_set1_epi32(static_cast<std::int32_t>(lowest));
  const __m512i highest_u32x16 = _mm512_set1_epi32(static_cast<std::int32_t>(highest));
  KeyBits bits{0, 0};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const KeyBits part = compare_sixteen(kAll16, x + i, lowest_u32x16, highest_u32x16);
    bits.above |= part.above << i;
    bits.inside |= part.inside << i;
  }
  if (i < n) {
    const KeyBits part = compare_sixteen(first_lanes(n - i), x + i, lowest_u32x16, highest_u32x16);
    bits.above |= part.above << i;
    bits.inside |= part.inside << i;
  }
  return bits;
}

inline constexpr KernelSet kSet{
    .isa = Isa::kAvx512,
    .widen = widen,
    .row_dots = row_dots,
    .row_norms = row_norms,
    .row_variances = row_variances,
    .projected_norms = projected_norms,
    .band_dots = avx2::band_dots,
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

}  // namespace kernels::avx512
KVEVICT_NAMESPACE_END

#undef KVEVICT_AVX512

#endif  // KVEVICT_KERNELS_AVX512_HPP_
