#ifndef KVEVICT_TESTS_ADAPTERS_FAKE_TENSOR_HPP_
#define KVEVICT_TESTS_ADAPTERS_FAKE_TENSOR_HPP_

#include "kvevict/adapters/llama_cpp_hook.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvevict_test {

struct FakeBuffer {
  bool on_host = true;
};
inline constexpr FakeBuffer kHostBuffer{true};
inline constexpr FakeBuffer kDeviceBuffer{false};

/// The members of ggml_tensor that the adapter reads.
struct FakeTensor {
  int op = 0;
  kvevict::llama_cpp::Storage type = kvevict::llama_cpp::Storage::kF32;
  std::array<std::int64_t, 4> ne{1, 1, 1, 1};
  std::array<std::size_t, 4> nb{};
  std::array<std::int32_t, 16> op_params{};
  std::array<FakeTensor*, 10> src{};
  FakeTensor* view_src = nullptr;
  void* data = nullptr;
  char name[64] = "";
  const FakeBuffer* buffer = &kHostBuffer;

  void set_name(const char* prefix, std::size_t number) {
    std::snprintf(name, sizeof(name), "%s%zu", prefix, number);
  }
  void set_param(std::size_t index, float value) {
    std::memcpy(&op_params[index], &value, sizeof(value));
  }
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_ADAPTERS_FAKE_TENSOR_HPP_
