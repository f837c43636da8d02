#ifndef KVEVICT_TESTS_EMULATED_AVX512_EMULATION_HPP_
#define KVEVICT_TESTS_EMULATED_AVX512_EMULATION_HPP_

// The AVX-512 kernels in plain loops, for machines that have AVX2 but not AVX-512: the instructions
// that they use by what their manual says, lane by lane. Whatever is included after this believes
// that the machine has them. It has to be included before all else, and a program that holds it
// must not hold the true ones.

#include "kvevict/config.hpp"

#if KVEVICT_HAS_X86 && (defined(__GNUC__) || defined(__clang__))

#include "kvevict/kernels/avx2.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/scalar.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

// What has a register of AVX2 as argument or result; lambdas in it have none.
#define KVEVICT_TEST_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace emulated {

template <class T, std::size_t kLanes>
struct Register {
  std::array<T, kLanes> lanes;
};
using F32x16 = Register<float, 16>;
using F64x8 = Register<double, 8>;
using I32x16 = Register<std::uint32_t, 16>;

template <class R>
constexpr std::size_t kLanesOf = std::tuple_size_v<decltype(R::lanes)>;

[[nodiscard]] inline bool in(std::uint32_t mask, std::size_t lane) noexcept {
  return (mask >> lane & 1U) != 0;
}
// Lane by lane; lanes outside of `mask` are those of `rest`.
template <class R, class Compute>
[[nodiscard]] R make(const R& rest, std::uint32_t mask, Compute&& compute) {
  R result = rest;
  for (std::size_t i = 0; i < kLanesOf<R>; ++i) {
    if (in(mask, i))
      result.lanes[i] = compute(i);
  }
  return result;
}
template <class R, class Compute>
[[nodiscard]] R make(Compute&& compute) {
  return make(R{}, ~0U, compute);
}

[[nodiscard]] inline F32x16 setzero_ps() noexcept {
  return F32x16{};
}
[[nodiscard]] inline F64x8 setzero_pd() noexcept {
  return F64x8{};
}
[[nodiscard]] inline F32x16 set1_ps(float x) {
  return make<F32x16>([=](std::size_t) { return x; });
}
[[nodiscard]] inline I32x16 set1_epi32(std::int32_t x) {
  return make<I32x16>([&](std::size_t) { return static_cast<std::uint32_t>(x); });
}
[[nodiscard]] inline F64x8 set1_pd(double x) {
  return make<F64x8>([=](std::size_t) { return x; });
}
// A lane that the mask leaves out is not touched in memory.
[[nodiscard]] inline F32x16 maskz_loadu_ps(std::uint32_t mask, const void* from) {
  return make(F32x16{}, mask, [=](std::size_t i) {
    float x;
    std::memcpy(&x, static_cast<const std::byte*>(from) + 4 * i, 4);
    return x;
  });
}
[[nodiscard]] inline F32x16 loadu_ps(const void* from) {
  return maskz_loadu_ps(0xFFFF, from);
}
inline void mask_storeu_ps(void* to, std::uint32_t mask, const F32x16& x) {
  for (std::size_t i = 0; i < 16; ++i) {
    if (in(mask, i))
      std::memcpy(static_cast<std::byte*>(to) + 4 * i, &x.lanes[i], 4);
  }
}
inline void storeu_ps(void* to, const F32x16& x) {
  mask_storeu_ps(to, 0xFFFF, x);
}
inline void mask_storeu_epi32(void* to, std::uint32_t mask, const I32x16& x) {
  for (std::size_t i = 0; i < 16; ++i) {
    if (in(mask, i))
      std::memcpy(static_cast<std::byte*>(to) + 4 * i, &x.lanes[i], 4);
  }
}
inline void store_si512(void* to, const I32x16& x) {
  mask_storeu_epi32(to, 0xFFFF, x);
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline __m256i maskz_loadu_epi16(std::uint32_t mask,
                                                                 const void* from) {
  alignas(32) std::array<std::uint16_t, 16> lanes{};
  for (std::size_t i = 0; i < 16; ++i) {
    if (in(mask, i))
      std::memcpy(&lanes[i], static_cast<const std::byte*>(from) + 2 * i, 2);
  }
  __m256i result;
  std::memcpy(&result, lanes.data(), sizeof result);
  return result;
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline I32x16 maskz_cvtepu16_epi32(std::uint32_t mask, __m256i x) {
  const auto lanes = std::bit_cast<std::array<std::uint16_t, 16>>(x);
  return make(I32x16{}, mask, [&](std::size_t i) { return std::uint32_t{lanes[i]}; });
}
[[nodiscard]] inline __m128i maskz_loadu_epi8(std::uint32_t mask, const void* from) {
  std::array<std::uint8_t, 16> lanes{};
  for (std::size_t i = 0; i < 16; ++i) {
    if (in(mask, i))
      std::memcpy(&lanes[i], static_cast<const std::byte*>(from) + i, 1);
  }
  return std::bit_cast<__m128i>(lanes);
}
// Lanes are signed.
[[nodiscard]] inline I32x16 maskz_cvtepi8_epi32(std::uint32_t mask, __m128i x) {
  const auto lanes = std::bit_cast<std::array<std::int8_t, 16>>(x);
  return make(I32x16{}, mask,
              [&](std::size_t i) { return static_cast<std::uint32_t>(std::int32_t{lanes[i]}); });
}
[[nodiscard]] inline F32x16 maskz_cvtepi32_ps(std::uint32_t mask, const I32x16& x) {
  return make(F32x16{}, mask, [&](std::size_t i) {
    return static_cast<float>(static_cast<std::int32_t>(x.lanes[i]));
  });
}
[[nodiscard]] inline I32x16 maskz_slli_epi32(std::uint32_t mask, const I32x16& x, unsigned bits) {
  return make(I32x16{}, mask, [&](std::size_t i) { return x.lanes[i] << bits; });
}
[[nodiscard]] inline I32x16 maskz_srai_epi32(std::uint32_t mask, const I32x16& x, unsigned bits) {
  return make(I32x16{}, mask, [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(x.lanes[i]) >> bits);
  });
}
[[nodiscard]] inline I32x16 castps_si512(const F32x16& x) {
  return std::bit_cast<I32x16>(x);
}
[[nodiscard]] inline F32x16 castsi512_ps(const I32x16& x) {
  return std::bit_cast<F32x16>(x);
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline F32x16 maskz_cvtph_ps(std::uint32_t mask, __m256i x) {
  const auto lanes = std::bit_cast<std::array<std::uint16_t, 16>>(x);
  return make(F32x16{}, mask, [&](std::size_t i) { return kvevict::kernels::from_f16(lanes[i]); });
}

#define KVEVICT_TEST_BINARY(name, type, expression)              \
  [[nodiscard]] inline type name(const type& a, const type& b) { \
    return make<type>([&](std::size_t i) {                       \
      const auto x = a.lanes[i];                                 \
      const auto y = b.lanes[i];                                 \
      return expression;                                         \
    });                                                          \
  }
KVEVICT_TEST_BINARY(add_ps, F32x16, x + y)
KVEVICT_TEST_BINARY(sub_ps, F32x16, x - y)
KVEVICT_TEST_BINARY(mul_ps, F32x16, x* y)
KVEVICT_TEST_BINARY(div_ps, F32x16, x / y)
KVEVICT_TEST_BINARY(add_pd, F64x8, x + y)
KVEVICT_TEST_BINARY(sub_pd, F64x8, x - y)
KVEVICT_TEST_BINARY(mul_pd, F64x8, x* y)
// The second operand where one is NaN or both are zero.
KVEVICT_TEST_BINARY(max_ps, F32x16, (x > y ? x : y))
KVEVICT_TEST_BINARY(min_ps, F32x16, (x < y ? x : y))
KVEVICT_TEST_BINARY(or_si512, I32x16, x | y)
KVEVICT_TEST_BINARY(xor_si512, I32x16, x ^ y)
KVEVICT_TEST_BINARY(min_epu32, I32x16, std::min(x, y))
#undef KVEVICT_TEST_BINARY

template <class R>
[[nodiscard]] R blend(const R& rest, std::uint32_t mask, const R& x) {
  return make(rest, mask, [&](std::size_t i) { return x.lanes[i]; });
}
[[nodiscard]] inline F32x16 mask_mov_ps(const F32x16& rest, std::uint32_t mask, const F32x16& x) {
  return blend(rest, mask, x);
}
[[nodiscard]] inline F32x16 maskz_mov_ps(std::uint32_t mask, const F32x16& x) {
  return blend(F32x16{}, mask, x);
}
[[nodiscard]] inline F32x16 mask_sub_ps(const F32x16& rest, std::uint32_t mask, const F32x16& a,
                                        const F32x16& b) {
  return blend(rest, mask, sub_ps(a, b));
}
[[nodiscard]] inline F32x16 mask_add_ps(const F32x16& rest, std::uint32_t mask, const F32x16& a,
                                        const F32x16& b) {
  return blend(rest, mask, add_ps(a, b));
}
[[nodiscard]] inline F32x16 maskz_sub_ps(std::uint32_t mask, const F32x16& a, const F32x16& b) {
  return blend(F32x16{}, mask, sub_ps(a, b));
}
[[nodiscard]] inline F64x8 maskz_sub_pd(std::uint32_t mask, const F64x8& a, const F64x8& b) {
  return blend(F64x8{}, mask, sub_pd(a, b));
}
[[nodiscard]] inline I32x16 maskz_mov_epi32(std::uint32_t mask, const I32x16& x) {
  return blend(I32x16{}, mask, x);
}
[[nodiscard]] inline I32x16 maskz_xor_epi32(std::uint32_t mask, const I32x16& a, const I32x16& b) {
  return blend(I32x16{}, mask, xor_si512(a, b));
}
[[nodiscard]] inline I32x16 mask_min_epu32(const I32x16& rest, std::uint32_t mask, const I32x16& a,
                                           const I32x16& b) {
  return blend(rest, mask, min_epu32(a, b));
}
[[nodiscard]] inline I32x16 maskz_min_epu32(std::uint32_t mask, const I32x16& a, const I32x16& b) {
  return blend(I32x16{}, mask, min_epu32(a, b));
}
[[nodiscard]] inline F32x16 maskz_mul_ps(std::uint32_t mask, const F32x16& a, const F32x16& b) {
  return blend(F32x16{}, mask, mul_ps(a, b));
}
[[nodiscard]] inline F32x16 mask_max_ps(const F32x16& rest, std::uint32_t mask, const F32x16& a,
                                        const F32x16& b) {
  return blend(rest, mask, max_ps(a, b));
}
[[nodiscard]] inline F32x16 maskz_max_ps(std::uint32_t mask, const F32x16& a, const F32x16& b) {
  return blend(F32x16{}, mask, max_ps(a, b));
}
[[nodiscard]] inline F32x16 maskz_min_ps(std::uint32_t mask, const F32x16& a, const F32x16& b) {
  return blend(F32x16{}, mask, min_ps(a, b));
}
[[nodiscard]] inline F32x16 fmadd_ps(const F32x16& a, const F32x16& b, const F32x16& c) {
  return make<F32x16>([&](std::size_t i) { return std::fma(a.lanes[i], b.lanes[i], c.lanes[i]); });
}
[[nodiscard]] inline F32x16 fnmadd_ps(const F32x16& a, const F32x16& b, const F32x16& c) {
  return make<F32x16>([&](std::size_t i) { return std::fma(-a.lanes[i], b.lanes[i], c.lanes[i]); });
}
[[nodiscard]] inline F64x8 fmadd_pd(const F64x8& a, const F64x8& b, const F64x8& c) {
  return make<F64x8>([&](std::size_t i) { return std::fma(a.lanes[i], b.lanes[i], c.lanes[i]); });
}
[[nodiscard]] inline F32x16 abs_ps(const F32x16& x) {
  return make<F32x16>([&](std::size_t i) { return std::abs(x.lanes[i]); });
}
// Scale 0, to nearest: the only rounding that the kernels ask for.
[[nodiscard]] inline F32x16 maskz_roundscale_ps(std::uint32_t mask, const F32x16& x, int) {
  return make(F32x16{}, mask, [&](std::size_t i) { return std::nearbyint(x.lanes[i]); });
}
[[nodiscard]] inline F32x16 maskz_scalef_ps(std::uint32_t mask, const F32x16& x,
                                            const F32x16& power) {
  return make(F32x16{}, mask, [&](std::size_t i) {
    return x.lanes[i] * std::exp2(std::floor(power.lanes[i] / 2)) *
           std::exp2(std::floor(power.lanes[i]) - std::floor(power.lanes[i] / 2));
  });
}
[[nodiscard]] inline std::uint32_t mask_cmp_ps_mask(std::uint32_t mask, const F32x16& a,
                                                    const F32x16& b, int predicate) {
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    const float x = a.lanes[i];
    const float y = b.lanes[i];
    bool holds = false;
    switch (predicate) {
      case _CMP_EQ_OQ:
        holds = x == y;
        break;
      case _CMP_LT_OQ:
        holds = x < y;
        break;
      case _CMP_LE_OQ:
        holds = x <= y;
        break;
      case _CMP_GE_OQ:
        holds = x >= y;
        break;
      case _CMP_GT_OQ:
        holds = x > y;
        break;
      case _CMP_NEQ_UQ:
        holds = !(x == y);
        break;
      case _CMP_NLT_UQ:
        holds = !(x < y);
        break;
      case _CMP_NLE_UQ:
        holds = !(x <= y);
        break;
      case _CMP_ORD_Q:
        holds = !std::isnan(x) && !std::isnan(y);
        break;
      case _CMP_UNORD_Q:
        holds = std::isnan(x) || std::isnan(y);
        break;
      default:
        std::abort();  // a predicate that no kernel used yet
    }
    if (holds && in(mask, i))
      result |= 1U << i;
  }
  return result;
}
template <class Holds>
[[nodiscard]] std::uint32_t mask_of(std::uint32_t mask, Holds&& holds) {
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < 16; ++i)
    result |= in(mask, i) && holds(i) ? 1U << i : 0U;
  return result;
}
[[nodiscard]] inline std::uint16_t mask_cmpgt_epu32_mask(std::uint32_t mask, const I32x16& a,
                                                         const I32x16& b) {
  return static_cast<std::uint16_t>(
      mask_of(mask, [&](std::size_t i) { return a.lanes[i] > b.lanes[i]; }));
}
[[nodiscard]] inline std::uint16_t mask_cmpge_epu32_mask(std::uint32_t mask, const I32x16& a,
                                                         const I32x16& b) {
  return static_cast<std::uint16_t>(
      mask_of(mask, [&](std::size_t i) { return a.lanes[i] >= b.lanes[i]; }));
}
[[nodiscard]] inline std::uint32_t cmp_ps_mask(const F32x16& a, const F32x16& b, int predicate) {
  return mask_cmp_ps_mask(0xFFFF, a, b, predicate);
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline __m256 maskz_extractf32x8_ps(std::uint32_t mask,
                                                                    const F32x16& x, int half) {
  std::array<float, 8> lanes{};
  for (std::size_t i = 0; i < 8; ++i)
    lanes[i] = in(mask, i) ? x.lanes[8 * static_cast<std::size_t>(half) + i] : 0.0F;
  __m256 result;
  std::memcpy(&result, lanes.data(), sizeof result);
  return result;
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline __m256d maskz_extractf64x4_pd(std::uint32_t mask,
                                                                     const F64x8& x, int half) {
  std::array<double, 4> lanes{};
  for (std::size_t i = 0; i < 4; ++i)
    lanes[i] = in(mask, i) ? x.lanes[4 * static_cast<std::size_t>(half) + i] : 0.0;
  __m256d result;
  std::memcpy(&result, lanes.data(), sizeof result);
  return result;
}
[[nodiscard]] inline __m128 maskz_extractf32x4_ps(std::uint32_t mask, const F32x16& x,
                                                  int quarter) {
  std::array<float, 4> lanes{};
  for (std::size_t i = 0; i < 4; ++i)
    lanes[i] = in(mask, i) ? x.lanes[4 * static_cast<std::size_t>(quarter) + i] : 0.0F;
  __m128 result;
  std::memcpy(&result, lanes.data(), sizeof result);
  return result;
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline F64x8 maskz_cvtps_pd(std::uint32_t mask, __m256 x) {
  const auto lanes = std::bit_cast<std::array<float, 8>>(x);
  return make(F64x8{}, mask, [&](std::size_t i) { return static_cast<double>(lanes[i]); });
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline __m256 maskz_cvtpd_ps(std::uint32_t mask, const F64x8& x) {
  std::array<float, 8> lanes{};
  for (std::size_t i = 0; i < 8; ++i)
    lanes[i] = in(mask, i) ? static_cast<float>(x.lanes[i]) : 0.0F;
  __m256 result;
  std::memcpy(&result, lanes.data(), sizeof result);
  return result;
}
// The upper lanes are undefined in the original.
[[nodiscard]] KVEVICT_TEST_AVX2 inline F32x16 castps256_ps512(__m256 x) {
  const auto lanes = std::bit_cast<std::array<float, 8>>(x);
  return make(set1_ps(std::numeric_limits<float>::quiet_NaN()), 0xFF,
              [&](std::size_t i) { return lanes[i]; });
}
[[nodiscard]] KVEVICT_TEST_AVX2 inline F32x16 maskz_insertf32x8(std::uint32_t mask,
                                                                const F32x16& rest, __m256 x,
                                                                std::size_t half) {
  const auto lanes = std::bit_cast<std::array<float, 8>>(x);
  return make(F32x16{}, mask,
              [&](std::size_t i) { return i / 8 == half ? lanes[i % 8] : rest.lanes[i]; });
}
// Quarter q of the result is quarter (control >> 2q) & 3 of a (q < 2) or b.
[[nodiscard]] inline F32x16 maskz_shuffle_f32x4(std::uint32_t mask, const F32x16& a,
                                                const F32x16& b, unsigned control) {
  return make(F32x16{}, mask, [&](std::size_t i) {
    const std::size_t quarter = control >> i / 4 * 2 & 3U;
    return (i < 8 ? a : b).lanes[4 * quarter + i % 4];
  });
}
// Within each quarter, lane l is lane (control >> 2l) & 3 of a (l < 2) or b.
[[nodiscard]] inline F32x16 maskz_shuffle_ps(std::uint32_t mask, const F32x16& a, const F32x16& b,
                                             unsigned control) {
  return make(F32x16{}, mask, [&](std::size_t i) {
    const std::size_t lane = control >> i % 4 * 2 & 3U;
    return (i % 4 < 2 ? a : b).lanes[i / 4 * 4 + lane];
  });
}

[[nodiscard]] inline bool is_avx512(std::string_view feature) noexcept {
  return feature.starts_with("avx512");
}

}  // namespace emulated

// Some are macros already.
#undef _mm512_abs_ps
#undef _mm512_add_pd
#undef _mm512_add_ps
#undef _mm512_castsi512_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_div_pd
#undef _mm512_div_ps
#undef _mm512_fmadd_pd
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#undef _mm512_loadu_ps
#undef _mm512_mask_cmp_ps_mask
#undef _mm512_mask_max_ps
#undef _mm512_mask_mov_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_mask_sub_ps
#undef _mm512_maskz_cvtepi32_ps
#undef _mm512_maskz_cvtepi8_epi32
#undef _mm512_maskz_cvtepu16_epi32
#undef _mm512_maskz_cvtpd_ps
#undef _mm512_maskz_cvtph_ps
#undef _mm512_maskz_cvtps_pd
#undef _mm512_maskz_extractf32x4_ps
#undef _mm512_maskz_extractf32x8_ps
#undef _mm512_maskz_extractf64x4_pd
#undef _mm512_maskz_loadu_ps
#undef _mm512_maskz_max_ps
#undef _mm512_maskz_min_ps
#undef _mm512_maskz_mov_ps
#undef _mm512_maskz_mul_ps
#undef _mm512_maskz_roundscale_ps
#undef _mm512_maskz_scalef_ps
#undef _mm512_maskz_slli_epi32
#undef _mm512_mul_ps
#undef _mm512_set1_pd
#undef _mm512_set1_ps
#undef _mm512_setzero_pd
#undef _mm512_setzero_ps
#undef _mm512_maskz_shuffle_f32x4
#undef _mm512_maskz_shuffle_ps
#undef _mm512_store_ps
#undef _mm512_storeu_ps
#undef _mm512_sub_pd
#undef _mm512_sub_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm_maskz_loadu_epi8

#define __m512 emulated::F32x16
#define __m512d emulated::F64x8
#define __m512i emulated::I32x16
#define _mm512_abs_ps emulated::abs_ps
#define _mm512_add_pd emulated::add_pd
#define _mm512_add_ps emulated::add_ps
#define _mm512_castps256_ps512 emulated::castps256_ps512
#define _mm512_castps_si512 emulated::castps_si512
#define _mm512_castsi512_ps emulated::castsi512_ps
#define _mm512_cmp_ps_mask(a, b, predicate) \
  static_cast<__mmask16>(emulated::cmp_ps_mask(a, b, predicate))
#define _mm512_div_ps emulated::div_ps
#define _mm512_fmadd_pd emulated::fmadd_pd
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fnmadd_ps emulated::fnmadd_ps
#define _mm512_load_ps emulated::loadu_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_mask_add_ps emulated::mask_add_ps
#define _mm512_mask_cmp_ps_mask(mask, a, b, predicate) \
  static_cast<__mmask16>(emulated::mask_cmp_ps_mask(mask, a, b, predicate))
#define _mm512_mask_cmpge_epu32_mask emulated::mask_cmpge_epu32_mask
#define _mm512_mask_cmpgt_epu32_mask emulated::mask_cmpgt_epu32_mask
#define _mm512_mask_max_ps emulated::mask_max_ps
#define _mm512_mask_min_epu32 emulated::mask_min_epu32
#define _mm512_mask_mov_ps emulated::mask_mov_ps
#define _mm512_mask_storeu_epi32 emulated::mask_storeu_epi32
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_mask_sub_ps emulated::mask_sub_ps
#define _mm512_maskz_cvtepi32_ps emulated::maskz_cvtepi32_ps
#define _mm512_maskz_cvtepi8_epi32 emulated::maskz_cvtepi8_epi32
#define _mm512_maskz_cvtepu16_epi32 emulated::maskz_cvtepu16_epi32
#define _mm512_maskz_cvtpd_ps emulated::maskz_cvtpd_ps
#define _mm512_maskz_cvtph_ps emulated::maskz_cvtph_ps
#define _mm512_maskz_cvtps_pd emulated::maskz_cvtps_pd
#define _mm512_maskz_extractf32x4_ps emulated::maskz_extractf32x4_ps
#define _mm512_maskz_extractf32x8_ps emulated::maskz_extractf32x8_ps
#define _mm512_maskz_extractf64x4_pd emulated::maskz_extractf64x4_pd
#define _mm512_maskz_insertf32x8 emulated::maskz_insertf32x8
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_maskz_max_ps emulated::maskz_max_ps
#define _mm512_maskz_min_epu32 emulated::maskz_min_epu32
#define _mm512_maskz_min_ps emulated::maskz_min_ps
#define _mm512_maskz_mov_epi32 emulated::maskz_mov_epi32
#define _mm512_maskz_mov_ps emulated::maskz_mov_ps
#define _mm512_maskz_mul_ps emulated::maskz_mul_ps
#define _mm512_maskz_roundscale_ps emulated::maskz_roundscale_ps
#define _mm512_maskz_scalef_ps emulated::maskz_scalef_ps
#define _mm512_maskz_shuffle_f32x4 emulated::maskz_shuffle_f32x4
#define _mm512_maskz_shuffle_ps emulated::maskz_shuffle_ps
#define _mm512_maskz_slli_epi32 emulated::maskz_slli_epi32
#define _mm512_maskz_srai_epi32 emulated::maskz_srai_epi32
#define _mm512_maskz_sub_pd emulated::maskz_sub_pd
#define _mm512_maskz_sub_ps emulated::maskz_sub_ps
#define _mm512_maskz_xor_epi32 emulated::maskz_xor_epi32
#define _mm512_mul_pd emulated::mul_pd
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_or_si512 emulated::or_si512
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_pd emulated::set1_pd
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_pd emulated::setzero_pd
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_store_ps emulated::storeu_ps
#define _mm512_store_si512 emulated::store_si512
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_sub_pd emulated::sub_pd
#define _mm512_sub_ps emulated::sub_ps
#define _mm256_maskz_loadu_epi16 emulated::maskz_loadu_epi16
#define _mm_maskz_loadu_epi8 emulated::maskz_loadu_epi8

#undef KVEVICT_TARGET
#define KVEVICT_TARGET(isa) KVEVICT_TEST_AVX2
#undef KVEVICT_ROUND_ZMM
#define KVEVICT_ROUND_ZMM(x) __asm__("" : "+m"(x))
// A machine without AVX2 still says so: what is above needs it.
#define __builtin_cpu_supports(feature) \
  (emulated::is_avx512(feature) || __builtin_cpu_supports(feature))

#endif

#endif  // KVEVICT_TESTS_EMULATED_AVX512_EMULATION_HPP_
