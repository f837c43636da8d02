#include "engine/gguf.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

namespace engine {

// In here: one function for each block format and their table, kTensorTypes; GgufFile.

// One function for each block format. Quants are read as bytes in place and `out` is restricted:
// the compiler then knows that writing `out` does not change them, and uses vector instructions. A
// copy of the quants would be kept in scalar registers and taken apart byte by byte.
namespace {

template <class T>
[[nodiscard]] T load(const std::byte* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}
template <class T>
[[nodiscard]] const T* quants_at(const std::byte* bytes) noexcept {
  static_assert(sizeof(T) == 1);
  return reinterpret_cast<const T*>(bytes);
}
[[nodiscard]] float load_half(const std::byte* bytes) noexcept {
  return half_to_float(load<std::uint16_t>(bytes));
}

void block_f32(const std::byte* block, float* out) noexcept {
  *out = load<float>(block);
}
void block_f16(const std::byte* block, float* out) noexcept {
  *out = load_half(block);
}
void block_bf16(const std::byte* block, float* out) noexcept {
  *out = bfloat16_to_float(load<std::uint16_t>(block));
}

// [f16 scale][32 x i8]
void block_q8_0(const std::byte* block, float* __restrict out) noexcept {
  const float scale = load_half(block);
  const auto* quants = quants_at<std::int8_t>(block + 2);
  for (std::size_t i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(quants[i]);
}

// [16 bytes]: element i is the low nibble of byte i, element i + 16 its high nibble.
void nibbles(const std::byte* bytes, float scale, float offset, float* __restrict out) noexcept {
  const auto* quants = quants_at<std::uint8_t>(bytes);
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t i = 0; i < 16; ++i) {
      out[16 * half + i] = scale * static_cast<float>((quants[i] >> (4 * half)) & 15) + offset;
    }
  }
}

// [f16 scale][nibbles], 8 standing for 0; and [f16 scale][f16 offset][nibbles].
void block_q4_0(const std::byte* block, float* out) noexcept {
  const float scale = load_half(block);
  nibbles(block + 2, scale, -8.0F * scale, out);
}
void block_q4_1(const std::byte* block, float* out) noexcept {
  nibbles(block + 4, load_half(block), load_half(block + 2), out);
}

// [f16 scale of scales][f16 scale of minima][12 bytes: 8 scales and 8 minima of 6 bits][128 bytes:
// each 32 hold one sub-block of 32 elements in their low nibbles and the next one in the high].
void block_q4_k(const std::byte* block, float* __restrict out) noexcept {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  const auto packed = load<std::array<std::uint8_t, 12>>(block + 4);
  for (std::size_t sub = 0; sub < 8; ++sub) {
    // The first four pairs lie in the low 6 bits of bytes 0-3 (scales) and 4-7 (minima). The
    // others have their low 4 bits in bytes 8-11 and their high 2 bits on top of the first ones.
    const int sub_scale =
        sub < 4 ? packed[sub] & 63 : (packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4);
    const int sub_minimum =
        sub < 4 ? packed[sub + 4] & 63 : (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4);
    const float d = scale * static_cast<float>(sub_scale);
    const float m = minimum * static_cast<float>(sub_minimum);
    const auto* quants = quants_at<std::uint8_t>(block + 16 + sub / 2 * 32);
    const std::size_t shift = sub % 2 * 4;
    for (std::size_t i = 0; i < 32; ++i) {
      out[sub * 32 + i] = d * static_cast<float>((quants[i] >> shift) & 15) - m;
    }
  }
}

// [128 bytes: low 4 bits][64 bytes: high 2 bits][16 x i8 scale of 16 elements][f16 scale].
// Half a block is four quarters of 32 elements: quarter p takes nibble p / 2 of low byte
// 32 * (p % 2) + i and bits 2p of high byte i.
void block_q6_k(const std::byte* block, float* __restrict out) noexcept {
  const float scale = load_half(block + 208);
  const auto scales = load<std::array<std::int8_t, 16>>(block + 192);
  for (std::size_t group = 0; group < 16; ++group) {  // of 16 elements, two in each quarter
    const std::size_t half = group / 8;
    const std::size_t quarter = group / 2 % 4;
    const std::size_t first = group % 2 * 16;
    const auto* low = quants_at<std::uint8_t>(block + 64 * half + 32 * (quarter % 2) + first);
    const auto* high = quants_at<std::uint8_t>(block + 128 + 32 * half + first);
    const std::size_t low_shift = quarter / 2 * 4;
    const std::size_t high_shift = 2 * quarter;
    const float d = scale * static_cast<float>(scales[group]);
    for (std::size_t i = 0; i < 16; ++i) {
      const int quant = ((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
      out[16 * group + i] = d * static_cast<float>(quant - 32);
    }
  }
}

template <std::size_t Size, std::size_t Bytes, void (*Block)(const std::byte*, float*) noexcept>
[[nodiscard]] constexpr TensorType tensor_type(std::string_view name, std::uint32_t id) noexcept {
  return {name, id, Size, Bytes,
          [](const std::byte* blocks, std::size_t num_blocks, float* out) noexcept {
            for (; num_blocks > 0; --num_blocks, blocks += Bytes, out += Size)
              Block(blocks, out);
          }};
}

constexpr std::array<TensorType, 8> kTensorTypes{
    tensor_type<1, 4, block_f32>("F32", 0),        tensor_type<1, 2, block_f16>("F16", 1),
    tensor_type<32, 18, block_q4_0>("Q4_0", 2),    tensor_type<32, 20, block_q4_1>("Q4_1", 3),
    tensor_type<32, 34, block_q8_0>("Q8_0", 8),    tensor_type<256, 144, block_q4_k>("Q4_K", 12),
    tensor_type<256, 210, block_q6_k>("Q6_K", 14), tensor_type<1, 2, block_bf16>("BF16", 30)};

}  // namespace

template <class T>
T GgufFile::next() {
  if (remaining() < sizeof(T))
    fail("truncated (the file ends inside its header)");
  const T value = load<T>(bytes_->data() + cursor_);
  cursor_ += sizeof(T);
  return value;
}

GgufFile GgufFile::open(const std::string& path) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = stream ? static_cast<std::streamoff>(stream.tellg()) : -1;
  // Opening a directory may succeed; its size is then the largest there is.
  if (size < 0 || size == std::numeric_limits<std::streamoff>::max()) {
    throw std::runtime_error(path + ": cannot be opened");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  stream.seekg(0);
  if (!stream.read(reinterpret_cast<char*>(bytes.data()), size)) {
    throw std::runtime_error(path + ": cannot be read");
  }
  return {std::move(bytes), path};
}

GgufFile::GgufFile(std::vector<std::byte> bytes, std::string name)
    : bytes_(std::make_shared<const std::vector<std::byte>>(std::move(bytes))),
      name_(std::move(name)) {
  if (size() < 4 || std::memcmp(bytes_->data(), "GGUF", 4) != 0) {
    fail("not a GGUF file (wrong magic)");
  }
  cursor_ = 4;
  const auto version = next<std::uint32_t>();
  if (version != 2 && version != 3) {
    fail("GGUF version " + std::to_string(version) + " is not supported (2 and 3 are)");
  }
  // The smallest tensor entry has 32 bytes (no name, one dimension), the smallest pair 13.
  const std::uint64_t num_tensors = next_count(32, "tensors");
  const std::uint64_t num_pairs = next_count(13, "metadata pairs");
  for (std::uint64_t i = 0; i < num_pairs; ++i)
    read_pair();
  for (std::uint64_t i = 0; i < num_tensors; ++i)
    read_tensor_entry();
  locate_tensors();
}

std::size_t GgufFile::get_count(const std::string& key) const {
  const auto value = get<std::int64_t>(key);
  if (value < 1 || value > std::numeric_limits<std::int32_t>::max()) {
    fail("metadata key " + key + " has the impossible value " + std::to_string(value));
  }
  return static_cast<std::size_t>(value);
}

const GgufTensor& GgufFile::tensor(const std::string& tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  if (found == tensors_.end())
    fail("tensor " + tensor_name + " is missing");
  return found->second;
}

const GgufTensor& GgufFile::tensor(const std::string& tensor_name, std::size_t rows,
                                   std::size_t cols) const {
  const GgufTensor& result = tensor(tensor_name);
  if (result.rows != rows || result.cols != cols) {
    fail("tensor " + tensor_name + " is [" + std::to_string(result.rows) + ", " +
         std::to_string(result.cols) + "], expected [" + std::to_string(rows) + ", " +
         std::to_string(cols) + "]");
  }
  return result;
}

void GgufFile::dequantise(const GgufTensor& tensor, std::size_t first, std::size_t count,
                          float* out) const noexcept {
  const std::size_t row_blocks = tensor.cols / tensor.type->block_size;
  const std::size_t start = tensor.offset + first * row_blocks * tensor.type->block_bytes;
  tensor.type->dequantise(bytes_->data() + start, count * row_blocks, out);
}

std::uint64_t GgufFile::next_count(std::size_t least_bytes, const std::string& what) {
  const auto count = next<std::uint64_t>();
  if (count > remaining() / least_bytes) {
    fail("truncated or damaged (" + std::to_string(count) + " " + what + " in " +
         std::to_string(remaining()) + " bytes)");
  }
  return count;
}

std::string GgufFile::next_string() {
  const auto size = static_cast<std::size_t>(next_count(1, "characters"));
  std::string text(size, '\0');
  if (size > 0)
    std::memcpy(text.data(), bytes_->data() + cursor_, size);
  cursor_ += size;
  return text;
}

std::size_t GgufFile::scalar_bytes(std::uint32_t type) noexcept {
  constexpr std::array<std::size_t, 13> kBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

std::variant<bool, std::int64_t, double> GgufFile::next_scalar(std::uint32_t type,
                                                               const std::string& key) {
  switch (type) {
    case 0:
      return std::int64_t{next<std::uint8_t>()};
    case 1:
      return std::int64_t{next<std::int8_t>()};
    case 2:
      return std::int64_t{next<std::uint16_t>()};
    case 3:
      return std::int64_t{next<std::int16_t>()};
    case 4:
      return std::int64_t{next<std::uint32_t>()};
    case 5:
      return std::int64_t{next<std::int32_t>()};
    case 6:
      return double{next<float>()};
    case 7:
      return next<std::uint8_t>() != 0;
    case 10: {
      const auto value = next<std::uint64_t>();
      if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        fail("metadata key " + key + " has a value beyond 63 bits");
      }
      return static_cast<std::int64_t>(value);
    }
    case 11:
      return next<std::int64_t>();
    case 12:
      return next<double>();
    default:
      fail("metadata key " + key + " has the unknown value type " + std::to_string(type));
  }
}

GgufFile::Value GgufFile::next_array(const std::string& key) {
  const auto type = next<std::uint32_t>();
  if (type == kString) {
    std::vector<std::string> strings(next_count(8, "strings"));
    for (std::string& text : strings)
      text = next_string();
    return strings;
  }
  if (scalar_bytes(type) == 0) {
    fail("metadata key " + key + " is an array of the unsupported type " + std::to_string(type));
  }
  const std::uint64_t count = next_count(scalar_bytes(type), "array elements");
  if (type == 6 || type == 12) {
    std::vector<double> numbers(count);
    for (double& number : numbers)
      number = std::get<double>(next_scalar(type, key));
    return numbers;
  }
  std::vector<std::int64_t> numbers(count);
  for (std::int64_t& number : numbers) {
    std::visit([&](auto value) { number = static_cast<std::int64_t>(value); },
               next_scalar(type, key));
  }
  return numbers;
}

void GgufFile::read_pair() {
  const std::string key = next_string();
  const auto type = next<std::uint32_t>();
  Value value;
  if (type == kString) {
    value = next_string();
  } else if (type == kArray) {
    value = next_array(key);
  } else {
    std::visit([&](auto scalar) { value = scalar; }, next_scalar(type, key));
  }
  if (!metadata_.emplace(key, std::move(value)).second) {
    fail("metadata key " + key + " occurs twice");
  }
}

void GgufFile::read_tensor_entry() {
  GgufTensor tensor{next_string(), nullptr, 1, 1, 0};
  const auto num_dims = next<std::uint32_t>();
  if (num_dims < 1 || num_dims > 4) {
    fail("tensor " + tensor.name + " has " + std::to_string(num_dims) + " dimensions");
  }
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = next<std::uint64_t>();
    // Every type takes at least half a byte for an element, so this also rules out overflow.
    if (dim == 0 || dim > 2 * size() / elements) {
      fail("tensor " + tensor.name + " has an impossible size (dimension " + std::to_string(i) +
           " is " + std::to_string(dim) + ")");
    }
    elements *= dim;
    (i == 0 ? tensor.cols : tensor.rows) *= static_cast<std::size_t>(dim);
  }
  const auto type = next<std::uint32_t>();
  const auto* known = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                   [&](const TensorType& t) { return t.id == type; });
  if (known == kTensorTypes.end()) {
    std::string names;
    for (const TensorType& t : kTensorTypes)
      names.append(" ").append(t.name);
    fail("tensor " + tensor.name + " has the unknown type " + std::to_string(type) +
         ", not one of" + names);
  }
  tensor.type = known;
  if (tensor.cols % known->block_size != 0) {
    fail("tensor " + tensor.name + " has rows of " + std::to_string(tensor.cols) +
         " elements, not a multiple of its type's block of " + std::to_string(known->block_size));
  }
  tensor.offset = next<std::uint64_t>();
  const std::string tensor_name = tensor.name;
  if (!tensors_.emplace(tensor_name, std::move(tensor)).second) {
    fail("tensor " + tensor_name + " occurs twice");
  }
}

void GgufFile::locate_tensors() {
  const auto alignment = get_or<std::int64_t>("general.alignment", 32);
  if (alignment < 1 || alignment > 1 << 20 ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    fail("general.alignment is " + std::to_string(alignment) + ", not a power of two");
  }
  const std::size_t align = static_cast<std::size_t>(alignment);
  const std::size_t data = (cursor_ + align - 1) / align * align;
  for (auto& [tensor_name, tensor] : tensors_) {
    const std::size_t bytes =
        tensor.rows * (tensor.cols / tensor.type->block_size) * tensor.type->block_bytes;
    if (data > size() || bytes > size() - data || tensor.offset > size() - data - bytes) {
      fail("truncated (tensor " + tensor_name + " lies beyond the end of the file)");
    }
    if (tensor.offset % align != 0)
      fail("tensor " + tensor_name + " is not aligned");
    tensor.offset += data;
  }
}

}  // namespace engine
