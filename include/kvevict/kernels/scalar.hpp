#ifndef KVEVICT_KERNELS_SCALAR_HPP_
#define KVEVICT_KERNELS_SCALAR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/half.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/kernels/q8_0.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

// Plain loops: the definition of correct for every instruction set, and the fallback of all.
KVEVICT_NAMESPACE_BEGIN
namespace kernels::scalar {

/// Element `index` of a row, at any alignment.
[[nodiscard]] inline float load(const void* row, ElementType type, std::size_t index) noexcept {
  if (type == ElementType::kQ8_0)
    return from_q8_0(static_cast<const std::byte*>(row), index);
  const auto* bytes = static_cast<const std::byte*>(row) + row_bytes(type, index);
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return type == ElementType::kF16 ? from_f16(half) : from_bf16(half);
}

[[nodiscard]] inline const std::byte* row_of(const RowBlock& rows, std::size_t index) noexcept {
  return static_cast<const std::byte*>(rows.data) +
         static_cast<std::ptrdiff_t>(index) * rows.stride_bytes;
}

inline void widen(const void* source, ElementType type, std::size_t n,
                  float* destination) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    destination[i] = load(source, type, i);
}

/// Sum of partial sums, as vector lanes are added: halves, quarters, ..
[[nodiscard]] inline float sum_of(std::array<float, 16> partial) noexcept {
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t p = 0; p < half; ++p)
      partial[p] += partial[p + half];
  }
  return partial[0];
}

/// Rows of more elements than this are widened anew for every query, in every instruction set.
inline constexpr std::size_t kMaxWidenedDim = 512;

inline void row_dots(const float* queries, std::size_t num_queries, std::ptrdiff_t query_stride,
                     RowBlock rows, float* out, std::ptrdiff_t out_stride) noexcept {
  if (rows.type != ElementType::kF32 && num_queries > 1 && rows.dim <= kMaxWidenedDim) {
    std::array<float, kMaxWidenedDim> row;
    for (std::size_t i = 0; i < rows.num_rows; ++i) {
      widen(row_of(rows, i), rows.type, rows.dim, row.data());
      row_dots(queries, num_queries, query_stride, {row.data(), 0, 1, rows.dim, ElementType::kF32},
               out + i, out_stride);
    }
    return;
  }
  for (std::size_t q = 0; q < num_queries; ++q) {
    const float* query = queries + static_cast<std::ptrdiff_t>(q) * query_stride;
    float* const out_row = out + static_cast<std::ptrdiff_t>(q) * out_stride;
    for (std::size_t i = 0; i < rows.num_rows; ++i) {
      // Sixteen partial sums: close to what vector lanes do, and more exact than one.
      std::array<float, 16> partial{};
      const std::byte* row = row_of(rows, i);
      for (std::size_t c = 0; c < rows.dim; ++c) {
        partial[c % 16] += query[c] * load(row, rows.type, c);
      }
      out_row[i] = sum_of(partial);
    }
  }
}

inline void row_norms(RowBlock rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    double sum = 0.0;
    for (std::size_t c = 0; c < rows.dim; ++c) {
      const double x = load(row_of(rows, i), rows.type, c);
      sum += x * x;
    }
    out[i] = static_cast<float>(std::sqrt(sum));
  }
}

inline void row_variances(RowBlock rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    const std::byte* row = row_of(rows, i);
    double sum = 0.0;
    for (std::size_t c = 0; c < rows.dim; ++c)
      sum += load(row, rows.type, c);
    const double mean = sum / static_cast<double>(rows.dim);
    double squares = 0.0;
    for (std::size_t c = 0; c < rows.dim; ++c) {
      const double difference = load(row, rows.type, c) - mean;
      squares += difference * difference;
    }
    out[i] = rows.dim > 1 ? static_cast<float>(squares / static_cast<double>(rows.dim - 1)) : 0.0F;
  }
}

/// Entry i of projected_norms.
[[nodiscard]] inline float projected_norm(const float* factor, const RowBlock& rows,
                                          std::size_t i) noexcept {
  const std::byte* row = row_of(rows, i);
  double squares = 0.0;
  for (std::size_t j = 0; j < rows.dim; ++j) {
    double sum = 0.0;
    for (std::size_t c = j; c < rows.dim; ++c) {
      sum += static_cast<double>(factor[c * rows.dim + j]) *
             static_cast<double>(load(row, rows.type, c));
    }
    squares += sum * sum;
  }
  return static_cast<float>(std::sqrt(squares));
}
inline void projected_norms(const float* factor, RowBlock rows, float* out) noexcept {
  for (std::size_t i = 0; i < rows.num_rows; ++i)
    out[i] = projected_norm(factor, rows, i);
}
/// `norm`, worked out anew where it is NaN: vectors multiply what is infinite in a row with the
/// zeros above the diagonal, too.
[[nodiscard]] inline float checked_norm(float norm, const float* factor, const RowBlock& rows,
                                        std::size_t i) noexcept {
  return std::isnan(norm) ? projected_norm(factor, rows, i) : norm;
}

/// Length of band f of a row with `num_bands` of them.
[[nodiscard]] inline float band_length(const std::byte* row, ElementType type,
                                       std::size_t num_bands, bool interleaved,
                                       std::size_t f) noexcept {
  const float x = load(row, type, interleaved ? 2 * f : f);
  const float y = load(row, type, interleaved ? 2 * f + 1 : num_bands + f);
  return std::sqrt(x * x + y * y);
}

/// What the bands from `first` on add to the product of a vector and a row.
[[nodiscard]] inline float band_dot(const float* vector, const std::byte* row, ElementType type,
                                    std::size_t num_bands, bool interleaved,
                                    std::size_t first) noexcept {
  std::array<float, 16> partial{};
  for (std::size_t f = first; f < num_bands; ++f) {
    const std::size_t x = interleaved ? 2 * f : f;
    const std::size_t y = interleaved ? 2 * f + 1 : num_bands + f;
    float& sum = partial[f % 16];
    sum += vector[x] * load(row, type, x);
    sum += vector[y] * load(row, type, y);
    sum += vector[2 * num_bands + f] * band_length(row, type, num_bands, interleaved, f);
  }
  return sum_of(partial);
}

inline void band_dots(const float* vectors, std::size_t num_vectors, std::ptrdiff_t vector_stride,
                      RowBlock rows, bool interleaved, float* out,
                      std::ptrdiff_t out_stride) noexcept {
  for (std::size_t v = 0; v < num_vectors; ++v) {
    for (std::size_t i = 0; i < rows.num_rows; ++i) {
      out[static_cast<std::ptrdiff_t>(v) * out_stride + static_cast<std::ptrdiff_t>(i)] =
          band_dot(vectors + static_cast<std::ptrdiff_t>(v) * vector_stride, row_of(rows, i),
                   rows.type, rows.dim / 2, interleaved, 0);
    }
  }
}

[[nodiscard]] inline double squared_distance(const float* a, const float* b,
                                             std::size_t n) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

[[nodiscard]] inline double sum(const float* x, std::size_t n) noexcept {
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i)
    total += static_cast<double>(x[i]);
  return total;
}

[[nodiscard]] inline float max_value(const float* x, std::size_t n) noexcept {
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    if (x[i] > largest)
      largest = x[i];  // false for NaN
  }
  return largest;
}

inline void scale(float factor, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    x[i] *= factor;
}

inline void standardise(double mean, double factor, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * factor);
}

inline void take_ranges(const float* x, std::size_t n, float* low, float* high) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    low[i] = std::min(low[i], x[i]);
    high[i] = std::max(high[i], x[i]);
  }
}

/// A channel of scaled_variance.
[[nodiscard]] inline float scaled_channel(float x, float low, float scale) noexcept {
  const float scaled = (x - low) * scale;
  return std::isfinite(scaled) ? scaled : 0.0F;
}

[[nodiscard]] inline float scaled_variance(const float* x, const float* low, const float* scales,
                                           std::size_t n) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i)
    sum += static_cast<double>(scaled_channel(x[i], low[i], scales[i]));
  const double mean = sum / static_cast<double>(n);
  double squares = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(scaled_channel(x[i], low[i], scales[i])) - mean;
    squares += difference * difference;
  }
  return n > 1 ? static_cast<float>(squares / static_cast<double>(n - 1)) : 0.0F;
}

inline std::size_t scale_logits(float factor, std::size_t n, float* x, float& largest) noexcept {
  scale(factor, n, x);
  largest = max_value(x, n);
  std::size_t non_finite = 0;
  for (std::size_t i = 0; i < n; ++i)
    non_finite += x[i] <= std::numeric_limits<float>::max() ? 0 : 1;  // NaN too
  return non_finite;
}

inline void soft_cap(float cap, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    x[i] = cap * std::tanh(x[i] / cap);
}

inline double exp_shifted(float shift, std::size_t n, float* x) noexcept {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) {
      x[i] = 0.0F;
    } else if (shift == kInfinity) {
      x[i] = x[i] == kInfinity ? 1.0F : 0.0F;
    } else {
      x[i] = std::exp(x[i] - shift);
    }
    total += static_cast<double>(x[i]);
  }
  return total;
}

inline std::size_t add(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    float sample = factor * x[i];
    KVEVICT_ROUND(sample);
    if (std::isfinite(sample)) {
      y[i] += sample;
    } else {
      ++skipped;
    }
  }
  return skipped;
}

/// add_rows by a set's kAdd, row by row.
template <std::size_t (*kAdd)(float, const float*, std::size_t, float*) noexcept>
std::size_t add_rows_by(const float* factors, const float* x, std::ptrdiff_t row_stride,
                        std::size_t num_rows, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t r = 0; r < num_rows; ++r)
    skipped += kAdd(factors[r], x + static_cast<std::ptrdiff_t>(r) * row_stride, n, y);
  return skipped;
}

inline std::size_t add_squared(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float scaled = factor * x[i];
    float sample = scaled * scaled;
    KVEVICT_ROUND(sample);
    if (std::isfinite(sample)) {
      y[i] += sample;
    } else {
      ++skipped;
    }
  }
  return skipped;
}

inline std::size_t add_product(float factor, const float* a, const float* b, std::size_t n,
                               float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    float sample = factor * a[i] * b[i];
    KVEVICT_ROUND(sample);
    if (std::isfinite(sample)) {
      y[i] += sample;
    } else {
      ++skipped;
    }
  }
  return skipped;
}

inline std::size_t take_max(float factor, const float* x, std::size_t n, float* y) noexcept {
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float sample = factor * x[i];
    if (std::isfinite(sample)) {
      y[i] = std::max(y[i], sample);
    } else {
      ++skipped;
    }
  }
  return skipped;
}

inline std::size_t ema(float decay, const float* sample, std::size_t n, float* state) noexcept {
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(sample[i])) {
      ++skipped;
      continue;
    }
    float old_part = decay * state[i];
    float new_part = (1.0F - decay) * sample[i];
    KVEVICT_ROUND(old_part);
    KVEVICT_ROUND(new_part);
    const float next = old_part + new_part;
    state[i] = std::abs(next) < std::numeric_limits<float>::min() ? 0.0F : next;
  }
  return skipped;
}

/// Entry i of average_pool. Summed anew for each entry: a running sum would carry an infinity or
/// NaN on for ever. Multiplied by the reciprocal in double, which costs no bit of a float's mean of
/// equal entries and saves a division for each.
[[nodiscard]] inline float window_mean(const float* x, std::size_t n, std::size_t kernel,
                                       PoolEdge edge, std::size_t i) noexcept {
  const std::size_t reach = kernel / 2;
  const std::size_t first = i > reach ? i - reach : 0;
  const std::size_t last = std::min(n, i + reach + 1);
  double total = 0.0;
  for (std::size_t j = first; j < last; ++j)
    total += static_cast<double>(x[j]);
  const std::size_t divisor = edge == PoolEdge::kZeroCounted ? kernel : last - first;
  return static_cast<float>(total * (1.0 / static_cast<double>(divisor)));
}

inline void average_pool(const float* x, std::size_t n, std::size_t kernel, PoolEdge edge,
                         float* out) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    out[i] = window_mean(x, n, kernel, edge, i);
}

/// Largest entry of x[first, last), NaN only where all are.
[[nodiscard]] inline float window_max(const float* x, std::size_t first,
                                      std::size_t last) noexcept {
  float largest = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = first; i < last; ++i) {
    if (std::isnan(largest) || x[i] > largest)
      largest = x[i];
  }
  return largest;
}

inline void max_pool(const float* x, std::size_t n, std::size_t kernel, float* out) noexcept {
  const std::size_t reach = kernel / 2;
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = window_max(x, i > reach ? i - reach : 0, std::min(n, i + reach + 1));
  }
}

inline void order_keys(const float* x, std::size_t n, std::uint32_t* keys) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    keys[i] = order_key(x[i]);
}

[[nodiscard]] inline std::uint32_t lowest_key(const float* x, std::size_t n) noexcept {
  std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < n; ++i)
    lowest = std::min(lowest, order_key(x[i]));
  return lowest;
}

[[nodiscard]] inline KeyBits compare_keys(const float* x, std::size_t n, std::uint32_t lowest,
                                          std::uint32_t highest) noexcept {
  KeyBits bits{0, 0};
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t key = order_key(x[i]);
    bits.above |= std::uint64_t{key > highest} << i;
    bits.inside |= std::uint64_t{key >= lowest && key <= highest} << i;
  }
  return bits;
}

inline constexpr KernelSet kSet{
    .isa = Isa::kScalar,
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
    .add_rows = add_rows_by<add>,
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

}  // namespace kernels::scalar
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_KERNELS_SCALAR_HPP_
