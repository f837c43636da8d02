// Every instruction set against the scalar definition and against double: odd lengths, odd
// addresses, all element types, NaN and infinities.
#include "kvevict/kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvevict;
using kernels::Isa;
using kernels::KernelSet;
using kernels::RowBlock;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0F;
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 35; ++n)
    all.push_back(n);
  for (const std::size_t n : {63U, 64U, 65U, 127U, 128U, 129U, 1000U})
    all.push_back(n);
  return all;
}
const std::vector<std::size_t> kDims = {1,  3,  7,  8,  9,  15,  16,  17,  31,  33,
                                        63, 65, 72, 80, 96, 100, 128, 130, 256, 600};

enum class Values { kUniform, kHeavyTail, kConstant, kSpecial };

std::vector<float> make(std::size_t n, Values kind, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = uniform(random);
    if (kind == Values::kHeavyTail)
      values[i] = std::pow(values[i], 9.0F) * 100.0F;
    if (kind == Values::kConstant)
      values[i] = 0.75F;
    if (kind == Values::kSpecial && i % 5 == 2)
      values[i] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
  }
  return values;
}

/// Floats at an address that is `offset` floats off the alignment of a vector, with guards behind
/// them.
class Placed {
 public:
  Placed(const std::vector<float>& values, std::size_t offset)
      : floats_(values.size() + kSlack, kGuard), size_(values.size()) {
    const auto address = reinterpret_cast<std::uintptr_t>(floats_.data()) / sizeof(float);
    first_ = (16 - address % 16) % 16 + offset;
    std::copy(values.begin(), values.end(), at(first_));
  }
  [[nodiscard]] float* data() { return floats_.data() + first_; }
  [[nodiscard]] std::vector<float> values() const { return {at(first_), at(first_ + size_)}; }
  [[nodiscard]] bool guards_untouched() const {
    return std::all_of(at(first_ + size_), floats_.end(), [](float x) { return x == kGuard; });
  }

 private:
  static constexpr std::size_t kSlack = 48;

  [[nodiscard]] std::vector<float>::iterator at(std::size_t index) {
    return floats_.begin() + static_cast<std::ptrdiff_t>(index);
  }
  [[nodiscard]] std::vector<float>::const_iterator at(std::size_t index) const {
    return floats_.begin() + static_cast<std::ptrdiff_t>(index);
  }

  std::vector<float> floats_;
  std::size_t size_;
  std::size_t first_ = 0;
};

/// Rows of `type`, `gap` bytes between them, at an odd address for the 2-byte types.
struct StoredRows {
  std::vector<unsigned char> bytes;
  RowBlock block;
  std::vector<std::vector<float>> values;  // what the rows hold, after rounding to the type

  StoredRows(std::size_t num_rows, std::size_t dim, ElementType type, Values kind, unsigned seed) {
    const std::size_t stride = row_bytes(type, dim) + 6;
    bytes.resize(num_rows * stride + 2);
    for (std::size_t r = 0; r < num_rows; ++r) {
      values.push_back(make(dim, kind, seed + static_cast<unsigned>(r)));
      for (std::size_t c = 0; c < dim; ++c) {
        float& value = values[r][c];
        unsigned char* at = bytes.data() + 2 + r * stride + row_bytes(type, c);
        if (type == ElementType::kQ8_0) {
          if (c % 32 == 0)
            write_block(&value, at);
          continue;
        }
        if (type == ElementType::kF32) {
          std::memcpy(at, &value, 4);
          continue;
        }
        const bool f16 = type == ElementType::kF16;
        const std::uint16_t half = f16 ? kernels::to_f16(value) : kernels::to_bf16(value);
        std::memcpy(at, &half, 2);
        value = f16 ? kernels::from_f16(half) : kernels::from_bf16(half);
      }
    }
    block = {bytes.data() + 2, static_cast<std::ptrdiff_t>(stride), num_rows, dim, type};
  }

 private:
  // 32 values as ggml writes them; what is not finite takes the scale along.
  static void write_block(float* from, unsigned char* to) {
    float largest = 0.0F;
    for (std::size_t i = 0; i < 32; ++i)
      largest = std::isfinite(from[i]) ? std::max(largest, std::abs(from[i])) : kNan;
    const std::uint16_t half = kernels::to_f16(largest / 127.0F);
    const float scale = kernels::from_f16(half);
    std::memcpy(to, &half, 2);
    for (std::size_t i = 0; i < 32; ++i) {
      const float multiple = scale > 0.0F ? std::round(from[i] / scale) : 0.0F;
      const auto byte = static_cast<signed char>(std::clamp(multiple, -127.0F, 127.0F));
      std::memcpy(to + 2 + i, &byte, 1);
      from[i] = scale * static_cast<float>(byte);
    }
  }
};

class Kernels : public ::testing::TestWithParam<Isa> {
 protected:
  [[nodiscard]] const KernelSet& set() const { return kernels::get(GetParam()); }
};

std::string isa_name(const ::testing::TestParamInfo<Isa>& info) {
  switch (info.param) {
    case Isa::kAvx2:
      return "Avx2";
    case Isa::kAvx512:
      return "Avx512";
    case Isa::kNeon:
      return "Neon";
    case Isa::kScalar:
      break;
  }
  return "Scalar";
}
std::vector<Isa> available() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (kernels::is_available(isa))
      all.push_back(isa);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Every, Kernels, ::testing::ValuesIn(available()), isa_name);

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16,
                                  ElementType::kQ8_0};

/// Those of `dims` that a row of `type` may have.
std::vector<std::size_t> dims_of(ElementType type, std::vector<std::size_t> dims = kDims) {
  std::erase_if(dims, [=](std::size_t dim) { return dim % block_len(type) != 0; });
  return dims;
}

TEST_P(Kernels, SetSaysWhichItIs) {
  EXPECT_EQ(set().isa, GetParam());
}

TEST_P(Kernels, RowDotsMatchDoubleForEveryDimTypeAndCount) {
  for (const ElementType type : kTypes) {
    for (const std::size_t dim : dims_of(type)) {
      // Blocks of eight and sixteen rows, of two and four queries, and what is left of them.
      for (const std::size_t num_rows : {1U, 4U, 7U, 8U, 17U, 33U}) {
        for (const std::size_t num_queries : {1U, 2U, 3U, 4U, 7U}) {
          const StoredRows rows(num_rows, dim, type, Values::kUniform, 7);
          const std::vector<float> queries = make(num_queries * (dim + 3), Values::kUniform, 3);
          std::vector<float> out(num_queries * (num_rows + 2), kGuard);
          set().row_dots(queries.data(), num_queries, static_cast<std::ptrdiff_t>(dim + 3),
                         rows.block, out.data(), static_cast<std::ptrdiff_t>(num_rows + 2));
          for (std::size_t q = 0; q < num_queries; ++q) {
            for (std::size_t r = 0; r < num_rows; ++r) {
              double sum = 0;
              double magnitude = 0;
              for (std::size_t c = 0; c < dim; ++c) {
                const double term = static_cast<double>(queries[q * (dim + 3) + c]) *
                                    static_cast<double>(rows.values[r][c]);
                sum += term;
                magnitude += std::abs(term);
              }
              // At most dim roundings of partial sums that never exceed the magnitudes' sum.
              EXPECT_NEAR(static_cast<double>(out[q * (num_rows + 2) + r]), sum,
                          static_cast<double>(dim) * kEpsilon * magnitude)
                  << "dim " << dim << " type " << static_cast<int>(type);
            }
            EXPECT_EQ(out[q * (num_rows + 2) + num_rows], kGuard);
          }
        }
      }
    }
  }
}

// Blocks of 32 as they may come, against the same values as floats: the same bits in every kernel,
// since a scale times a byte is exact. Scales: 0, the smallest and largest binary16, and their
// neighbours; bytes: all of them, -128 too.
TEST_P(Kernels, BlocksOfQ8GiveTheBitsOfTheirValues) {
  constexpr std::uint16_t kScales[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400,
                                       0x2E66, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF};
  for (const std::size_t dim : {32U, 64U, 96U, 128U, 256U, 544U, 608U}) {
    for (const std::size_t num_rows : {1U, 3U, 8U, 11U, 21U}) {
      const std::size_t stride = dim / 32 * 34 + 3;  // rows at odd addresses
      std::vector<unsigned char> bytes(1 + num_rows * stride, 0xFF);
      std::vector<float> floats(num_rows * dim);
      std::mt19937 random(static_cast<unsigned>(dim + num_rows));
      for (std::size_t i = 0; i < num_rows * dim; ++i) {
        unsigned char* block = bytes.data() + 1 + i / dim * stride + i % dim / 32 * 34;
        if (i % 32 == 0) {
          const std::uint16_t scale = kScales[random() % std::size(kScales)];
          std::memcpy(block, &scale, 2);
        }
        const auto byte = static_cast<signed char>(i % 32 == 7 ? -128 : int(random() % 256) - 128);
        std::memcpy(block + 2 + i % 32, &byte, 1);
        std::uint16_t scale = 0;
        std::memcpy(&scale, block, 2);
        floats[i] = kernels::from_f16(scale) * static_cast<float>(byte);
      }
      const RowBlock blocks{bytes.data() + 1, static_cast<std::ptrdiff_t>(stride), num_rows, dim,
                            ElementType::kQ8_0};
      const RowBlock plain{floats.data(), static_cast<std::ptrdiff_t>(4 * dim), num_rows, dim,
                           ElementType::kF32};
      const auto expect_same = [&](std::size_t n, auto&& kernel) {
        std::vector<float> expected(n + 1, kGuard);
        std::vector<float> out(n + 1, kGuard);
        kernel(plain, expected.data());
        kernel(blocks, out.data());
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), 4 * (n + 1)), 0)
            << "dim " << dim << " rows " << num_rows;
      };
      for (std::size_t r = 0; r < num_rows; ++r) {
        std::vector<float> wide(dim);
        set().widen(bytes.data() + 1 + r * stride, ElementType::kQ8_0, dim, wide.data());
        EXPECT_EQ(std::memcmp(wide.data(), floats.data() + r * dim, 4 * dim), 0);
      }
      for (const std::size_t num_queries : {1U, 2U, 3U, 5U, 8U}) {
        const std::vector<float> queries = make(num_queries * dim, Values::kUniform, 71);
        expect_same(num_queries * num_rows, [&](const RowBlock& rows, float* out) {
          set().row_dots(queries.data(), num_queries, static_cast<std::ptrdiff_t>(dim), rows, out,
                         static_cast<std::ptrdiff_t>(num_rows));
        });
      }
      expect_same(num_rows, [&](const RowBlock& rows, float* out) { set().row_norms(rows, out); });
      expect_same(num_rows,
                  [&](const RowBlock& rows, float* out) { set().row_variances(rows, out); });
      const std::vector<float> factor = make(dim * dim, Values::kUniform, 73);
      expect_same(num_rows, [&](const RowBlock& rows, float* out) {
        set().projected_norms(factor.data(), rows, out);
      });
      std::vector<float> vectors(2 * (dim + dim / 2));
      for (std::size_t i = 0; i < vectors.size(); ++i)
        vectors[i] = static_cast<float>(i % 7) - 2.5F;
      for (const bool interleaved : {false, true}) {
        expect_same(num_rows * 2, [&](const RowBlock& rows, float* out) {
          set().band_dots(vectors.data(), 2, static_cast<std::ptrdiff_t>(dim + dim / 2), rows,
                          interleaved, out, static_cast<std::ptrdiff_t>(num_rows));
        });
      }
    }
  }
}

// An infinite scale makes NaN of a byte of 0, and NaN of all; the blocks beside it are not touched.
TEST_P(Kernels, ScalesOfQ8ThatAreNotFiniteStayInTheirBlock) {
  for (const std::uint16_t scale : std::initializer_list<std::uint16_t>{0x7C00, 0xFC00, 0x7E00}) {
    std::vector<unsigned char> row(3 * 34, 0);
    for (std::size_t i = 0; i < 32; ++i) {
      row[2 + i] = row[70 + i] = 1;
      row[36 + i] = static_cast<unsigned char>(i);
    }
    const std::uint16_t one = 0x3C00;
    std::memcpy(row.data(), &one, 2);
    std::memcpy(row.data() + 34, &scale, 2);
    std::memcpy(row.data() + 68, &one, 2);
    std::vector<float> wide(96);
    set().widen(row.data(), ElementType::kQ8_0, 96, wide.data());
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(wide[i], 1.0F);
      EXPECT_EQ(wide[64 + i], 1.0F);
      if (i == 0 || scale == 0x7E00) {
        EXPECT_TRUE(std::isnan(wide[32 + i]));
      } else {
        EXPECT_EQ(wide[32 + i], scale == 0x7C00 ? kInf : -kInf);
      }
    }
    float norm = 0.0F;
    set().row_norms({row.data(), 0, 1, 96, ElementType::kQ8_0}, &norm);
    EXPECT_TRUE(std::isnan(norm));
    set().row_norms({row.data() + 68, 0, 1, 32, ElementType::kQ8_0}, &norm);
    EXPECT_EQ(norm, std::sqrt(32.0F));
  }
}

// A row's beginning may be widened too, whatever its length, and nothing behind it is read.
TEST_P(Kernels, TheBeginningOfARowOfQ8IsWidened) {
  const std::uint16_t half = 0x3800;
  for (std::size_t n = 0; n <= 70; ++n) {
    const std::size_t size = n / 32 * 34 + (n % 32 == 0 ? 0 : 2 + n % 32);
    std::vector<unsigned char> row(size);  // a sanitizer sees what lies behind
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(row.data() + i / 32 * 34, &half, 2);
      row[i / 32 * 34 + 2 + i % 32] = static_cast<unsigned char>(i);
    }
    std::vector<float> out(n + 8, kGuard);
    set().widen(row.data(), ElementType::kQ8_0, n, out.data());
    for (std::size_t i = 0; i < n + 8; ++i)
      EXPECT_EQ(out[i], i < n ? static_cast<float>(i) / 2.0F : kGuard);
  }
}

// The view's layout must not change a mask, so a row's product may depend on the row alone.
TEST_P(Kernels, RowDotsOfARowDoNotDependOnNeighboursTypeOrQueries) {
  for (const std::size_t dim : kDims) {
    // Values that floats and both halves hold exactly.
    std::vector<float> row(dim);
    for (std::size_t c = 0; c < dim; ++c)
      row[c] = static_cast<float>(c % 13) / 8.0F - 0.75F;
    const std::vector<float> queries = make(5 * dim, Values::kUniform, 11);
    float alone = 0;
    set().row_dots(queries.data() + 4 * dim, 1, static_cast<std::ptrdiff_t>(dim),
                   {row.data(), 0, 1, dim, ElementType::kF32}, &alone, 1);
    for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
      std::vector<std::uint16_t> halves(dim);
      for (std::size_t c = 0; c < dim; ++c) {
        halves[c] = type == ElementType::kF16 ? kernels::to_f16(row[c]) : kernels::to_bf16(row[c]);
      }
      const void* data = type == ElementType::kF32 ? static_cast<const void*>(row.data())
                                                   : static_cast<const void*>(halves.data());
      std::vector<float> out(5 * 6);
      set().row_dots(queries.data(), 5, static_cast<std::ptrdiff_t>(dim), {data, 0, 6, dim, type},
                     out.data(), 6);
      for (std::size_t r = 0; r < 6; ++r)
        EXPECT_EQ(out[4 * 6 + r], alone) << "dim " << dim;
    }
  }
}

TEST_P(Kernels, WidenIsExactAndWritesNothingBehind) {
  for (const ElementType type : kTypes) {
    for (const std::size_t n : dims_of(type, lengths())) {
      const StoredRows rows(1, n, type, Values::kSpecial, 5);
      std::vector<float> out(n + 8, kGuard);
      set().widen(rows.block.data, type, n, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        if (std::isnan(rows.values[0][i])) {
          EXPECT_TRUE(std::isnan(out[i]));
        } else {
          EXPECT_EQ(out[i], rows.values[0][i]);
        }
      }
      for (std::size_t i = n; i < n + 8; ++i)
        EXPECT_EQ(out[i], kGuard);
    }
  }
}

// Every 16-bit pattern, subnormals among them, is the float that it stands for.
TEST_P(Kernels, WidenIsExactForEveryHalf) {
  std::vector<std::uint16_t> halves(1U << 16);
  for (std::size_t i = 0; i < halves.size(); ++i)
    halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    set().widen(halves.data(), type, halves.size(), wide.data());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected =
          type == ElementType::kF16 ? kernels::from_f16(halves[i]) : kernels::from_bf16(halves[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(wide[i])) << i;
      } else {
        EXPECT_EQ(wide[i], expected) << i;
      }
    }
  }
}

// The largest f16 subnormal, and bf16 ones near the smallest normal float, are not taken for zero.
TEST_P(Kernels, SubnormalHalvesCount) {
  const std::vector<std::uint16_t> f16(37, 0x03FF);
  const std::vector<std::uint16_t> bf16(37, 0x0180);  // 2^-124
  const std::vector<float> ones(3 * 37, 1.0F);
  for (const bool is_f16 : {true, false}) {
    const auto type = is_f16 ? ElementType::kF16 : ElementType::kBF16;
    const double value = is_f16 ? 1023 * std::ldexp(1.0, -24) : std::ldexp(1.0, -124);
    const RowBlock row{is_f16 ? f16.data() : bf16.data(), 0, 9, 37, type};
    std::vector<float> out(3 * 9);
    set().row_norms(row, out.data());
    EXPECT_NEAR(static_cast<double>(out[8]), value * std::sqrt(37.0), 1e-6 * value * 7);
    set().row_dots(ones.data(), 3, 37, row, out.data(), 9);
    EXPECT_NEAR(static_cast<double>(out[26]), value * 37, 1e-6 * value * 37);
  }
}

TEST_P(Kernels, RowNormsAndVariancesMatchDouble) {
  for (const ElementType type : kTypes) {
    for (const std::size_t dim : dims_of(type)) {
      for (const Values kind : {Values::kUniform, Values::kHeavyTail, Values::kConstant}) {
        const StoredRows rows(5, dim, type, kind, 23);
        std::vector<float> norms(6, kGuard);
        std::vector<float> variances(6, kGuard);
        set().row_norms(rows.block, norms.data());
        set().row_variances(rows.block, variances.data());
        for (std::size_t r = 0; r < 5; ++r) {
          double squares = 0;
          double mean = 0;
          for (const float x : rows.values[r]) {
            squares += static_cast<double>(x) * static_cast<double>(x);
            mean += static_cast<double>(x) / static_cast<double>(dim);
          }
          double variance = 0;
          for (const float x : rows.values[r]) {
            variance += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
          }
          variance = dim > 1 ? variance / static_cast<double>(dim - 1) : 0;
          const double norm = std::sqrt(squares);
          EXPECT_NEAR(static_cast<double>(norms[r]), norm, 2 * kEpsilon * norm);
          EXPECT_NEAR(static_cast<double>(variances[r]), variance,
                      2 * kEpsilon * variance + 1e-12 * squares);
        }
        EXPECT_EQ(norms[5], kGuard);
        EXPECT_EQ(variances[5], kGuard);
      }
    }
  }
}

// Products with u and with the bands' lengths, against double; and the same bits for a row whatever
// stands beside it.
TEST_P(Kernels, BandDotsMatchDoubleInBothPairings) {
  constexpr std::size_t kMostVectors = 6;
  for (const ElementType type : kTypes) {
    for (const std::size_t dim : dims_of(type, {2, 6, 14, 16, 18, 32, 34, 64, 96, 128, 130, 256})) {
      const StoredRows rows(5, dim, type, Values::kHeavyTail, 29);
      const std::size_t n = dim / 2;
      const std::size_t width = dim + n + 1;  // strides may be larger
      const std::vector<float> vectors = make(kMostVectors * width, Values::kHeavyTail, 30);
      for (const bool interleaved : {false, true}) {
        std::vector<float> all(kMostVectors * 5);
        set().band_dots(vectors.data(), kMostVectors, static_cast<std::ptrdiff_t>(width),
                        rows.block, interleaved, all.data(), 5);
        for (std::size_t v = 0; v < kMostVectors; ++v) {
          const float* const vector = vectors.data() + v * width;
          for (std::size_t r = 0; r < 5; ++r) {
            double expected = 0.0;
            double size = 0.0;
            const auto add = [&](float factor, double x) {
              expected += static_cast<double>(factor) * x;
              size += std::abs(static_cast<double>(factor) * x);
            };
            for (std::size_t band = 0; band < n; ++band) {
              const std::size_t c = interleaved ? 2 * band : band;
              const std::size_t d = interleaved ? 2 * band + 1 : n + band;
              const auto x = static_cast<double>(rows.values[r][c]);
              const auto y = static_cast<double>(rows.values[r][d]);
              add(vector[c], x);
              add(vector[d], y);
              add(vector[dim + band], std::hypot(x, y));
            }
            EXPECT_NEAR(static_cast<double>(all[v * 5 + r]), expected, 4 * kEpsilon * size + 1e-30)
                << dim << ' ' << v << ' ' << r;
            RowBlock one = rows.block;
            one.data = static_cast<const std::byte*>(one.data) +
                       static_cast<std::ptrdiff_t>(r) * one.stride_bytes;
            one.num_rows = 1;
            float alone[2] = {kGuard, kGuard};
            set().band_dots(vector, 1, 0, one, interleaved, alone, 0);
            EXPECT_EQ(alone[0], all[v * 5 + r]) << dim << ' ' << v << ' ' << r;
            EXPECT_EQ(alone[1], kGuard);
          }
        }
      }
    }
  }
}

// Rotary embedding of the first channels only, over rows of blocks of 32: the second half of a band
// may begin inside what one load takes.
TEST_P(Kernels, BandDotsOfPartOfARowOfBlocks) {
  const StoredRows rows(5, 96, ElementType::kQ8_0, Values::kUniform, 31);
  for (const std::size_t dim : {8U, 24U, 40U, 64U, 72U, 80U, 96U}) {
    const std::vector<float> vector = make(dim + dim / 2, Values::kUniform, 32);
    for (const bool interleaved : {false, true}) {
      RowBlock part = rows.block;
      part.dim = dim;
      std::vector<float> out(5);
      set().band_dots(vector.data(), 1, 0, part, interleaved, out.data(), 0);
      for (std::size_t r = 0; r < 5; ++r) {
        double expected = 0.0;
        for (std::size_t band = 0; band < dim / 2; ++band) {
          const std::size_t c = interleaved ? 2 * band : band;
          const std::size_t d = interleaved ? 2 * band + 1 : dim / 2 + band;
          const auto x = static_cast<double>(rows.values[r][c]);
          const auto y = static_cast<double>(rows.values[r][d]);
          expected += static_cast<double>(vector[c]) * x + static_cast<double>(vector[d]) * y +
                      static_cast<double>(vector[dim + band]) * std::hypot(x, y);
        }
        EXPECT_NEAR(static_cast<double>(out[r]), expected, 1e-4) << dim << ' ' << interleaved;
      }
    }
  }
}

// Case O-31: every channel but the last is 0. A tail that is dropped gives the norm 0, a tail of
// the next row that is read another one; whatever the number of rows, and whichever is the long
// one.
TEST_P(Kernels, LastChannelCounts) {
  for (const std::size_t dim : kDims) {
    for (std::size_t n = 1; n <= 40; ++n) {
      std::vector<float> rows(n * dim, 0.0F);
      for (std::size_t i = 0; i < n; ++i)
        rows[(i + 1) * dim - 1] = i == n / 2 ? 2.0F : 1.0F;
      std::vector<float> norms(n);
      set().row_norms(
          {rows.data(), static_cast<std::ptrdiff_t>(4 * dim), n, dim, ElementType::kF32},
          norms.data());
      for (std::size_t i = 0; i < n; ++i)
        EXPECT_EQ(norms[i], i == n / 2 ? 2.0F : 1.0F) << dim << ' ' << n << ' ' << i;
    }
  }
}

// Case O-14: the square of 800 does not fit in a half.
TEST_P(Kernels, HalfPrecisionRowsDoNotOverflow) {
  const std::uint16_t row[2] = {kernels::to_f16(600.0F), kernels::to_f16(800.0F)};
  float norm = 0;
  set().row_norms({row, 4, 1, 2, ElementType::kF16}, &norm);
  EXPECT_EQ(norm, 1000.0F);
  float wide[2];
  set().widen(row, ElementType::kF16, 2, wide);
  const float zero[2] = {0.0F, 0.0F};
  EXPECT_EQ(set().squared_distance(wide, zero, 2), 1e6);
}

TEST_P(Kernels, ProjectedNormsMatchDouble) {
  for (const ElementType type : kTypes) {
    for (const std::size_t dim : dims_of(type)) {
      constexpr std::size_t kRows = 27;  // blocks of six and of twelve, and what is left of them
      const StoredRows rows(kRows, dim, type, Values::kUniform, 31);
      std::vector<float> factor = make(dim * dim, Values::kUniform, 37);
      for (std::size_t row = 0; row < dim; ++row) {
        for (std::size_t col = row + 1; col < dim; ++col)
          factor[row * dim + col] = 0.0F;
      }
      std::vector<float> out(kRows + 1, kGuard);
      set().projected_norms(factor.data(), rows.block, out.data());
      for (std::size_t r = 0; r < kRows; ++r) {
        double squares = 0;
        for (std::size_t j = 0; j < dim; ++j) {
          double sum = 0;
          for (std::size_t c = j; c < dim; ++c) {
            sum +=
                static_cast<double>(factor[c * dim + j]) * static_cast<double>(rows.values[r][c]);
          }
          squares += sum * sum;
        }
        EXPECT_NEAR(static_cast<double>(out[r]), std::sqrt(squares), 4e-6 * std::sqrt(squares))
            << dim;
      }
      EXPECT_EQ(out[kRows], kGuard);
    }
  }
}

// Zeros above the diagonal are no factors: an infinity times one of them would be NaN.
TEST_P(Kernels, ProjectedNormsOfInfiniteRowsAreInfinite) {
  for (const std::size_t dim : {1U, 8U, 20U, 40U, 128U}) {
    std::vector<float> factor(dim * dim, 0.0F);
    for (std::size_t row = 0; row < dim; ++row)
      std::fill_n(factor.begin() + static_cast<std::ptrdiff_t>(row * dim), row + 1, 1.0F);
    for (std::size_t at = 0; at < dim; ++at) {
      std::vector<float> rows(3 * dim, 1.0F);
      rows[dim + at] = kInf;
      rows[2 * dim + at] = kNan;
      float norms[3];
      set().projected_norms(
          factor.data(),
          {rows.data(), static_cast<std::ptrdiff_t>(4 * dim), 3, dim, ElementType::kF32}, norms);
      EXPECT_TRUE(std::isfinite(norms[0]));
      EXPECT_EQ(norms[1], kInf) << dim << ", " << at;
      EXPECT_TRUE(std::isnan(norms[2]));
    }
  }
}

TEST_P(Kernels, SumsAndDistancesMatchDouble) {
  for (const std::size_t n : lengths()) {
    for (const std::size_t offset : {0U, 1U, 4U, 13U}) {
      Placed a(make(n, Values::kHeavyTail, 41), offset);
      Placed b(make(n, Values::kUniform, 43), offset);
      double sum = 0;
      double distance = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double x = a.values()[i];
        const double d = x - static_cast<double>(b.values()[i]);
        sum += x;
        magnitude += std::abs(x);
        distance += d * d;
      }
      EXPECT_NEAR(set().sum(a.data(), n), sum, 1e-13 * magnitude);
      EXPECT_NEAR(set().squared_distance(a.data(), b.data(), n), distance, 1e-13 * distance);
    }
  }
}

// Case O-09: x86's max is not symmetric in NaN; every place must give the same.
TEST_P(Kernels, MaxValueIgnoresNanAtEveryPlace) {
  for (std::size_t n = 1; n <= 40; ++n) {
    for (std::size_t at = 0; at < n; ++at) {
      std::vector<float> ramp(n);
      for (std::size_t i = 0; i < n; ++i)
        ramp[i] = static_cast<float>(i) - 20.0F;
      ramp[at] = kNan;
      float expected = -kInf;
      for (const float x : ramp)
        expected = std::isnan(x) ? expected : std::max(expected, x);
      EXPECT_EQ(set().max_value(ramp.data(), n), expected);
    }
  }
  EXPECT_EQ(set().max_value(nullptr, 0), -kInf);
}

TEST_P(Kernels, MaxPoolIgnoresNanAtEveryPlace) {
  for (const std::size_t kernel : {1U, 3U, 7U, 63U}) {
    for (std::size_t n = 1; n <= 40; ++n) {
      for (std::size_t at = 0; at < n; ++at) {
        std::vector<float> ramp(n);
        for (std::size_t i = 0; i < n; ++i)
          ramp[i] = static_cast<float>(i * 7 % 11);
        ramp[at] = kNan;
        std::vector<float> out(n + 4, kGuard);
        set().max_pool(ramp.data(), n, kernel, out.data());
        for (std::size_t i = 0; i < n; ++i) {
          float expected = kNan;
          for (std::size_t j = 0; j < n; ++j) {
            const bool under = j + kernel / 2 >= i && j <= i + kernel / 2;
            if (under && !std::isnan(ramp[j]) && !(ramp[j] <= expected))
              expected = ramp[j];
          }
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(out[i]));
          } else {
            EXPECT_EQ(out[i], expected) << "n " << n << " kernel " << kernel << " at " << at;
          }
        }
        for (std::size_t i = n; i < n + 4; ++i)
          EXPECT_EQ(out[i], kGuard);
      }
    }
  }
}

// policies.md 3.1 (b): s = (.30,.02,.02,.25,.02,.24), kernel 3.
// To the bit, NaN and infinities where the definition has them, and nothing behind the end.
TEST_P(Kernels, AveragePoolIsTheScalarOne) {
  for (const auto edge : {kernels::PoolEdge::kZeroCounted, kernels::PoolEdge::kShrink}) {
    for (const std::size_t kernel : {1U, 3U, 5U, 7U, 63U}) {
      for (std::size_t n = 0; n <= 150; ++n) {
        std::vector<float> x(n + 1);
        for (std::size_t i = 0; i < n; ++i)
          x[i + 1] = static_cast<float>(i * 7 % 11) / 3.0F;
        if (n > 50)
          x[45] = n % 2 == 0 ? kNan : std::numeric_limits<float>::infinity();
        std::vector<float> expected(n + 4, kGuard);
        std::vector<float> out(n + 4, kGuard);
        kernels::scalar::average_pool(x.data() + 1, n, kernel, edge, expected.data());
        set().average_pool(x.data() + 1, n, kernel, edge, out.data());
        for (std::size_t i = 0; i < n + 4; ++i) {
          if (std::isnan(expected[i])) {
            EXPECT_TRUE(std::isnan(out[i]));
          } else {
            EXPECT_EQ(out[i], expected[i]) << "n " << n << " kernel " << kernel << " at " << i;
          }
        }
      }
    }
  }
}

TEST_P(Kernels, AveragePoolCountsTheEdgeAsToldTo) {
  const std::vector<float> s = {.30F, .02F, .02F, .25F, .02F, .24F};
  std::vector<float> out(6);
  set().average_pool(s.data(), 6, 3, kernels::PoolEdge::kZeroCounted, out.data());
  const double counted[] = {.32 / 3, .34 / 3, .29 / 3, .29 / 3, .51 / 3, .26 / 3};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(static_cast<double>(out[i]), counted[i], 1e-7);
  }
  set().average_pool(s.data(), 6, 3, kernels::PoolEdge::kShrink, out.data());
  EXPECT_NEAR(static_cast<double>(out[0]), .16, 1e-7);
  EXPECT_NEAR(static_cast<double>(out[5]), .13, 1e-7);
  // One infinity reaches its neighbours and nobody else.
  const std::vector<float> spiked = {1.0F, kInf, 1.0F, 1.0F, 1.0F};
  set().average_pool(spiked.data(), 5, 3, kernels::PoolEdge::kShrink, out.data());
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(out[3], 1.0F);
}

TEST_P(Kernels, ExpShiftedMatchesDoubleAndSums) {
  for (const std::size_t n : lengths()) {
    std::vector<float> logits = make(n, Values::kUniform, 47);
    for (float& x : logits)
      x *= 60.0F;
    Placed x(logits, 4);
    const float shift = set().max_value(logits.data(), n);
    const double total = set().exp_shifted(n == 0 ? 0.0F : shift, n, x.data());
    double expected_total = 0;
    const auto values = x.values();
    for (std::size_t i = 0; i < n; ++i) {
      const double expected = std::exp(static_cast<double>(logits[i] - shift));
      expected_total += expected;
      // 4 ulp, and nothing asked of what is below the normal floats.
      EXPECT_NEAR(static_cast<double>(values[i]), expected, 4 * kEpsilon * expected + 2e-38);
    }
    EXPECT_NEAR(total, expected_total, 4 * kEpsilon * expected_total);
    EXPECT_TRUE(x.guards_untouched());
  }
}

TEST_P(Kernels, ExpShiftedDefinesNanAndInfinity) {
  for (const std::size_t n : {5U, 37U}) {
    std::vector<float> x(n, -1.0F);
    x[1] = kNan;
    x[2] = -kInf;
    x[n - 1] = 0.0F;
    set().exp_shifted(0.0F, n, x.data());
    EXPECT_EQ(x[1], 0.0F);
    EXPECT_EQ(x[2], 0.0F);
    EXPECT_EQ(x[n - 1], 1.0F);
    std::vector<float> top(n, 3.0F);
    top[3] = kInf;
    EXPECT_EQ(set().exp_shifted(kInf, n, top.data()), 1.0);
    EXPECT_EQ(top[3], 1.0F);
    EXPECT_EQ(top[0], 0.0F);
    std::vector<float> large(n, 200.0F);
    EXPECT_EQ(set().exp_shifted(0.0F, n, large.data()), static_cast<double>(kInf));
  }
}

TEST_P(Kernels, ScaleAndSoftCapMatchTheirFormulas) {
  for (const std::size_t n : lengths()) {
    const auto values = make(n, Values::kHeavyTail, 53);
    Placed scaled(values, 1);
    Placed capped(values, 4);
    set().scale(0.3F, n, scaled.data());
    set().soft_cap(30.0F, n, capped.data());
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(scaled.values()[i], 0.3F * values[i]);
      const double expected = 30.0 * std::tanh(static_cast<double>(values[i]) / 30.0);
      EXPECT_NEAR(static_cast<double>(capped.values()[i]), expected,
                  4 * kEpsilon * std::abs(expected) + 1e-30);
    }
    EXPECT_TRUE(scaled.guards_untouched());
    EXPECT_TRUE(capped.guards_untouched());
  }
}

TEST_P(Kernels, SoftCapOfNanIsNanAndOfInfinityTheCap) {
  for (const std::size_t n : {5U, 37U}) {
    std::vector<float> x(n, 1e6F);
    x[1] = kNan;
    x[2] = kInf;
    x[3] = -kInf;
    x[4] = -0.0F;
    set().soft_cap(30.0F, n, x.data());
    EXPECT_TRUE(std::isnan(x[1]));
    EXPECT_EQ(x[0], 30.0F);
    EXPECT_EQ(x[2], 30.0F);
    EXPECT_EQ(x[3], -30.0F);
    EXPECT_EQ(x[4], 0.0F);
    EXPECT_EQ(x[n - 1], n == 5 ? 0.0F : 30.0F);
  }
}

TEST_P(Kernels, StandardiseIsExactInDouble) {
  for (const std::size_t n : lengths()) {
    const auto values = make(n, Values::kHeavyTail, 79);
    Placed x(values, 4);
    set().standardise(1e6 + 1.0 / 3, 0.7, n, x.data());
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(x.values()[i],
                static_cast<float>((static_cast<double>(values[i]) - (1e6 + 1.0 / 3)) * 0.7));
    }
    EXPECT_TRUE(x.guards_untouched());
  }
}

TEST_P(Kernels, RangesPassOverNan) {
  for (const std::size_t n : lengths()) {
    std::vector<float> x = make(n, Values::kHeavyTail, 67);
    for (std::size_t i = 1; i < n; i += 5)
      x[i] = i % 2 == 0 ? kNan : i % 3 == 0 ? kInf : -kInf;
    const std::vector<float> y = make(n, Values::kUniform, 71);
    Placed low(y, 4);
    Placed high(y, 4);
    set().take_ranges(x.data(), n, low.data(), high.data());
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(low.values()[i], std::isnan(x[i]) ? y[i] : std::min(x[i], y[i]));
      EXPECT_EQ(high.values()[i], std::isnan(x[i]) ? y[i] : std::max(x[i], y[i]));
    }
    EXPECT_TRUE(low.guards_untouched());
    EXPECT_TRUE(high.guards_untouched());
  }
}

// Against double, from the products as float. What all channels have in common, one that is far
// off (the first of them too) and sums of squares beyond a float take nothing from the result.
TEST_P(Kernels, ScaledVariancesMatchDoubleAndSkipWhatIsNotFinite) {
  for (const std::size_t n : {1U, 2U, 7U, 8U, 9U, 64U, 80U, 127U, 128U, 200U, 256U, 512U, 600U}) {
    const std::vector<float> low = make(n, Values::kUniform, 71);
    for (const float offset : {0.0F, 1e3F, -3e6F}) {
      for (const float far : {0.0F, 1e5F, 1e18F}) {
        for (const std::size_t place : {std::size_t{0}, n / 2, n - 1}) {
          std::vector<float> scales(n, 2.0F);
          std::vector<float> x = make(n, Values::kHeavyTail, 67);
          for (std::size_t i = 0; i < n; ++i) {
            x[i] += offset;
            scales[i] += static_cast<float>(i % 3) * 1e-3F;
          }
          x[place] += far;
          if (offset == 0.0F) {
            for (std::size_t i = 3; i < n; i += 7) {
              x[i] = i % 2 == 0 ? kNan : kInf;
              scales[i - 1] = i % 3 == 0 ? kInf : kNan;
            }
          }
          std::vector<double> scaled;
          for (std::size_t i = 0; i < n; ++i) {
            const float product = (x[i] - low[i]) * scales[i];
            scaled.push_back(std::isfinite(product) ? static_cast<double>(product) : 0.0);
          }
          const double mean =
              std::accumulate(scaled.begin(), scaled.end(), 0.0) / static_cast<double>(n);
          double variance = 0.0;
          for (const double y : scaled)
            variance += n > 1 ? (y - mean) * (y - mean) / static_cast<double>(n - 1) : 0.0;
          const float actual = set().scaled_variance(x.data(), low.data(), scales.data(), n);
          EXPECT_NEAR(static_cast<double>(actual), variance, 2e-6 * variance)
              << n << " " << offset << " " << far << " " << place;
        }
      }
    }
    // All channels are the same.
    const std::vector<float> same(n, 1e6F);
    const std::vector<float> zero(n, 0.0F);
    const std::vector<float> thousand(n, 1e3F);
    EXPECT_EQ(set().scaled_variance(same.data(), zero.data(), thousand.data(), n), 0.0F);
    // Sums of squares beyond a float from n = 341 on: half at 0, half at 2e18.
    std::vector<float> halves(n, 0.0F);
    std::fill(halves.begin() + static_cast<std::ptrdiff_t>(n / 2), halves.end(), 2e18F);
    const std::vector<float> one(n, 1.0F);
    if (n % 2 == 0) {
      const double expected = 1e36 * static_cast<double>(n) / static_cast<double>(n - 1);
      EXPECT_NEAR(
          static_cast<double>(set().scaled_variance(halves.data(), zero.data(), one.data(), n)),
          expected, 2e-6 * expected);
    }
  }
}

// Rule R4: NaN and +infinity are counted, -infinity is a slot that holds no token.
TEST_P(Kernels, ScaleLogitsFindsTheLargestAndCountsWhatIsNotFinite) {
  for (const std::size_t n : lengths()) {
    const auto values = make(n, Values::kHeavyTail, 59);
    Placed x(values, 4);
    float largest = 0.0F;
    EXPECT_EQ(set().scale_logits(0.3F, n, x.data(), largest), 0U);
    float expected = -kInf;
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(x.values()[i], 0.3F * values[i]);
      expected = std::max(expected, 0.3F * values[i]);
    }
    EXPECT_EQ(largest, expected);
    EXPECT_TRUE(x.guards_untouched());
    for (std::size_t place = 0; place < n; place += 3) {
      std::vector<float> marked(n, -1.0F);
      marked[place] = kNan;
      marked[n - 1 - place] = place % 2 == 0 ? -kInf : kInf;
      const bool one_place = place == n - 1 - place;
      const std::size_t wrong = (one_place ? 0U : 1U) + (place % 2 == 0 ? 0U : 1U);
      EXPECT_EQ(set().scale_logits(2.0F, n, marked.data(), largest), wrong) << n << ' ' << place;
      const bool others = n > (one_place ? 1U : 2U);
      EXPECT_EQ(largest, place % 2 == 1 ? kInf : others ? -2.0F : -kInf) << n << ' ' << place;
    }
  }
}

// Rule R19: a sample that is not finite changes nothing and is counted.
TEST_P(Kernels, AccumulatorsEqualScalarAndSkipWhatIsNotFinite) {
  const KernelSet& scalar = kernels::get(Isa::kScalar);
  for (const std::size_t n : lengths()) {
    for (const Values kind : {Values::kUniform, Values::kHeavyTail, Values::kSpecial}) {
      for (const std::size_t offset : {0U, 1U, 12U}) {
        Placed x(make(n, kind, 59), offset);
        Placed other(make(n, kind, 61), offset);
        std::size_t expected_skips = 0;
        const auto sample = x.values();
        for (const float value : sample)
          expected_skips += std::isfinite(value) ? 0 : 1;
        const auto run = [&](auto&& call, bool skips_are_of_x) {
          Placed ours(make(n, Values::kUniform, 67), offset);
          Placed theirs(make(n, Values::kUniform, 67), offset);
          const std::size_t skipped = call(set(), ours.data());
          EXPECT_EQ(skipped, call(scalar, theirs.data()));
          if (skips_are_of_x) {
            EXPECT_EQ(skipped, expected_skips);
          }
          for (std::size_t i = 0; i < n; ++i) {
            const double mine = ours.values()[i];
            const double right = theirs.values()[i];
            EXPECT_TRUE(std::isfinite(mine));
            // Two roundings at most, of a contracted product on one side.
            EXPECT_NEAR(mine, right, 4 * kEpsilon * std::max(1.0, std::abs(right)));
          }
          EXPECT_TRUE(ours.guards_untouched());
        };
        run([&](const KernelSet& k, float* y) { return k.add(0.25F, x.data(), n, y); }, true);
        run([&](const KernelSet& k, float* y) { return k.add_squared(0.25F, x.data(), n, y); },
            true);
        run([&](const KernelSet& k, float* y) { return k.take_max(0.25F, x.data(), n, y); }, true);
        run([&](const KernelSet& k, float* y) { return k.ema(0.9F, x.data(), n, y); }, true);
        run([&](const KernelSet& k,
                float* y) { return k.add_product(0.5F, x.data(), other.data(), n, y); },
            false);
      }
    }
  }
}

// The same for kernels whose values differ between sets by a rounding: within one, equal entries
// give equal results, at every index of every length. Also beside entries that overflow.
TEST_P(Kernels, EqualLogitsStayEqualAtEveryIndex) {
  const auto draws = make(300, Values::kUniform, 77);
  for (const float draw : draws) {
    const float x = 8.0F * draw;
    for (const std::size_t n : {1U, 7U, 8U, 21U, 67U}) {
      const auto expect_equal = [&](const std::vector<float>& y, float first) {
        for (const float value : y)
          ASSERT_EQ(value, first) << x << ", " << n;
      };
      std::vector<float> exponentials(n, x);
      set().exp_shifted(9.0F, n, exponentials.data());
      float alone = x;
      set().exp_shifted(9.0F, 1, &alone);
      expect_equal(exponentials, alone);

      std::vector<float> beside(n + 1, x);
      beside[n] = 95.0F;
      set().exp_shifted(9.0F, n + 1, beside.data());
      beside.pop_back();
      expect_equal(beside, alone);

      std::vector<float> capped(n, x);
      set().soft_cap(5.0F, n, capped.data());
      float capped_alone = x;
      set().soft_cap(5.0F, 1, &capped_alone);
      expect_equal(capped, capped_alone);
    }
  }
}

TEST_P(Kernels, SumOfExponentialsMayExceedAFloat) {
  std::vector<float> x(66, 88.0F);
  const double total = set().exp_shifted(0.0F, x.size(), x.data());
  EXPECT_NEAR(total, 66 * std::exp(88.0), 1e-5 * 66 * std::exp(88.0));
}

// The order of the sum is that of the rows, however many are added in one call.
TEST_P(Kernels, AddRowsGivesTheBitsOfAddForEachRow) {
  for (const std::size_t num_rows : {0U, 1U, 2U, 4U, 7U, 8U, 9U, 20U}) {
    for (const std::size_t n : {0U, 1U, 5U, 16U, 17U, 33U, 64U, 131U}) {
      const std::size_t stride = n + 3;
      std::vector<float> x = make(num_rows * stride + 1, Values::kUniform, 73);
      const std::vector<float> factors = make(num_rows + 1, Values::kUniform, 74);
      std::size_t expected_skips = 0;
      for (std::size_t r = 0; r < num_rows && n > 0; ++r) {
        if (r % 3 == 1) {
          x[r * stride + r % n] = r % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                             : std::numeric_limits<float>::infinity();
          ++expected_skips;
        }
      }
      for (const std::size_t offset : {0U, 1U, 3U}) {
        Placed ours(make(n, Values::kUniform, 75), offset);
        Placed theirs(make(n, Values::kUniform, 75), offset);
        EXPECT_EQ(set().add_rows(factors.data(), x.data(), static_cast<std::ptrdiff_t>(stride),
                                 num_rows, n, ours.data()),
                  expected_skips);
        for (std::size_t r = 0; r < num_rows; ++r)
          set().add(factors[r], x.data() + r * stride, n, theirs.data());
        EXPECT_EQ(ours.values(), theirs.values()) << num_rows << " rows of " << n;
        EXPECT_TRUE(ours.guards_untouched());
      }
    }
  }
}

// Rules R3 and R18: ties must stay ties, so an entry's bits may not depend on where it lies.
TEST_P(Kernels, EqualInputsGiveEqualBitsAtEveryIndexAndOnEveryMachine) {
  const KernelSet& scalar = kernels::get(Isa::kScalar);
  const auto draws = make(3000, Values::kUniform, 71);
  for (std::size_t d = 0; d + 2 < draws.size(); d += 3) {
    const std::vector<float> x(17, draws[d]);
    const std::vector<float> other(17, draws[d + 1]);
    const auto run = [&](auto&& call) {
      std::vector<float> y(17, draws[d + 2]);
      std::vector<float> expected(1, draws[d + 2]);
      call(set(), 17, y.data());
      call(scalar, 1, expected.data());
      for (const float value : y)
        ASSERT_EQ(value, expected[0]);
    };
    run([&](const KernelSet& k, std::size_t n, float* y) { k.add(0.3F, x.data(), n, y); });
    run([&](const KernelSet& k, std::size_t n, float* y) { k.add_squared(0.3F, x.data(), n, y); });
    run([&](const KernelSet& k, std::size_t n, float* y) { k.ema(0.8F, x.data(), n, y); });
    run([&](const KernelSet& k, std::size_t n, float* y) {
      k.add_product(0.3F, x.data(), other.data(), n, y);
    });
  }
}

TEST_P(Kernels, ProjectedNormsOfLargeValuesDoNotOverflow) {
  std::vector<float> identity(64, 0.0F);
  for (std::size_t i = 0; i < 8; ++i)
    identity[i * 9] = 1.0F;
  const std::vector<float> row(8, 1e20F);
  float norm = 0;
  set().projected_norms(identity.data(), {row.data(), 0, 1, 8, ElementType::kF32}, &norm);
  EXPECT_NEAR(static_cast<double>(norm), std::sqrt(8.0) * 1e20, 1e14);
}

TEST_P(Kernels, SquareThatOverflowsIsSkipped) {
  std::vector<float> x(19, 1.0F);
  x[17] = 1e30F;
  std::vector<float> y(19, 0.0F);
  EXPECT_EQ(set().add_squared(1.0F, x.data(), 19, y.data()), 1U);
  EXPECT_EQ(y[17], 0.0F);
  EXPECT_EQ(y[18], 1.0F);
}

// Case O-18: a decayed score must not become subnormal, where arithmetic is many times slower.
TEST_P(Kernels, EmaFlushesSubnormalsToZero) {
  std::vector<float> state(40, 2e-38F);
  const std::vector<float> zero(40, 0.0F);
  for (int step = 0; step < 3; ++step)
    set().ema(0.5F, zero.data(), 40, state.data());
  for (const float value : state)
    EXPECT_EQ(value, 0.0F);
}

// Case O-18: scores that have faded away cost no more than others, by the fastest of 200 steps over
// 16,384 of them, since the machine may be busy. And the caller's own arithmetic still has
// subnormal numbers afterwards.
TEST_P(Kernels, EmaOfFadedScoresTakesNoLonger) {
  constexpr std::size_t kLen = 16'384;
  const std::vector<float> zero(kLen, 0.0F);
  std::vector<float> state(kLen);
  const auto fastest = [&](float start) {
    auto least = std::chrono::steady_clock::duration::max();
    std::fill(state.begin(), state.end(), start);
    for (int step = 0; step < 200; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      set().ema(0.9F, zero.data(), kLen, state.data());
      least = std::min(least, std::chrono::steady_clock::now() - begin);
    }
    return std::chrono::duration<double>(least).count();
  };
  const double normal = fastest(1.0F);
  EXPECT_LE(fastest(1e-39F), 3 * normal);
  EXPECT_EQ(state, zero);
  volatile float smallest = std::numeric_limits<float>::min();
  EXPECT_NE(smallest / 2, 0.0F);  // results are not flushed,
  volatile float subnormal = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(static_cast<double>(subnormal) * 0x1p149, 1.0);  // nor are operands
}

// Keys are integers, so every instruction set gives the same ones: also of zeros of both signs,
// infinities, NaN of both signs and subnormals.
TEST_P(Kernels, OrderKeysAndTheirComparisonsAreTheScalarOnes) {
  for (const std::size_t n : lengths()) {
    std::vector<float> x = make(n, Values::kHeavyTail, 61);
    const float special[] = {0.0F, -0.0F, kInf, -kInf, kNan, -kNan, 1e-42F, -1e-42F, 1.0F, 1.0F};
    for (std::size_t i = 0; i < n; i += 3)
      x[i] = special[i / 3 % 10];
    std::vector<std::uint32_t> keys(n + 1, 7);
    set().order_keys(x.data(), n, keys.data());
    std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(keys[i], kernels::order_key(x[i])) << x[i];
      lowest = std::min(lowest, keys[i]);
    }
    EXPECT_EQ(keys[n], 7U);
    EXPECT_EQ(set().lowest_key(x.data(), n), lowest);
    const std::size_t count = std::min<std::size_t>(n, 64);
    for (const float from : {-kInf, -0.5F, 0.0F, 1.0F}) {
      for (const float to : {0.0F, 1.0F, kInf}) {
        const std::uint32_t low = kernels::order_key(from);
        const std::uint32_t high = kernels::order_key(to);
        const kernels::KeyBits bits = set().compare_keys(x.data(), count, low, high);
        for (std::size_t i = 0; i < 64; ++i) {
          const bool there = i < count;
          EXPECT_EQ(bits.above >> i & 1, there && keys[i] > high ? 1U : 0U);
          EXPECT_EQ(bits.inside >> i & 1, there && keys[i] >= low && keys[i] <= high ? 1U : 0U);
        }
      }
    }
  }
}

}  // namespace
