#ifndef KVEVICT_CORE_SCRATCH_HPP_
#define KVEVICT_CORE_SCRATCH_HPP_

#include "kvevict/config.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Buffers that keep their memory between calls, by number.
class Scratch {
 public:
  /// `size` floats of unspecified content, valid until the same buffer is asked for again.
  [[nodiscard]] std::span<float> floats(std::size_t buffer, std::size_t size) {
    return first_of(floats_[buffer], size);
  }
  /// A buffer of floats whose size its user sets.
  [[nodiscard]] std::vector<float>& vector(std::size_t buffer) noexcept { return floats_[buffer]; }
  /// The same for sums in double and for counts, whose buffers have numbers of their own.
  [[nodiscard]] std::span<double> doubles(std::size_t buffer, std::size_t size) {
    return first_of(doubles_[buffer], size);
  }
  [[nodiscard]] std::span<std::size_t> counts(std::size_t buffer, std::size_t size) {
    return first_of(counts_[buffer], size);
  }

  /// Takes as much memory as `other` has: what went there goes here without an allocation.
  void reserve_as(const Scratch& other) {
    reserve_all(floats_, other.floats_);
    reserve_all(doubles_, other.doubles_);
    reserve_all(counts_, other.counts_);
  }

 private:
  template <class T>
  [[nodiscard]] static std::span<T> first_of(std::vector<T>& memory, std::size_t size) {
    if (memory.size() < size)
      memory.resize(size);
    return {memory.data(), size};
  }
  template <class Buffers>
  static void reserve_all(Buffers& buffers, const Buffers& others) {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      buffers[i].reserve(others[i].capacity());
  }

  std::array<std::vector<float>, 8> floats_;
  std::array<std::vector<double>, 4> doubles_;
  std::array<std::vector<std::size_t>, 2> counts_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_SCRATCH_HPP_
