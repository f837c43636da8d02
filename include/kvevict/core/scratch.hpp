#ifndef KVEVICT_CORE_SCRATCH_HPP_
#define KVEVICT_CORE_SCRATCH_HPP_

#include "kvevict/config.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Float buffers that keep their memory between calls, by number.
class Scratch {
 public:
  /// `size` floats of unspecified content, valid until the same buffer is asked for again.
  [[nodiscard]] std::span<float> floats(std::size_t buffer, std::size_t size) {
    auto& memory = buffers_[buffer];
    if (memory.size() < size)
      memory.resize(size);
    return {memory.data(), size};
  }
  /// A buffer whose size its user sets.
  [[nodiscard]] std::vector<float>& vector(std::size_t buffer) noexcept { return buffers_[buffer]; }

 private:
  std::array<std::vector<float>, 8> buffers_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SCRATCH_HPP_
