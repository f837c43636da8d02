#ifndef KVEVICT_KERNELS_KERNEL_SET_HPP_
#define KVEVICT_KERNELS_KERNEL_SET_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN
namespace kernels {

/// Instruction sets that a kernel set may be written for.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512, kNeon };

/// Equally spaced rows of one cache lane: row i starts at `data + i * stride_bytes` and its `dim`
/// elements of `type` lie side by side, a multiple of block_len(type) of them.
struct RowBlock {
  const void* data;
  std::ptrdiff_t stride_bytes;
  std::size_t num_rows;
  std::size_t dim;
  ElementType type;
};

/// Calls visit.template operator()<type>().
template <class Visit>
void with_type(ElementType type, Visit&& visit) noexcept {
  switch (type) {
    case ElementType::kF32:
      return visit.template operator()<ElementType::kF32>();
    case ElementType::kF16:
      return visit.template operator()<ElementType::kF16>();
    case ElementType::kBF16:
      return visit.template operator()<ElementType::kBF16>();
    case ElementType::kQ8_0:
      return visit.template operator()<ElementType::kQ8_0>();
  }
}

/// What an average over neighbours does at the ends of the sequence.
enum class PoolEdge : std::uint8_t {
  kZeroCounted,  ///< zeros outside the sequence count in the divisor (SnapKV's authors' code)
  kShrink,       ///< only entries inside the sequence count
};

[[nodiscard]] constexpr auto enum_names(PoolEdge /*type*/) noexcept {
  return std::array<std::pair<std::string_view, PoolEdge>, 2>{
      {{"zero_counted", PoolEdge::kZeroCounted}, {"shrink", PoolEdge::kShrink}}};
}

/// An order-preserving integer of a score: a > b exactly if order_key(a) > order_key(b).
/// +0 and -0 are equal (rule R3), every NaN lies below -infinity (rule R4).
[[nodiscard]] constexpr std::uint32_t order_key(float score) noexcept {
  if (score != score)
    return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score == 0.0F ? 0.0F : score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// Entries of a word of 64, by where their order keys lie.
struct KeyBits {
  std::uint64_t above;
  std::uint64_t inside;
};

/// The scoring core for one instruction set. `scalar` defines what is correct; every other set
/// holds the same functions. Stored rows need no alignment, floats that of a float; lengths may be
/// zero, nothing allocates.
///
/// Accumulators (add, add_rows, add_squared, add_product, take_max, ema) leave an entry as it is
/// where the sample is not finite and return how many entries that were (rule R19).
struct KernelSet {
  Isa isa;

  /// destination[i] = source[i] as float; `source` is the start of a block and holds n elements.
  void (*widen)(const void* source, ElementType type, std::size_t n, float* destination) noexcept;

  /// out[q * out_stride + i] = dot(query q, row i). Query q starts at queries + q * query_stride,
  /// both strides in floats. The sum's order depends on `dim` alone, so a row gives the same bits
  /// whatever its neighbours, its type and the number of queries.
  void (*row_dots)(const float* queries, std::size_t num_queries, std::ptrdiff_t query_stride,
                   RowBlock rows, float* out, std::ptrdiff_t out_stride) noexcept;

  /// out[i] = L2 norm of row i.
  void (*row_norms)(RowBlock rows, float* out) noexcept;

  /// out[i] = sample variance (divisor dim - 1) of row i; 0 where dim is 1. Two passes.
  void (*row_variances)(RowBlock rows, float* out) noexcept;

  /// out[i] = || C^T row_i ||_2 with the lower-triangular `factor` [dim, dim], row-major, as made
  /// by linalg's gram_cholesky: with C C^T = W W^T this is || row_i W ||_2 (papers: LaProx 2.1).
  void (*projected_norms)(const float* factor, RowBlock rows, float* out) noexcept;

  /// out[v * out_stride + i] = sum_c u_c row_i[c] + sum_f w_f l_f: the product of row i with a
  /// vector and of the lengths l of its bands with weights. Vector v starts at
  /// vectors + v * vector_stride, `dim` floats of u, then dim / 2 of w. Band f is the channels f
  /// and dim / 2 + f, or 2 f and 2 f + 1 where the pairs of a rotary embedding are `interleaved`.
  /// dim is even. The sum's order depends on `dim` alone.
  void (*band_dots)(const float* vectors, std::size_t num_vectors, std::ptrdiff_t vector_stride,
                    RowBlock rows, bool interleaved, float* out,
                    std::ptrdiff_t out_stride) noexcept;

  /// Sum of (a[i] - b[i])^2, in double.
  double (*squared_distance)(const float* a, const float* b, std::size_t n) noexcept;

  /// Sum of x[i], in double.
  double (*sum)(const float* x, std::size_t n) noexcept;

  /// Largest entry, NaN ignored; -infinity if there is none.
  float (*max_value)(const float* x, std::size_t n) noexcept;

  /// x[i] = factor * x[i].
  void (*scale)(float factor, std::size_t n, float* x) noexcept;

  /// x[i] = (x[i] - mean) * factor, in double until it is stored.
  void (*standardise)(double mean, double factor, std::size_t n, float* x) noexcept;

  /// scale for logits: `largest` becomes the largest product, NaN ignored, -infinity if there is
  /// none. Returns how many are NaN or +infinity (rule R4).
  std::size_t (*scale_logits)(float factor, std::size_t n, float* x, float& largest) noexcept;

  /// low[i] = min(low[i], x[i]) and high[i] = max(high[i], x[i]), NaN passed over.
  void (*take_ranges)(const float* x, std::size_t n, float* low, float* high) noexcept;

  /// Sample variance (divisor n - 1) of (x[i] - low[i]) * scales[i], 0 where that is not finite;
  /// 0 where n is 1. Two passes.
  float (*scaled_variance)(const float* x, const float* low, const float* scales,
                           std::size_t n) noexcept;

  /// x[i] = cap * tanh(x[i] / cap), the logit soft cap of Gemma-like models; cap > 0.
  void (*soft_cap)(float cap, std::size_t n, float* x) noexcept;

  /// x[i] = exp(x[i] - shift); returns the sum in double. NaN gives 0. With shift = +infinity
  /// entries of +infinity give 1 and all others 0.
  double (*exp_shifted)(float shift, std::size_t n, float* x) noexcept;

  /// y[i] += factor * x[i].
  std::size_t (*add)(float factor, const float* x, std::size_t n, float* y) noexcept;

  /// add for `num_rows` rows, one after the other: y[i] += factors[r] * x[r * row_stride + i]. The
  /// same bits as by add; y is read and written once for several.
  std::size_t (*add_rows)(const float* factors, const float* x, std::ptrdiff_t row_stride,
                          std::size_t num_rows, std::size_t n, float* y) noexcept;

  /// y[i] += (factor * x[i])^2.
  std::size_t (*add_squared)(float factor, const float* x, std::size_t n, float* y) noexcept;

  /// y[i] += factor * a[i] * b[i].
  std::size_t (*add_product)(float factor, const float* a, const float* b, std::size_t n,
                             float* y) noexcept;

  /// y[i] = max(y[i], factor * x[i]).
  std::size_t (*take_max)(float factor, const float* x, std::size_t n, float* y) noexcept;

  /// state[i] = decay * state[i] + (1 - decay) * sample[i]. Results below the smallest normal
  /// float become 0, since subnormal arithmetic is many times slower.
  std::size_t (*ema)(float decay, const float* sample, std::size_t n, float* state) noexcept;

  /// Centred average over `kernel` (odd) neighbours. x and out do not overlap.
  void (*average_pool)(const float* x, std::size_t n, std::size_t kernel, PoolEdge edge,
                       float* out) noexcept;

  /// Centred maximum over `kernel` (odd) neighbours, cut at the ends. A NaN counts only where all
  /// entries under the kernel are NaN. x and out do not overlap.
  void (*max_pool)(const float* x, std::size_t n, std::size_t kernel, float* out) noexcept;

  /// keys[i] = order_key(x[i]).
  void (*order_keys)(const float* x, std::size_t n, std::uint32_t* keys) noexcept;

  /// Smallest order_key of x; the largest integer if there is none.
  std::uint32_t (*lowest_key)(const float* x, std::size_t n) noexcept;

  /// Which of n <= 64 entries have an order_key above `highest`, and which one of `lowest` to
  /// `highest`: bit i for x[i].
  KeyBits (*compare_keys)(const float* x, std::size_t n, std::uint32_t lowest,
                          std::uint32_t highest) noexcept;
};

}  // namespace kernels
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_KERNEL_SET_HPP_
