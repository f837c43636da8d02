#ifndef KVEVICT_KERNELS_NEON_HPP_
#define KVEVICT_KERNELS_NEON_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/q8_0.hpp"
#include "kvevict/kernels/scalar.hpp"

#include <arm_neon.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

// NEON as every AArch64 processor has it; no attribute is needed. Tails take the scalar form.
KVEVICT_NAMESPACE_BEGIN
namespace kernels::neon {

inline constexpr std::size_t kLanes = 4;

/// Elements index .. index + 4 of a row as float; `index` is a multiple of 4 where the type has
/// blocks.
template <ElementType kType>
[[nodiscard]] inline float32x4_t load(const std::byte* row, std::size_t index) noexcept {
  if constexpr (kType == ElementType::kF32) {
    return vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(row + 4 * index)));
  } else if constexpr (kType == ElementType::kQ8_0) {
    const BlockPlace place = q8_0_place(row, index);
    std::uint32_t four;
    std::memcpy(&four, place.bytes, sizeof four);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    const float32x4_t scale = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(place.scale)));
    return vmulq_f32(scale, vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
  } else {
    const uint16x4_t halves =
        vreinterpret_u16_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(row + 2 * index)));
    if constexpr (kType == ElementType::kF16) {
      return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    } else {
      return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
    }
  }
}

template <ElementType kType>
inline void widen_as(const std::byte* source, std::size_t n, float* destination) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vst1q_f32(destination + i, load<kType>(source, i));
  for (; i < n; ++i)
    destination[i] = scalar::load(source, kType, i);
}

// Four rows against one query; the sums of a row never depend on the other rows.
template <ElementType kType, std::size_t kRows>
inline void dot_rows(const float* query, const std::byte* rows, std::ptrdiff_t row_stride_bytes,
                     std::size_t dim, float* out) noexcept {
  float32x4_t sum_f32x4[kRows][2];
  for (auto& sums : sum_f32x4) {
    for (auto& sum : sums)
      sum = vdupq_n_f32(0.0F);
  }
  const auto row_of = [&](std::size_t r) {
    return rows + static_cast<std::ptrdiff_t>(r) * row_stride_bytes;
  };
  std::size_t c = 0;
  for (; c + 2 * kLanes <= dim; c += 2 * kLanes) {
    const float32x4_t low_f32x4 = vld1q_f32(query + c);
    const float32x4_t high_f32x4 = vld1q_f32(query + c + kLanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      sum_f32x4[r][0] = vfmaq_f32(sum_f32x4[r][0], low_f32x4, load<kType>(row_of(r), c));
      sum_f32x4[r][1] = vfmaq_f32(sum_f32x4[r][1], high_f32x4, load<kType>(row_of(r), c + kLanes));
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    float total = vaddvq_f32(vaddq_f32(sum_f32x4[r][0], sum_f32x4[r][1]));
    for (std::size_t t = c; t < dim; ++t)
      total += query[t] * scalar::load(row_of(r), kType, t);
    out[r] = total;
  }
}

template <ElementType kType>
inline void row_dots_as(const float* queries, std::size_t num_queries, std::ptrdiff_t query_stride,
                        const RowBlock& rows, float* out, std::ptrdiff_t out_stride) noexcept {
  constexpr std::size_t kRows = 4;
  // From a few queries on it pays to widen four rows once for all of them.
  const bool widens =
      kType != ElementType::kF32 && num_queries > 2 && rows.dim <= scalar::kMaxWidenedDim;
  float widened[kType == ElementType::kF32 ? 1 : kRows * scalar::kMaxWidenedDim];
  for (std::size_t i = 0; i < rows.num_rows; i += kRows) {
    const std::size_t num_rows = std::min(kRows, rows.num_rows - i);
    if (widens) {
      for (std::size_t r = 0; r < num_rows; ++r)
        widen_as<kType>(scalar::row_of(rows, i + r), rows.dim, widened + r * rows.dim);
      row_dots_as<ElementType::kF32>(
          queries, num_queries, query_stride,
          {widened, static_cast<std::ptrdiff_t>(rows.dim * sizeof(float)), num_rows, rows.dim,
           ElementType::kF32},
          out + i, out_stride);
      continue;
    }
    for (std::size_t q = 0; q < num_queries; ++q) {
      const float* query = queries + static_cast<std::ptrdiff_t>(q) * query_stride;
      float* target =
          out + static_cast<std::ptrdiff_t>(q) * out_stride + static_cast<std::ptrdiff_t>(i);
      if (num_rows == kRows) {
        dot_rows<kType, kRows>(query, scalar::row_of(rows, i), rows.stride_bytes, rows.dim, target);
        continue;
      }
      for (std::size_t r = 0; r < num_rows; ++r) {
        dot_rows<kType, 1>(query, scalar::row_of(rows, i + r), rows.stride_bytes, rows.dim,
                           target + r);
      }
    }
  }
}

template <ElementType kType>
inline void row_norms_as(const RowBlock& rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = scalar::row_of(rows, i);
    float64x2_t low_f64x2 = vdupq_n_f64(0.0);
    float64x2_t high_f64x2 = vdupq_n_f64(0.0);
    std::size_t c = 0;
    for (; c + kLanes <= rows.dim; c += kLanes) {
      const float32x4_t x_f32x4 = load<kType>(row, c);
      const float64x2_t low = vcvt_f64_f32(vget_low_f32(x_f32x4));
      const float64x2_t high = vcvt_high_f64_f32(x_f32x4);
      low_f64x2 = vfmaq_f64(low_f64x2, low, low);
      high_f64x2 = vfmaq_f64(high_f64x2, high, high);
    }
    double total = vaddvq_f64(vaddq_f64(low_f64x2, high_f64x2));
    for (; c < rows.dim; ++c) {
      const double x = scalar::load(row, kType, c);
      total += x * x;
    }
    out[i] = static_cast<float>(std::sqrt(total));
  }
}

inline void widen(const void* source, ElementType type, std::size_t n,
                  float* destination) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  with_type(type, [&]<ElementType kType>() { widen_as<kType>(bytes, n, destination); });
}
inline void row_dots(const float* queries, std::size_t num_queries, std::ptrdiff_t query_stride,
                     RowBlock rows, float* out, std::ptrdiff_t out_stride) noexcept {
  with_type(rows.type, [&]<ElementType kType>() {
    row_dots_as<kType>(queries, num_queries, query_stride, rows, out, out_stride);
  });
}
inline void row_norms(RowBlock rows, float* out) noexcept {
  with_type(rows.type, [&]<ElementType kType>() { row_norms_as<kType>(rows, out); });
}

// As on x86: rows widened once, then column by column of C with the upper triangle left out.
inline void projected_norms(const float* factor, RowBlock rows, float* out) noexcept {
  if (rows.dim > scalar::kMaxWidenedDim)
    return scalar::projected_norms(factor, rows, out);
  float value[scalar::kMaxWidenedDim];
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    widen(scalar::row_of(rows, i), rows.type, rows.dim, value);
    double squares = 0.0;
    std::size_t j = 0;
    float64x2_t squares_f64x2 = vdupq_n_f64(0.0);
    for (; j + kLanes <= rows.dim; j += kLanes) {
      float32x4_t sum_f32x4 = vdupq_n_f32(0.0F);
      for (std::size_t c = j; c < rows.dim; ++c) {
        sum_f32x4 = vfmaq_n_f32(sum_f32x4, vld1q_f32(factor + c * rows.dim + j), value[c]);
      }
      const float64x2_t low = vcvt_f64_f32(vget_low_f32(sum_f32x4));
      const float64x2_t high = vcvt_high_f64_f32(sum_f32x4);
      squares_f64x2 = vfmaq_f64(vfmaq_f64(squares_f64x2, low, low), high, high);
    }
    for (; j < rows.dim; ++j) {
      float sum = 0.0F;
      for (std::size_t c = j; c < rows.dim; ++c)
        sum += factor[c * rows.dim + j] * value[c];
      squares += static_cast<double>(sum) * static_cast<double>(sum);
    }
    const auto norm = static_cast<float>(std::sqrt(squares + vaddvq_f64(squares_f64x2)));
    out[i] = scalar::checked_norm(norm, factor, rows, i);
  }
}

[[nodiscard]] inline double squared_distance(const float* a, const float* b,
                                             std::size_t n) noexcept {
  float64x2_t sum_f64x2 = vdupq_n_f64(0.0);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t a_f32x4 = vld1q_f32(a + i);
    const float32x4_t b_f32x4 = vld1q_f32(b + i);
    const float64x2_t low =
        vsubq_f64(vcvt_f64_f32(vget_low_f32(a_f32x4)), vcvt_f64_f32(vget_low_f32(b_f32x4)));
    const float64x2_t high = vsubq_f64(vcvt_high_f64_f32(a_f32x4), vcvt_high_f64_f32(b_f32x4));
    sum_f64x2 = vfmaq_f64(vfmaq_f64(sum_f64x2, low, low), high, high);
  }
  return vaddvq_f64(sum_f64x2) + scalar::squared_distance(a + i, b + i, n - i);
}

[[nodiscard]] inline double sum(const float* x, std::size_t n) noexcept {
  float64x2_t sum_f64x2 = vdupq_n_f64(0.0);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t x_f32x4 = vld1q_f32(x + i);
    sum_f64x2 = vaddq_f64(
        sum_f64x2, vaddq_f64(vcvt_f64_f32(vget_low_f32(x_f32x4)), vcvt_high_f64_f32(x_f32x4)));
  }
  return vaddvq_f64(sum_f64x2) + scalar::sum(x + i, n - i);
}

[[nodiscard]] inline float max_value(const float* x, std::size_t n) noexcept {
  float32x4_t largest_f32x4 = vdupq_n_f32(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  // maxnm returns the number where one operand is a quiet NaN.
  for (; i + kLanes <= n; i += kLanes) {
    largest_f32x4 = vmaxnmq_f32(largest_f32x4, vld1q_f32(x + i));
  }
  return std::max(vmaxnmvq_f32(largest_f32x4), scalar::max_value(x + i, n - i));
}

inline void scale(float factor, std::size_t n, float* x) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(x + i), factor));
  scalar::scale(factor, n - i, x + i);
}

inline std::size_t scale_logits(float factor, std::size_t n, float* x, float& largest) noexcept {
  const float32x4_t finite_f32x4 = vdupq_n_f32(std::numeric_limits<float>::max());
  float32x4_t largest_f32x4 = vdupq_n_f32(-std::numeric_limits<float>::infinity());
  std::size_t non_finite = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t x_f32x4 = vmulq_n_f32(vld1q_f32(x + i), factor);
    vst1q_f32(x + i, x_f32x4);
    largest_f32x4 = vmaxnmq_f32(largest_f32x4, x_f32x4);
    non_finite += kLanes - vaddvq_u32(vshrq_n_u32(vcleq_f32(x_f32x4, finite_f32x4), 31));
  }
  float rest;
  non_finite += scalar::scale_logits(factor, n - i, x + i, rest);
  largest = std::max(vmaxnmvq_f32(largest_f32x4), rest);
  return non_finite;
}

/// exp for x <= 88 and -infinity, not NaN: x = k ln 2 + r, exp(r) by a polynomial of degree 6
/// (relative error below 2e-7), scaled by 2^k. Results below the smallest normal float are 0.
[[nodiscard]] inline float32x4_t exp_f32x4(float32x4_t x) noexcept {
  const uint32x4_t vanishes = vcltq_f32(x, vdupq_n_f32(-87.33F));
  const float32x4_t k = vrndnq_f32(vmulq_n_f32(x, 1.44269504F));
  float32x4_t r = vfmsq_f32(x, k, vdupq_n_f32(0.693359375F));
  r = vfmsq_f32(r, k, vdupq_n_f32(-2.12194440e-4F));
  float32x4_t p = vdupq_n_f32(1.0F / 720);
  for (const float coefficient : {1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    p = vfmaq_f32(vdupq_n_f32(coefficient), p, r);
  }
  const int32x4_t exponent_i32x4 = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(k), vdupq_n_s32(127)), 23);
  const float32x4_t result = vmulq_f32(p, vreinterpretq_f32_s32(exponent_i32x4));
  return vbslq_f32(vanishes, vdupq_n_f32(0.0F), result);
}

/// exp_shifted of four entries. Larger than the shift by more than 80 is left to the scalar form,
/// lane by lane, since it may overflow.
[[nodiscard]] inline float32x4_t exp_lanes(float32x4_t x, float shift) noexcept {
  const float32x4_t shifted = vsubq_f32(x, vdupq_n_f32(shift));
  const float32x4_t e = vbslq_f32(vceqq_f32(x, x), exp_f32x4(shifted), vdupq_n_f32(0.0F));
  const uint32x4_t large = vcgtq_f32(shifted, vdupq_n_f32(80.0F));
  if (vmaxvq_u32(large) == 0)
    return e;
  std::array<float, kLanes> lanes;
  std::array<float, kLanes> differences;
  vst1q_f32(lanes.data(), e);
  vst1q_f32(differences.data(), shifted);
  for (std::size_t i = 0; i < kLanes; ++i) {
    if (differences[i] > 80.0F)
      lanes[i] = std::exp(differences[i]);
  }
  return vld1q_f32(lanes.data());
}

// The last entries take the same path as all others, so that equal ones stay equal.
inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  if (!std::isfinite(shift))
    return scalar::exp_shifted(shift, n, x);
  float64x2_t sum_f64x2 = vdupq_n_f64(0.0);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t e_f32x4 = exp_lanes(vld1q_f32(x + i), shift);
    vst1q_f32(x + i, e_f32x4);
    sum_f64x2 = vaddq_f64(
        sum_f64x2, vaddq_f64(vcvt_f64_f32(vget_low_f32(e_f32x4)), vcvt_high_f64_f32(e_f32x4)));
  }
  double total = vaddvq_f64(sum_f64x2);
  if (i < n) {
    std::array<float, kLanes> lanes{};
    std::copy(x + i, x + n, lanes.begin());
    vst1q_f32(lanes.data(), exp_lanes(vld1q_f32(lanes.data()), shift));
    for (std::size_t j = 0; i < n; ++i, ++j) {
      x[i] = lanes[j];
      total += static_cast<double>(lanes[j]);
    }
  }
  return total;
}

/// tanh: near zero an odd polynomial (the minimax one of the Cephes library), 1 - 2 / (e^2x + 1)
/// elsewhere; relative error below 2e-7.
[[nodiscard]] inline float32x4_t tanh_f32x4(float32x4_t x) noexcept {
  const float32x4_t one = vdupq_n_f32(1.0F);
  // From 10 on it is 1.
  const float32x4_t magnitude = vminq_f32(vabsq_f32(x), vdupq_n_f32(10.0F));
  const float32x4_t square = vmulq_f32(x, x);
  float32x4_t p = vdupq_n_f32(-5.70498872745e-3F);
  for (const float coefficient :
       {2.06390887954e-2F, -5.37397155531e-2F, 1.33314422036e-1F, -3.33332819422e-1F}) {
    p = vfmaq_f32(vdupq_n_f32(coefficient), p, square);
  }
  const float32x4_t near_zero = vfmaq_f32(x, vmulq_f32(p, square), x);
  const float32x4_t e = exp_f32x4(vaddq_f32(magnitude, magnitude));
  const float32x4_t far = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0F), vaddq_f32(e, one)));
  const float32x4_t signed_far = vbslq_f32(vdupq_n_u32(0x80000000U), x, far);
  return vbslq_f32(vcgeq_f32(magnitude, vdupq_n_f32(0.625F)), signed_far, near_zero);
}

[[nodiscard]] inline float32x4_t capped(float32x4_t x, float cap) noexcept {
  const float32x4_t cap_f32x4 = vdupq_n_f32(cap);
  const float32x4_t y = vmulq_f32(cap_f32x4, tanh_f32x4(vdivq_f32(x, cap_f32x4)));
  return vbslq_f32(vceqq_f32(x, x), y, x);
}
inline void soft_cap(float cap, std::size_t n, float* x) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    vst1q_f32(x + i, capped(vld1q_f32(x + i), cap));
  if (i < n) {
    std::array<float, kLanes> lanes{};
    std::copy(x + i, x + n, lanes.begin());
    vst1q_f32(lanes.data(), capped(vld1q_f32(lanes.data()), cap));
    std::copy_n(lanes.begin(), n - i, x + i);
  }
}

/// Where `sample` is finite, y becomes `next`; returns how many lanes were not.
[[nodiscard]] inline std::size_t store_finite(float32x4_t sample, float32x4_t next,
                                              float* y) noexcept {
  const uint32x4_t wanted =
      vcleq_f32(vabsq_f32(sample), vdupq_n_f32(std::numeric_limits<float>::max()));
  vst1q_f32(y, vbslq_f32(wanted, next, vld1q_f32(y)));
  return kLanes - vaddvq_u32(vshrq_n_u32(wanted, 31));
}

inline std::size_t add(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float32x4_t sample = vmulq_n_f32(vld1q_f32(x + i), factor);
    KVEVICT_ROUND(sample);
    skipped += store_finite(sample, vaddq_f32(vld1q_f32(y + i), sample), y + i);
  }
  return skipped + scalar::add(factor, x + i, n - i, y + i);
}

inline std::size_t add_squared(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t scaled = vmulq_n_f32(vld1q_f32(x + i), factor);
    float32x4_t sample = vmulq_f32(scaled, scaled);
    KVEVICT_ROUND(sample);
    skipped += store_finite(sample, vaddq_f32(vld1q_f32(y + i), sample), y + i);
  }
  return skipped + scalar::add_squared(factor, x + i, n - i, y + i);
}

inline std::size_t add_product(float factor, const float* a, const float* b, std::size_t n,
                               float* y) noexcept {
  std::size_t skipped = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float32x4_t sample = vmulq_f32(vmulq_n_f32(vld1q_f32(a + i), factor), vld1q_f32(b + i));
    KVEVICT_ROUND(sample);
    skipped += store_finite(sample, vaddq_f32(vld1q_f32(y + i), sample), y + i);
  }
  return skipped + scalar::add_product(factor, a + i, b + i, n - i, y + i);
}

inline std::size_t take_max(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float32x4_t sample = vmulq_n_f32(vld1q_f32(x + i), factor);
    KVEVICT_ROUND(sample);
    skipped += store_finite(sample, vmaxq_f32(vld1q_f32(y + i), sample), y + i);
  }
  return skipped + scalar::take_max(factor, x + i, n - i, y + i);
}

inline std::size_t ema(float decay, const float* sample, std::size_t n, float* state) noexcept {
  std::size_t skipped = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const float32x4_t sample_f32x4 = vld1q_f32(sample + i);
    float32x4_t old_part = vmulq_n_f32(vld1q_f32(state + i), decay);
    float32x4_t new_part = vmulq_n_f32(sample_f32x4, 1.0F - decay);
    KVEVICT_ROUND(old_part);
    KVEVICT_ROUND(new_part);
    const float32x4_t next = vaddq_f32(old_part, new_part);
    const uint32x4_t tiny =
        vcltq_f32(vabsq_f32(next), vdupq_n_f32(std::numeric_limits<float>::min()));
    skipped += store_finite(sample_f32x4, vbslq_f32(tiny, vdupq_n_f32(0.0F), next), state + i);
  }
  return skipped + scalar::ema(decay, sample + i, n - i, state + i);
}

inline constexpr KernelSet kSet{
    .isa = Isa::kNeon,
    .widen = widen,
    .row_dots = row_dots,
    .row_norms = row_norms,
    .row_variances = scalar::row_variances,
    .projected_norms = projected_norms,
    .band_dots = scalar::band_dots,
    .squared_distance = squared_distance,
    .sum = sum,
    .max_value = max_value,
    .scale = scale,
    .standardise = scalar::standardise,
    .scale_logits = scale_logits,
    .take_ranges = scalar::take_ranges,
    .scaled_variance = scalar::scaled_variance,
    .soft_cap = soft_cap,
    .exp_shifted = exp_shifted,
    .add = add,
    .add_rows = scalar::add_rows_by<add>,
    .add_squared = add_squared,
    .add_product = add_product,
    .take_max = take_max,
    .ema = ema,
    .average_pool = scalar::average_pool,
    .max_pool = scalar::max_pool,
    .order_keys = scalar::order_keys,
    .lowest_key = scalar::lowest_key,
    .compare_keys = scalar::compare_keys,
};

}  // namespace kernels::neon
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_NEON_HPP_
