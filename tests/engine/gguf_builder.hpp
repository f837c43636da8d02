#ifndef KVEVICT_TESTS_ENGINE_GGUF_BUILDER_HPP_
#define KVEVICT_TESTS_ENGINE_GGUF_BUILDER_HPP_

#include "engine/gguf.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Writes GGUF files in memory, right and wrong ones.
namespace engine_test {

class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    for (const std::byte b : std::bit_cast<std::array<std::byte, sizeof(T)>>(value)) {
      data_.push_back(b);
    }
    return *this;
  }
  Bytes& put_string(const std::string& text) {
    put(std::uint64_t{text.size()});
    for (const char c : text)
      put(c);
    return *this;
  }
  Bytes& append(const Bytes& other) {
    data_.insert(data_.end(), other.data_.begin(), other.data_.end());
    return *this;
  }
  Bytes& pad(std::size_t alignment) {
    while (data_.size() % alignment != 0)
      put(std::uint8_t{0});
    return *this;
  }
  [[nodiscard]] std::size_t size() const { return data_.size(); }
  [[nodiscard]] const std::vector<std::byte>& data() const { return data_; }

 private:
  std::vector<std::byte> data_;
};

[[nodiscard]] inline Bytes floats(const std::vector<float>& values) {
  Bytes bytes;
  for (const float value : values)
    bytes.put(value);
  return bytes;
}

class GgufBuilder {
 public:
  static constexpr std::uint32_t kF32 = 0;

  // A pair with its value already in bytes, for value types that no other function makes.
  GgufBuilder& raw_pair(const std::string& key, std::uint32_t type, const Bytes& value) {
    pairs_.put_string(key).put(type).append(value);
    ++num_pairs_;
    return *this;
  }
  GgufBuilder& text(const std::string& key, const std::string& value) {
    return raw_pair(key, 8, Bytes().put_string(value));
  }
  GgufBuilder& number(const std::string& key, std::uint32_t value) {
    return raw_pair(key, 4, Bytes().put(value));
  }
  GgufBuilder& real(const std::string& key, float value) {
    return raw_pair(key, 6, Bytes().put(value));
  }
  GgufBuilder& flag(const std::string& key, bool value) {
    return raw_pair(key, 7, Bytes().put(static_cast<std::uint8_t>(value)));
  }
  GgufBuilder& texts(const std::string& key, const std::vector<std::string>& values) {
    Bytes bytes;
    bytes.put(std::uint32_t{8}).put(std::uint64_t{values.size()});
    for (const std::string& value : values)
      bytes.put_string(value);
    return raw_pair(key, 9, bytes);
  }
  GgufBuilder& numbers(const std::string& key, const std::vector<std::int32_t>& values) {
    Bytes bytes;
    bytes.put(std::uint32_t{5}).put(std::uint64_t{values.size()});
    for (const std::int32_t value : values)
      bytes.put(value);
    return raw_pair(key, 9, bytes);
  }

  // dims in the file's order, the innermost first.
  GgufBuilder& tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                      std::uint32_t type, const Bytes& data) {
    tensors_data_.pad(32);
    tensor_at(name, dims, type, tensors_data_.size());
    tensors_data_.append(data);
    return *this;
  }
  // Only the entry in the header.
  GgufBuilder& tensor_at(const std::string& name, const std::vector<std::uint64_t>& dims,
                         std::uint32_t type, std::uint64_t offset) {
    entries_.put_string(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims)
      entries_.put(dim);
    entries_.put(type).put(offset);
    ++num_tensors_;
    return *this;
  }

  [[nodiscard]] std::vector<std::byte> bytes(std::uint32_t version = 3) const {
    Bytes file;
    for (const char c : {'G', 'G', 'U', 'F'})
      file.put(c);
    file.put(version).put(num_tensors_).put(num_pairs_).append(pairs_).append(entries_);
    return file.pad(32).append(tensors_data_).data();
  }
  [[nodiscard]] engine::GgufFile file() const { return {bytes(), "test.gguf"}; }

 private:
  std::uint64_t num_pairs_ = 0;
  std::uint64_t num_tensors_ = 0;
  Bytes pairs_;
  Bytes entries_;
  Bytes tensors_data_;
};

// The message of the std::runtime_error that `run` throws; anything else fails the test by itself.
template <class Run>
[[nodiscard]] std::string error_of(Run&& run) {
  try {
    std::forward<Run>(run)();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace engine_test

#endif  // KVEVICT_TESTS_ENGINE_GGUF_BUILDER_HPP_
