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
/// r of quarter q.
[[nodiscard]] KVEVICT_AVX512 inline __m512 reduce_each(const __m512 (&rows)[4][4]) noexcept {
  __m512 quarters[4];
  for (std::size_t r = 0; r < 4; ++r) {
    __m512 halves[2];
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

/// The products of `kQueries` (1 or 4) queries with four rows: each element is loaded once for all.
/// `kWhole` says that dim is a multiple of sixteen.
template <ElementType kType, std::size_t kQueries, bool kWhole>
KVEVICT_AVX512 inline void dot_tile(const float* queries, std::ptrdiff_t query_stride,
                                    const std::byte* rows, std::ptrdiff_t row_stride_bytes,
                                    std::size_t dim, float* out,
                                    std::ptrdiff_t out_stride) noexcept {
  __m512 sums[4][4];
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t q = 0; q < 4; ++q)
      sums[r][q] = _mm512_setzero_ps();
  }
  for (std::size_t c = 0; c < dim; c += kLanes) {
    const __mmask16 mask = kWhole ? kAll16 : first_lanes(dim - c);
    __m512 query[kQueries];
    for (std::size_t q = 0; q < kQueries; ++q) {
      query[q] =
          _mm512_maskz_loadu_ps(mask, queries + static_cast<std::ptrdiff_t>(q) * query_stride + c);
    }
    for (std::size_t r = 0; r < 4; ++r) {
      const __m512 row =
          load<kType>(rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes, c, mask);
      for (std::size_t q = 0; q < kQueries; ++q)
        sums[r][q] = _mm512_fmadd_ps(query[q], row, sums[r][q]);
    }
  }
  const __m512 all = reduce_each(sums);
  _mm_storeu_ps(out, _mm512_maskz_extractf32x4_ps(kAll8, all, 0));
  if constexpr (kQueries == 4) {
    _mm_storeu_ps(out + out_stride, _mm512_maskz_extractf32x4_ps(kAll8, all, 1));
    _mm_storeu_ps(out + 2 * out_stride, _mm512_maskz_extractf32x4_ps(kAll8, all, 2));
    _mm_storeu_ps(out + 3 * out_stride, _mm512_maskz_extractf32x4_ps(kAll8, all, 3));
  }
}

/// The products of many queries with four rows; from `next` on lie the rows of `all` that follow.
template <ElementType kType, bool kWhole>
KVEVICT_AVX512 inline void dot_four(const float* queries, std::size_t num_queries,
                                    std::ptrdiff_t query_stride, const std::byte* rows,
                                    std::ptrdiff_t row_stride_bytes, std::size_t dim, float* out,
                                    std::ptrdiff_t out_stride, const RowBlock& all,
                                    std::size_t next) noexcept {
  const std::size_t num_tiles = (num_queries + 3) / 4;
  const std::size_t rows_per_tile = num_tiles < 4 ? (4 + num_tiles - 1) / num_tiles : 1;
  const std::size_t last = next + 4;
  for (std::size_t q = 0; q < num_queries;) {
    avx2::prefetch_rows(all, std::min(next, last), std::min(next + rows_per_tile, last));
    next += rows_per_tile;
    const float* query = queries + static_cast<std::ptrdiff_t>(q) * query_stride;
    float* target = out + static_cast<std::ptrdiff_t>(q) * out_stride;
    if (q + 4 <= num_queries) {
      dot_tile<kType, 4, kWhole>(query, query_stride, rows, row_stride_bytes, dim, target,
                                 out_stride);
      q += 4;
    } else {
      dot_tile<kType, 1, kWhole>(query, query_stride, rows, row_stride_bytes, dim, target,
                                 out_stride);
      ++q;
    }
  }
}

template <ElementType kType>
KVEVICT_AVX512 inline void row_dots_as(const float* queries, std::size_t num_queries,
                                       std::ptrdiff_t query_stride, const RowBlock& rows,
                                       float* out, std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = 4;
  // From a few queries on it pays to widen four rows once for all of them.
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
        dot_four<ElementType::kF32, true>(queries, num_queries, query_stride, block, stride,
                                          rows.dim, out + i, out_stride, rows, i + kRows);
      } else {
        dot_four<ElementType::kF32, false>(queries, num_queries, query_stride, block, stride,
                                           rows.dim, out + i, out_stride, rows, i + kRows);
      }
    } else if (whole) {
      dot_four<kType, true>(queries, num_queries, query_stride, scalar::row_of(rows, i),
                            rows.stride_bytes, rows.dim, out + i, out_stride, rows, i + kRows);
    } else {
      dot_four<kType, false>(queries, num_queries, query_stride, scalar::row_of(rows, i),
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

template <ElementType kType>
KVEVICT_AVX512 inline void row_norms_as(const RowBlock& rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
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

inline constexpr std::size_t kMaxProjectedDim = 512;

// Eight rows share every load of the factor; row j of C^T v is summed over c >= j only, so the
// upper triangle is skipped 16 columns at a time.
template <ElementType kType>
KVEVICT_AVX512 inline void projected_norms_as(const float* factor, const RowBlock& rows,
                                              float* out) noexcept {
  constexpr std::size_t kRows = 8;
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
    for (std::size_t j = 0; j < rows.dim; j += kLanes) {
      const __mmask16 mask = first_lanes(rows.dim - j);
      __m512 sum_f32x16[kRows];
      for (auto& sum : sum_f32x16)
        sum = _mm512_setzero_ps();
      for (std::size_t c = j; c < rows.dim; ++c) {
        const __m512 factor_f32x16 = _mm512_maskz_loadu_ps(mask, factor + c * rows.dim + j);
        for (std::size_t r = 0; r < kRows; ++r) {
          sum_f32x16[r] =
              _mm512_fmadd_ps(_mm512_set1_ps(values[r][c]), factor_f32x16, sum_f32x16[r]);
        }
      }
      for (std::size_t r = 0; r < kRows; ++r) {
        const __m512d low = low_half(sum_f32x16[r]);
        const __m512d high = high_half(sum_f32x16[r]);
        squares_f64x8[r] = _mm512_fmadd_pd(low, low, _mm512_fmadd_pd(high, high, squares_f64x8[r]));
      }
    }
    for (std::size_t r = 0; r < num_rows; ++r) {
      out[first + r] = static_cast<float>(std::sqrt(reduce(squares_f64x8[r])));
    }
  }
}

// One switch on the element type for each kernel that reads stored rows.
KVEVICT_AVX512 inline void widen(const void* source, ElementType type, std::size_t n,
                                 float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  switch (type) {
    case ElementType::kF32:
      return widen_as<ElementType::kF32>(bytes, n, destination);
    case ElementType::kF16:
      return widen_as<ElementType::kF16>(bytes, n, destination);
    case ElementType::kBF16:
      return widen_as<ElementType::kBF16>(bytes, n, destination);
    case ElementType::kQ8_0:
      return widen_as<ElementType::kQ8_0>(bytes, n, destination);
  }
}
KVEVICT_AVX512 inline void row_dots(const float* queries, std::size_t num_queries,
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
    case ElementType::kQ8_0:
      return row_dots_as<ElementType::kQ8_0>(queries, num_queries, query_stride, rows, out,
                                             out_stride);
  }
}
KVEVICT_AVX512 inline void row_norms(RowBlock rows, float* out) noexcept {
  switch (rows.type) {
    case ElementType::kF32:
      return row_norms_as<ElementType::kF32>(rows, out);
    case ElementType::kF16:
      return row_norms_as<ElementType::kF16>(rows, out);
    case ElementType::kBF16:
      return row_norms_as<ElementType::kBF16>(rows, out);
    case ElementType::kQ8_0:
      return row_norms_as<ElementType::kQ8_0>(rows, out);
  }
}
KVEVICT_AVX512 inline void projected_norms(const float* factor, RowBlock rows,
                                           float* out) noexcept {
  if (rows.dim > kMaxProjectedDim)
    return scalar::projected_norms(factor, rows, out);
  switch (rows.type) {
    case ElementType::kF32:
      return projected_norms_as<ElementType::kF32>(factor, rows, out);
    case ElementType::kF16:
      return projected_norms_as<ElementType::kF16>(factor, rows, out);
    case ElementType::kBF16:
      return projected_norms_as<ElementType::kBF16>(factor, rows, out);
    case ElementType::kQ8_0:
      return projected_norms_as<ElementType::kQ8_0>(factor, rows, out);
  }
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

KVEVICT_AVX512 inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  if (!(shift < std::numeric_limits<float>::infinity()))
    return scalar::exp_shifted(shift, n, x);
  const __m512 shift_f32x16 = _mm512_set1_ps(shift);
  __m512d low_f64x8 = _mm512_setzero_pd();
  __m512d high_f64x8 = _mm512_setzero_pd();
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x_f32x16 = _mm512_maskz_loadu_ps(mask, x + i);
    const __mmask16 counted = _mm512_mask_cmp_ps_mask(mask, x_f32x16, x_f32x16, _CMP_ORD_Q);
    const __m512 e_f32x16 =
        _mm512_maskz_mov_ps(counted, exp_f32x16(_mm512_sub_ps(x_f32x16, shift_f32x16)));
    _mm512_mask_storeu_ps(x + i, mask, e_f32x16);
    low_f64x8 = _mm512_add_pd(low_f64x8, low_half(e_f32x16));
    high_f64x8 = _mm512_add_pd(high_f64x8, high_half(e_f32x16));
  }
  return reduce(_mm512_add_pd(low_f64x8, high_f64x8));
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

/// Lanes of x that are neither infinite nor NaN.
[[nodiscard]] KVEVICT_AVX512 inline __mmask16 finite(__m512 x) noexcept {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(std::numeric_limits<float>::max()),
                            _CMP_LE_OQ);
}

/// Where `sample` is finite, y becomes `next`; returns how many of the `mask` lanes were not.
[[nodiscard]] KVEVICT_AVX512 inline std::size_t store_finite(__mmask16 mask, __m512 sample,
                                                             __m512 next, float* y) noexcept {
  const auto wanted = static_cast<__mmask16>(mask & finite(sample));
  _mm512_mask_storeu_ps(y, wanted, next);
  return static_cast<std::size_t>(std::popcount(static_cast<unsigned>(mask & ~wanted)));
}

KVEVICT_AVX512 inline std::size_t add(float factor, const float* x, std::size_t n,
                                      float* y) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 sample = _mm512_mul_ps(factor_f32x16, _mm512_maskz_loadu_ps(mask, x + i));
    KVEVICT_ROUND_ZMM(sample);
    const __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
    skipped += store_finite(mask, sample, _mm512_add_ps(y_f32x16, sample), y + i);
  }
  return skipped;
}

KVEVICT_AVX512 inline std::size_t add_squared(float factor, const float* x, std::size_t n,
                                              float* y) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 scaled = _mm512_mul_ps(factor_f32x16, _mm512_maskz_loadu_ps(mask, x + i));
    __m512 sample = _mm512_mul_ps(scaled, scaled);
    KVEVICT_ROUND_ZMM(sample);
    const __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
    skipped += store_finite(mask, sample, _mm512_add_ps(y_f32x16, sample), y + i);
  }
  return skipped;
}

KVEVICT_AVX512 inline std::size_t add_product(float factor, const float* a, const float* b,
                                              std::size_t n, float* y) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 sample = _mm512_mul_ps(_mm512_mul_ps(factor_f32x16, _mm512_maskz_loadu_ps(mask, a + i)),
                                  _mm512_maskz_loadu_ps(mask, b + i));
    KVEVICT_ROUND_ZMM(sample);
    const __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
    skipped += store_finite(mask, sample, _mm512_add_ps(y_f32x16, sample), y + i);
  }
  return skipped;
}

KVEVICT_AVX512 inline std::size_t take_max(float factor, const float* x, std::size_t n,
                                           float* y) noexcept {
  const __m512 factor_f32x16 = _mm512_set1_ps(factor);
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 sample = _mm512_mul_ps(factor_f32x16, _mm512_maskz_loadu_ps(mask, x + i));
    KVEVICT_ROUND_ZMM(sample);
    const __m512 y_f32x16 = _mm512_maskz_loadu_ps(mask, y + i);
    skipped += store_finite(mask, sample, _mm512_maskz_max_ps(kAll16, sample, y_f32x16), y + i);
  }
  return skipped;
}

KVEVICT_AVX512 inline std::size_t ema(float decay, const float* sample, std::size_t n,
                                      float* state) noexcept {
  const __m512 decay_f32x16 = _mm512_set1_ps(decay);
  const __m512 rest_f32x16 = _mm512_set1_ps(1.0F - decay);
  const __m512 smallest_f32x16 = _mm512_set1_ps(std::numeric_limits<float>::min());
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 sample_f32x16 = _mm512_maskz_loadu_ps(mask, sample + i);
    const __m512 state_f32x16 = _mm512_maskz_loadu_ps(mask, state + i);
    __m512 old_part = _mm512_mul_ps(decay_f32x16, state_f32x16);
    __m512 new_part = _mm512_mul_ps(rest_f32x16, sample_f32x16);
    KVEVICT_ROUND_ZMM(old_part);
    KVEVICT_ROUND_ZMM(new_part);
    const __m512 next = _mm512_add_ps(old_part, new_part);
    const __mmask16 tiny = _mm512_cmp_ps_mask(_mm512_abs_ps(next), smallest_f32x16, _CMP_LT_OQ);
    skipped += store_finite(mask, sample_f32x16,
                            _mm512_mask_mov_ps(next, tiny, _mm512_setzero_ps()), state + i);
  }
  return skipped;
}

// The mean under the kernel for 16 entries at once where the whole kernel fits in; added up in the
// order of the scalar form, so the bits are the same.
KVEVICT_AVX512 inline void average_pool(const float* x, std::size_t n, std::size_t kernel,
                                        PoolEdge edge, float* out) noexcept {
  const std::size_t reach = kernel / 2;
  const __m512d divisor_f64x8 = _mm512_set1_pd(static_cast<double>(kernel));
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
    const __m512d low_mean = _mm512_div_pd(low_f64x8, divisor_f64x8);
    const __m512d high_mean = _mm512_div_pd(high_f64x8, divisor_f64x8);
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

inline constexpr KernelSet kSet{
    .isa = Isa::kAvx512,
    .widen = widen,
    .row_dots = row_dots,
    .row_norms = row_norms,
    .row_variances = avx2::row_variances,
    .projected_norms = projected_norms,
    .band_dots = avx2::band_dots,
    .squared_distance = squared_distance,
    .sum = sum,
    .max_value = max_value,
    .scale = scale,
    .standardise = avx2::standardise,
    .scale_logits = scale_logits,
    .take_ranges = avx2::take_ranges,
    .scaled_variance = avx2::scaled_variance,
    .soft_cap = soft_cap,
    .exp_shifted = exp_shifted,
    .add = add,
    .add_squared = add_squared,
    .add_product = add_product,
    .take_max = take_max,
    .ema = ema,
    .average_pool = average_pool,
    .max_pool = max_pool,
    .order_keys = avx2::order_keys,
    .lowest_key = avx2::lowest_key,
    .compare_keys = avx2::compare_keys,
};

}  // namespace kernels::avx512
KVEVICT_NAMESPACE_END

#undef KVEVICT_AVX512

#endif  // KVEVICT_KERNELS_AVX512_HPP_
