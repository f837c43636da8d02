#ifndef KVEVICT_TESTS_SUPPORT_RANDOM_HPP_
#define KVEVICT_TESTS_SUPPORT_RANDOM_HPP_

#include <cstddef>
#include <cstdint>

namespace kvevict_test {

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every standard library.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) noexcept : state_(seed) {}

  constexpr std::uint64_t bits() noexcept {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
    return x ^ x >> 31U;
  }
  /// In [0, bound), bound > 0.
  constexpr std::size_t below(std::size_t bound) noexcept {
    return static_cast<std::size_t>(bits() % bound);
  }
  /// Multiples of 1/8 in [-2, 2]: exact in every element type, with many equal ones.
  constexpr float eighths() noexcept {
    return static_cast<float>(static_cast<int>(below(33)) - 16) / 8.0F;
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_RANDOM_HPP_
