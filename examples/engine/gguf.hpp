#ifndef KVEVICT_EXAMPLES_ENGINE_GGUF_HPP_
#define KVEVICT_EXAMPLES_ENGINE_GGUF_HPP_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// Reader of GGUF files, versions 2 and 3: metadata by key, rows of tensors dequantised to float.
//
// A file is not trusted: every count and size is compared with the bytes that are there before
// memory is taken, and whatever is wrong ends in one std::runtime_error "file: what".
namespace engine {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they lie");

[[nodiscard]] inline float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  // The exponents' biases differ by 112. The product is exact, for subnormals too.
  const float scaled = std::bit_cast<float>((bits & 0x7FFFU) << 13U) * 0x1p112F;
  const bool is_finite = (bits & 0x7C00U) != 0x7C00U;
  const auto magnitude = std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(sign | magnitude | (is_finite ? 0U : 0x7F800000U));
}

[[nodiscard]] inline float bfloat16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

/// How a tensor's elements are stored.
struct TensorType {
  std::string_view name;
  std::uint32_t id;         ///< in the file
  std::size_t block_size;   ///< elements that are stored together, along a row
  std::size_t block_bytes;  ///< what they take
  void (*dequantise)(const std::byte* blocks, std::size_t num_blocks, float* out) noexcept;
};

struct GgufTensor {
  std::string name;
  const TensorType* type;
  std::size_t rows;    ///< product of all dimensions but the innermost; 1 for a vector
  std::size_t cols;    ///< the innermost dimension, GGUF's first
  std::size_t offset;  ///< in the file
};

/// Copies share the bytes.
class GgufFile {
 public:
  /// Integers of any width are kept as int64, f32 and f64 as double.
  using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                             std::vector<double>, std::vector<std::string>>;

  [[nodiscard]] static GgufFile open(const std::string& path);

  /// @param name  stands for the file in error messages
  GgufFile(std::vector<std::byte> bytes, std::string name);

  /// The value of `key`, null if there is none; throws if it has another type.
  template <class T>
  [[nodiscard]] const T* find(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end())
      return nullptr;
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr)
      fail("metadata key " + key + " has an unexpected type");
    return value;
  }
  template <class T>
  [[nodiscard]] const T& get(const std::string& key) const {
    const T* value = find<T>(key);
    if (value == nullptr)
      fail("metadata key " + key + " is missing");
    return *value;
  }
  template <class T>
  [[nodiscard]] T get_or(const std::string& key, T otherwise) const {
    const T* value = find<T>(key);
    return value == nullptr ? otherwise : *value;
  }
  /// An integer that counts something: 1 .. 2^31 - 1.
  [[nodiscard]] std::size_t get_count(const std::string& key) const;

  [[nodiscard]] bool has_tensor(const std::string& tensor_name) const {
    return tensors_.contains(tensor_name);
  }
  [[nodiscard]] const GgufTensor& tensor(const std::string& tensor_name) const;
  /// The same, but throws unless it is [rows, cols].
  [[nodiscard]] const GgufTensor& tensor(const std::string& tensor_name, std::size_t rows,
                                         std::size_t cols) const;
  /// Writes rows first .. first + count of the tensor, [count, cols].
  void dequantise(const GgufTensor& tensor, std::size_t first, std::size_t count,
                  float* out) const noexcept;

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(name_ + ": " + what);
  }

 private:
  [[nodiscard]] std::size_t size() const noexcept { return bytes_->size(); }
  [[nodiscard]] std::size_t remaining() const noexcept { return size() - cursor_; }

  template <class T>
  T next();
  // A number of things that have at least `least_bytes` each and so must fit in what is left.
  std::uint64_t next_count(std::size_t least_bytes, const std::string& what);
  std::string next_string();

  static constexpr std::uint32_t kString = 8;
  static constexpr std::uint32_t kArray = 9;
  // What a value of a scalar type takes; 0 for strings, arrays and unknown types.
  static std::size_t scalar_bytes(std::uint32_t type) noexcept;

  // A value of one of the scalar types: bool, int64 or double.
  std::variant<bool, std::int64_t, double> next_scalar(std::uint32_t type, const std::string& key);

  Value next_array(const std::string& key);

  void read_pair();

  void read_tensor_entry();

  // Turns offsets in the data section into offsets in the file.
  void locate_tensors();

  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::string name_;
  std::size_t cursor_ = 0;
  std::map<std::string, Value> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_GGUF_HPP_
