#ifndef KVEVICT_ALLOCATION_APPORTION_HPP_
#define KVEVICT_ALLOCATION_APPORTION_HPP_

#include "kvevict/config.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// The nearest whole number, halves to the even one, whatever the rounding mode: what the authors
/// of most budget rules call round.
[[nodiscard]] inline double round_half_even(double x) noexcept {
  return x - std::remainder(x, 1.0);
}

/// Whole numbers in proportion to `ideal` that add up to exactly `total`, or to the sum of the caps
/// where that is less: what a cap cuts off goes to the others in proportion (water-filling), and
/// what rounding down leaves goes to the largest fractions, one each, ties to the lower index.
///
/// @param ideal    what each should get, up to a common factor; overwritten. What is negative or
///                 not finite counts as 0; where all are 0, all are equal.
/// @param cap      cap(i), the most that i may get
/// @param numbers  the result, of the size of `ideal`
/// @note  No allocation. Numbers are read to a millionth, so that fractions which are equal in
///        decimal are equal here.
template <std::invocable<std::size_t> Cap>
void apportion(std::span<double> ideal, std::size_t total, Cap&& cap,
               std::span<std::size_t> numbers) noexcept {
  constexpr double kFixed = -1.0;  // has its number already
  constexpr std::int64_t kOne = std::int64_t{1} << 20;
  double sum = 0.0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < ideal.size(); ++i) {
    if (!(ideal[i] > 0.0) || !std::isfinite(ideal[i]))
      ideal[i] = 0.0;
    sum += ideal[i];
    most += std::min(cap(i), total - std::min(total, most));
  }
  total = std::min(total, most);
  if (!(sum > 0.0) || !std::isfinite(sum)) {
    std::fill(ideal.begin(), ideal.end(), 1.0);
    sum = static_cast<double>(ideal.size());
  }
  std::size_t left = total;
  for (bool settled = false; !settled;) {
    settled = true;
    const double scale = sum > 0.0 ? static_cast<double>(left) / sum : 0.0;
    sum = 0.0;
    for (std::size_t i = 0; i < ideal.size(); ++i) {
      if (ideal[i] == kFixed)
        continue;
      if (const std::size_t most_of_i = cap(i); ideal[i] * scale > static_cast<double>(most_of_i)) {
        numbers[i] = most_of_i;
        left -= std::min(left, most_of_i);
        ideal[i] = kFixed;
        settled = false;
      } else {
        sum += ideal[i];
      }
    }
    // Those that want nothing share what the others cannot take.
    if (!settled && !(sum > 0.0) && left > 0) {
      for (double& share : ideal) {
        if (share != kFixed)
          share = 1.0;
      }
      sum = static_cast<double>(std::count(ideal.begin(), ideal.end(), 1.0));
    }
  }
  const double scale = sum > 0.0 ? static_cast<double>(left) / sum : 0.0;
  for (std::size_t i = 0; i < ideal.size(); ++i) {
    if (ideal[i] == kFixed)
      continue;
    const auto parts =
        static_cast<std::int64_t>(std::llround(ideal[i] * scale * static_cast<double>(kOne)));
    numbers[i] = static_cast<std::size_t>(parts / kOne);
    ideal[i] = static_cast<double>(parts % kOne);
    left -= std::min(left, numbers[i]);
  }
  for (; left > 0; --left) {
    const auto largest = std::max_element(ideal.begin(), ideal.end());
    if (*largest == kFixed)
      break;
    ++numbers[static_cast<std::size_t>(largest - ideal.begin())];
    *largest = kFixed;
  }
}

/// Raises what lies below least(i) to it, one by one at the cost of the number that is largest
/// above its own least (ties: the higher index pays), so that the sum stays; what nobody can pay
/// for is left.
template <std::invocable<std::size_t> Least>
void lift(std::span<std::size_t> numbers, Least&& least) noexcept {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    while (numbers[i] < least(i)) {
      std::size_t payer = 0;
      std::size_t most = 0;
      for (std::size_t j = 0; j < numbers.size(); ++j) {
        const std::size_t above = numbers[j] - std::min(numbers[j], least(j));
        if (above > 0 && above >= most) {
          most = above;
          payer = j;
        }
      }
      if (most == 0)
        return;
      --numbers[payer];
      ++numbers[i];
    }
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_APPORTION_HPP_
