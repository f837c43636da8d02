#include "engine/gguf.hpp"

#include "engine/gguf_builder.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using engine::GgufFile;
using engine_test::Bytes;
using engine_test::error_of;
using engine_test::floats;
using engine_test::GgufBuilder;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60U;

std::vector<float> dequantised(std::uint32_t type, std::uint64_t cols, const Bytes& data) {
  const GgufFile file = GgufBuilder().tensor("t", {cols}, type, data).file();
  std::vector<float> result(cols, std::numeric_limits<float>::quiet_NaN());
  file.dequantise(file.tensor("t"), 0, 1, result.data());
  return result;
}

std::string error_of_file(const std::vector<std::byte>& bytes) {
  return error_of([&] { const GgufFile file(bytes, "test.gguf"); });
}
std::string error_of_file(const GgufBuilder& builder) {
  return error_of_file(builder.bytes());
}

// The start of a file with these counts and nothing behind them.
Bytes header(std::uint64_t num_tensors, std::uint64_t num_pairs) {
  Bytes bytes;
  for (const char c : {'G', 'G', 'U', 'F'})
    bytes.put(c);
  return bytes.put(std::uint32_t{3}).put(num_tensors).put(num_pairs);
}

constexpr std::uint16_t kHalfOne = 0x3C00;
constexpr std::uint16_t kHalfTwo = 0x4000;
constexpr std::uint16_t kHalfHalf = 0x3800;

TEST(HalfToFloat, AgreesWithTheDefinitionOnAllBitPatterns) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = engine::half_to_float(static_cast<std::uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10U & 31U);
    const auto mantissa = static_cast<float>(bits & 1023U);
    const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0.0F) << bits;
      EXPECT_EQ(std::isinf(value), mantissa == 0.0F) << bits;
    } else {
      const float expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0F + mantissa, exponent - 25);
      EXPECT_EQ(value, sign * expected) << bits;
    }
    EXPECT_EQ(std::signbit(value), sign < 0.0F) << bits;
  }
}

TEST(BFloat16ToFloat, IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(engine::bfloat16_to_float(0x3F80), 1.0F);
  EXPECT_EQ(engine::bfloat16_to_float(0xC049), -3.140625F);
  EXPECT_EQ(engine::bfloat16_to_float(0x0001), std::ldexp(1.0F, -133));
  EXPECT_TRUE(std::isinf(engine::bfloat16_to_float(0x7F80)));
}

TEST(Dequantise, FloatTypes) {
  EXPECT_EQ(dequantised(0, 2, floats({1.5F, -2.0F})), (std::vector<float>{1.5F, -2.0F}));
  const Bytes halves = Bytes().put(kHalfOne).put(std::uint16_t{0xC500});
  EXPECT_EQ(dequantised(1, 2, halves), (std::vector<float>{1.0F, -5.0F}));
  const Bytes bfloats = Bytes().put(std::uint16_t{0x3F80}).put(std::uint16_t{0xC049});
  EXPECT_EQ(dequantised(30, 2, bfloats), (std::vector<float>{1.0F, -3.140625F}));
}

TEST(Dequantise, Q8_0IsScaleTimesSignedByte) {
  Bytes block;
  block.put(kHalfHalf);
  for (int i = 0; i < 32; ++i)
    block.put(static_cast<std::int8_t>(i == 31 ? -128 : 3 * i - 40));
  const std::vector<float> values = dequantised(8, 32, block);
  EXPECT_EQ(values[0], -20.0F);
  EXPECT_EQ(values[1], -18.5F);
  EXPECT_EQ(values[30], 25.0F);
  EXPECT_EQ(values[31], -64.0F);
}

TEST(Dequantise, Q4_0CentresNibblesAtEight) {
  Bytes block;
  block.put(kHalfTwo);
  for (int i = 0; i < 16; ++i)
    block.put(static_cast<std::uint8_t>(i | (15 - i) << 4));
  const std::vector<float> values = dequantised(2, 32, block);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 2.0F * (static_cast<float>(i) - 8.0F));
    EXPECT_EQ(values[i + 16], 2.0F * (7.0F - static_cast<float>(i)));
  }
}

TEST(Dequantise, Q4_1AddsItsOffset) {
  Bytes block;
  block.put(kHalfHalf).put(std::uint16_t{0xC500});  // 0.5, -5
  for (int i = 0; i < 16; ++i)
    block.put(static_cast<std::uint8_t>(i | (15 - i) << 4));
  const std::vector<float> values = dequantised(3, 32, block);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(values[i], 0.5F * static_cast<float>(i) - 5.0F);
    EXPECT_EQ(values[i + 16], 0.5F * static_cast<float>(15 - i) - 5.0F);
  }
}

TEST(Dequantise, Q4_KUnpacksSixBitScalesAndMinima) {
  // Scales 1, 2, 3, 63, 16, 33, 50, 63 and minima 0, 1, 62, 63, 63, 48, 17, 2 in 12 bytes.
  const std::vector<unsigned> scales{1, 2, 3, 63, 16, 33, 50, 63};
  const std::vector<unsigned> minima{0, 1, 62, 63, 63, 48, 17, 2};
  Bytes block;
  block.put(kHalfHalf).put(kHalfTwo);
  for (std::size_t i = 0; i < 4; ++i) {
    block.put(static_cast<std::uint8_t>(scales[i] | scales[i + 4] >> 4U << 6U));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    block.put(static_cast<std::uint8_t>(minima[i] | minima[i + 4] >> 4U << 6U));
  }
  for (std::size_t i = 4; i < 8; ++i) {
    block.put(static_cast<std::uint8_t>((scales[i] & 15U) | (minima[i] & 15U) << 4U));
  }
  for (unsigned i = 0; i < 128; ++i) {
    block.put(static_cast<std::uint8_t>(i % 16 | (i / 8 % 16) << 4U));
  }
  const std::vector<float> values = dequantised(12, 256, block);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t byte = sub / 2 * 32 + i;
      const std::size_t quant = sub % 2 == 0 ? byte % 16 : byte / 8 % 16;
      EXPECT_EQ(values[sub * 32 + i], 0.5F * static_cast<float>(scales[sub] * quant) -
                                          2.0F * static_cast<float>(minima[sub]))
          << sub << " " << i;
    }
  }
}

TEST(Dequantise, Q6_KJoinsLowAndHighBits) {
  // Element e of 256 has the quant (5 e) mod 64 and, in groups of 16, the scale 8 - group.
  const auto quant = [](std::size_t e) { return 5 * e % 64; };
  Bytes block;
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t i = 0; i < 64; ++i) {  // quarters 0 and 2, then 1 and 3
      const std::size_t first = 128 * half + i;
      block.put(static_cast<std::uint8_t>(quant(first) % 16 | quant(first + 64) % 16 << 4U));
    }
  }
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t i = 0; i < 32; ++i) {
      std::size_t bits = 0;
      for (std::size_t quarter = 0; quarter < 4; ++quarter) {
        bits |= quant(128 * half + 32 * quarter + i) / 16 << 2 * quarter;
      }
      block.put(static_cast<std::uint8_t>(bits));
    }
  }
  for (int group = 0; group < 16; ++group)
    block.put(static_cast<std::int8_t>(8 - group));
  block.put(kHalfHalf);
  const std::vector<float> values = dequantised(14, 256, block);
  for (std::size_t e = 0; e < 256; ++e) {
    const float scale = 8.0F - static_cast<float>(e / 16);
    EXPECT_EQ(values[e], 0.5F * scale * (static_cast<float>(quant(e)) - 32.0F)) << e;
  }
}

TEST(Dequantise, RowsFromTheMiddle) {
  Bytes data;
  for (int row = 0; row < 3; ++row) {
    data.put(kHalfOne);
    for (int i = 0; i < 32; ++i)
      data.put(static_cast<std::int8_t>(10 * row + i % 10));
  }
  const GgufFile file = GgufBuilder().tensor("t", {32, 3}, 8, data).file();
  std::vector<float> rows(64);
  file.dequantise(file.tensor("t", 3, 32), 1, 2, rows.data());
  EXPECT_EQ(rows[0], 10.0F);
  EXPECT_EQ(rows[63], 21.0F);
}

TEST(GgufFile, KeepsEveryKindOfValue) {
  GgufBuilder builder;
  builder.raw_pair("u8", 0, Bytes().put(std::uint8_t{200}))
      .raw_pair("i8", 1, Bytes().put(std::int8_t{-3}))
      .raw_pair("u16", 2, Bytes().put(std::uint16_t{60000}))
      .raw_pair("i16", 3, Bytes().put(std::int16_t{-300}))
      .number("u32", 4000000000U)
      .raw_pair("i32", 5, Bytes().put(std::int32_t{-70000}))
      .real("f32", 0.25F)
      .flag("bool", true)
      .text("string", "text")
      .raw_pair("u64", 10, Bytes().put(kHuge))
      .raw_pair("i64", 11, Bytes().put(std::int64_t{-5}))
      .raw_pair("f64", 12, Bytes().put(0.1))
      .texts("strings", {"a", "", "c"})
      .numbers("ints", {1, -2})
      .raw_pair("reals", 9, Bytes().put(std::uint32_t{6}).put(std::uint64_t{1}).put(0.5F));
  for (const std::uint32_t version : {2U, 3U}) {
    const GgufFile file(builder.bytes(version), "test.gguf");
    EXPECT_EQ(file.get<std::int64_t>("u8"), 200);
    EXPECT_EQ(file.get<std::int64_t>("i8"), -3);
    EXPECT_EQ(file.get<std::int64_t>("u16"), 60000);
    EXPECT_EQ(file.get<std::int64_t>("i16"), -300);
    EXPECT_EQ(file.get<std::int64_t>("u32"), 4000000000);
    EXPECT_EQ(file.get<std::int64_t>("i32"), -70000);
    EXPECT_EQ(file.get<double>("f32"), 0.25);
    EXPECT_TRUE(file.get<bool>("bool"));
    EXPECT_EQ(file.get<std::string>("string"), "text");
    EXPECT_EQ(file.get<std::int64_t>("u64"), std::int64_t{1} << 60U);
    EXPECT_EQ(file.get<std::int64_t>("i64"), -5);
    EXPECT_EQ(file.get<double>("f64"), 0.1);
    EXPECT_EQ(file.get<std::vector<std::string>>("strings"),
              (std::vector<std::string>{"a", "", "c"}));
    EXPECT_EQ(file.get<std::vector<std::int64_t>>("ints"), (std::vector<std::int64_t>{1, -2}));
    EXPECT_EQ(file.get<std::vector<double>>("reals"), std::vector<double>{0.5});
    EXPECT_EQ(file.find<bool>("absent"), nullptr);
    EXPECT_EQ(file.get_or<double>("absent", 7.0), 7.0);
  }
}

TEST(GgufFile, ObeysItsAlignment) {
  GgufBuilder builder;
  builder.number("general.alignment", 8).tensor_at("t", {1}, GgufBuilder::kF32, 8);
  std::vector<std::byte> bytes = builder.bytes();  // ends on a multiple of 32
  const Bytes data = floats({9.0F, 9.0F, 4.0F});
  // The header ends at 24 + (8+17+4+4) + (8+1+4+8+4+8) = 90, so data starts at 96, padded or not.
  bytes.resize(96);
  bytes.insert(bytes.end(), data.data().begin(), data.data().end());
  const GgufFile file(bytes, "test.gguf");
  float value = 0.0F;
  file.dequantise(file.tensor("t"), 0, 1, &value);
  EXPECT_EQ(value, 4.0F);
}

TEST(BadGguf, NoGgufFile) {
  EXPECT_EQ(error_of_file(std::vector<std::byte>{}), "test.gguf: not a GGUF file (wrong magic)");
  std::vector<std::byte> bytes = GgufBuilder().bytes();
  bytes[0] = std::byte{'g'};
  EXPECT_EQ(error_of_file(bytes), "test.gguf: not a GGUF file (wrong magic)");
  EXPECT_EQ(error_of_file(GgufBuilder().bytes(1)),
            "test.gguf: GGUF version 1 is not supported (2 and 3 are)");
  EXPECT_NE(error_of_file(GgufBuilder().bytes(0x03000000)), "no error");  // big-endian
}

TEST(BadGguf, CannotBeOpened) {
  EXPECT_EQ(error_of([] { (void)GgufFile::open("/no/such/file.gguf"); }),
            "/no/such/file.gguf: cannot be opened");
  const std::string folder = std::filesystem::temp_directory_path().string();
  EXPECT_NE(error_of([&] { (void)GgufFile::open(folder); }), "no error");
}

TEST(BadGguf, TruncatedAnywhere) {
  GgufBuilder builder;
  builder.text("general.name", "x").texts("words", {"one", "two"}).numbers("n", {1, 2, 3});
  builder.tensor("a", {4, 2}, GgufBuilder::kF32, floats(std::vector<float>(8)));
  builder.tensor("b", {32}, 8, Bytes().put(kHalfOne).append(floats(std::vector<float>(8))));
  const std::vector<std::byte> whole = builder.bytes();
  ASSERT_EQ(error_of_file(whole), "no error");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> part(whole.begin(),
                                      whole.begin() + static_cast<std::ptrdiff_t>(size));
    const std::string error = error_of_file(part);
    EXPECT_EQ(error.rfind("test.gguf: ", 0), 0U) << size << ": " << error;
  }
  std::vector<std::byte> without_last(whole.begin(), whole.end() - 1);
  EXPECT_EQ(error_of_file(without_last),
            "test.gguf: truncated (tensor b lies beyond the end of the file)");
}

TEST(BadGguf, AbsurdCountsTakeNoMemory) {
  EXPECT_EQ(error_of_file(header(kHuge, 0).data()),
            "test.gguf: truncated or damaged (1152921504606846976 tensors in 8 bytes)");
  EXPECT_EQ(error_of_file(header(0, ~std::uint64_t{0}).data()),
            "test.gguf: truncated or damaged (18446744073709551615 metadata pairs in 0 bytes)");
  Bytes long_key = header(0, 1).put(kHuge).put(kHuge);
  EXPECT_NE(error_of_file(long_key.data()).find("characters"), std::string::npos);
  for (const std::uint32_t type : {0U, 5U, 8U, 12U}) {
    GgufBuilder builder;
    builder.raw_pair("k", 9, Bytes().put(type).put(kHuge));
    EXPECT_NE(error_of_file(builder).find("truncated or damaged"), std::string::npos) << type;
  }
}

TEST(BadGguf, Values) {
  EXPECT_EQ(error_of_file(GgufBuilder().raw_pair("k", 13, Bytes().put(kHuge))),
            "test.gguf: metadata key k has the unknown value type 13");
  const Bytes nested = Bytes().put(std::uint32_t{9}).put(std::uint64_t{0});
  EXPECT_EQ(error_of_file(GgufBuilder().raw_pair("k", 9, nested)),
            "test.gguf: metadata key k is an array of the unsupported type 9");
  EXPECT_EQ(error_of_file(GgufBuilder().raw_pair("k", 10, Bytes().put(~std::uint64_t{0}))),
            "test.gguf: metadata key k has a value beyond 63 bits");
  EXPECT_EQ(error_of_file(GgufBuilder().number("k", 1).number("k", 1)),
            "test.gguf: metadata key k occurs twice");
  EXPECT_EQ(error_of_file(GgufBuilder().number("general.alignment", 24)),
            "test.gguf: general.alignment is 24, not a power of two");
  EXPECT_EQ(error_of_file(GgufBuilder().number("general.alignment", 0)),
            "test.gguf: general.alignment is 0, not a power of two");
}

TEST(BadGguf, Tensors) {
  const auto error_of_tensor = [](const std::vector<std::uint64_t>& dims, std::uint32_t type,
                                  std::uint64_t offset) {
    GgufBuilder builder;
    builder.tensor("data", {4}, GgufBuilder::kF32, floats({1, 2, 3, 4}));
    return error_of_file(builder.tensor_at("t", dims, type, offset));
  };
  EXPECT_EQ(error_of_tensor({4}, 0, 0), "no error");
  EXPECT_EQ(error_of_tensor({}, 0, 0), "test.gguf: tensor t has 0 dimensions");
  EXPECT_EQ(error_of_tensor({1, 1, 1, 1, 1}, 0, 0), "test.gguf: tensor t has 5 dimensions");
  EXPECT_EQ(error_of_tensor({0}, 0, 0),
            "test.gguf: tensor t has an impossible size (dimension 0 is 0)");
  EXPECT_EQ(error_of_tensor({4, kHuge}, 0, 0),
            "test.gguf: tensor t has an impossible size "
            "(dimension 1 is 1152921504606846976)");
  // The product of these is 2^64, that is 0 in 64 bits.
  EXPECT_EQ(error_of_tensor({std::uint64_t{1} << 32U, std::uint64_t{1} << 32U}, 0, 0),
            "test.gguf: tensor t has an impossible size (dimension 0 is 4294967296)");
  EXPECT_EQ(error_of_tensor({4}, 13, 0),
            "test.gguf: tensor t has the unknown type 13, not one of F32 F16 Q4_0 Q4_1 Q8_0 Q4_K "
            "Q6_K BF16");
  EXPECT_EQ(error_of_tensor({16}, 8, 0),
            "test.gguf: tensor t has rows of 16 elements, not a "
            "multiple of its type's block of 32");
  EXPECT_EQ(error_of_tensor({5}, 0, 0),
            "test.gguf: truncated (tensor t lies beyond the end of the file)");
  EXPECT_EQ(error_of_tensor({1}, 0, ~std::uint64_t{31}),
            "test.gguf: truncated (tensor t lies beyond the end of the file)");
  EXPECT_EQ(error_of_tensor({1}, 0, 4), "test.gguf: tensor t is not aligned");
  GgufBuilder twice;
  twice.tensor("t", {1}, 0, floats({1})).tensor("t", {1}, 0, floats({1}));
  EXPECT_EQ(error_of_file(twice), "test.gguf: tensor t occurs twice");
}

TEST(BadGguf, WhatIsAskedForIsNotThere) {
  const GgufFile file = GgufBuilder()
                            .number("zero", 0)
                            .text("name", "x")
                            .tensor("t", {2, 3}, 0, floats({1, 2, 3, 4, 5, 6}))
                            .file();
  EXPECT_EQ(error_of([&] { (void)file.get<bool>("absent"); }),
            "test.gguf: metadata key absent is missing");
  EXPECT_EQ(error_of([&] { (void)file.get<bool>("name"); }),
            "test.gguf: metadata key name has an unexpected type");
  EXPECT_EQ(error_of([&] { (void)file.get_count("zero"); }),
            "test.gguf: metadata key zero has the impossible value 0");
  EXPECT_EQ(error_of([&] { (void)file.tensor("u"); }), "test.gguf: tensor u is missing");
  EXPECT_EQ(error_of([&] { (void)file.tensor("t", 2, 3); }),
            "test.gguf: tensor t is [3, 2], expected [2, 3]");
}

TEST(BadGguf, DamagedFilesEitherLoadOrSayWhatIsWrong) {
  GgufBuilder builder;
  builder.text("general.name", "x").texts("words", {"one", "two"}).numbers("n", {1, 2, 3});
  builder.tensor("a", {4, 2}, GgufBuilder::kF32, floats(std::vector<float>(8)));
  builder.tensor("b", {32}, 8, Bytes().put(kHalfOne).append(floats(std::vector<float>(8))));
  const std::vector<std::byte> whole = builder.bytes();
  std::mt19937 random(1);
  int num_errors = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<std::byte> damaged = whole;
    for (int i = 0; i < 1 + trial % 3; ++i) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random() % 256);
    }
    // Another kind of exception (std::bad_alloc, std::length_error) would end the test.
    num_errors += error_of_file(damaged) != "no error" ? 1 : 0;
  }
  EXPECT_GT(num_errors, 1000);
}

TEST(GgufFile, OpensAFileOnDisk) {
  const auto path = std::filesystem::temp_directory_path() / "kvevict_gguf_test.gguf";
  const std::vector<std::byte> bytes = GgufBuilder().text("general.name", "on disk").bytes();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  EXPECT_EQ(GgufFile::open(path.string()).get<std::string>("general.name"), "on disk");
  std::filesystem::remove(path);
}

}  // namespace
