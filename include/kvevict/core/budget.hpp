#ifndef KVEVICT_CORE_BUDGET_HPP_
#define KVEVICT_CORE_BUDGET_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

[[nodiscard]] constexpr std::size_t saturating_add(std::size_t a, std::size_t b) noexcept {
  return a + std::min(b, std::numeric_limits<std::size_t>::max() - a);
}

}  // namespace detail

/// How many entries may stay; what is protected counts inside it.
///
/// A ratio is read as the decimal it was written as (to nine places), and all counting is in
/// integers, so keep_ratio(0.1) of 1000 is 100 where binary floating point would say 99.
class Budget {
 public:
  /// `count` tokens per KV head. Implicit, so that an options field reads `.budget = 1024`. Throws
  /// InvalidArgument for a negative number.
  template <std::integral Count>
  constexpr Budget(Count count)  // NOLINT(google-explicit-constructor)
      noexcept(std::unsigned_integral<Count>)
      : kind_(Kind::kTokens), value_(static_cast<std::uint64_t>(count)) {
    if constexpr (std::signed_integral<Count>) {
      if (count < 0)
        detail::throw_invalid_field("Budget", "tokens", count, "must not be negative");
    }
  }
  /// A share is not a number of tokens: say keep_ratio or compression_ratio.
  Budget(std::floating_point auto) = delete;

  [[nodiscard]] static constexpr Budget tokens(std::size_t count) noexcept { return {count}; }
  /// `count` entries over all layers and KV heads together.
  [[nodiscard]] static constexpr Budget total(std::size_t count) noexcept {
    return {Kind::kTotal, count};
  }
  /// The share that stays. Throws InvalidArgument outside [0, 1].
  [[nodiscard]] static Budget keep_ratio(double ratio) {
    return {Kind::kKeepRatio, billionths(ratio, "keep_ratio")};
  }
  /// The share that goes (rho in the papers). Throws InvalidArgument outside [0, 1].
  [[nodiscard]] static Budget compression_ratio(double ratio) {
    return {Kind::kKeepRatio, kOne - billionths(ratio, "compression_ratio")};
  }

  [[nodiscard]] constexpr bool is_tokens() const noexcept { return kind_ == Kind::kTokens; }
  [[nodiscard]] constexpr bool is_total() const noexcept { return kind_ == Kind::kTotal; }
  [[nodiscard]] constexpr bool is_share() const noexcept { return kind_ == Kind::kKeepRatio; }
  /// The number it was made from; 0 for a ratio.
  [[nodiscard]] constexpr std::size_t count() const noexcept {
    return kind_ == Kind::kKeepRatio ? 0 : static_cast<std::size_t>(value_);
  }

  /// Tokens that may stay of `seq_len` (rule R6): for a ratio 0 only if it keeps nothing, else
  /// clamp(floor(ratio * seq_len), 1, seq_len). A total is shared evenly by `num_lanes` lanes,
  /// rounded down. Policies count the evicted in `seq_len`: cutting twice cuts no deeper.
  [[nodiscard]] constexpr std::size_t tokens_of(std::size_t seq_len,
                                                std::size_t num_lanes = 1) const noexcept {
    if (kind_ == Kind::kTokens)
      return static_cast<std::size_t>(value_);
    if (kind_ == Kind::kTotal)
      return static_cast<std::size_t>(value_) / num_lanes;
    if (value_ == 0 || seq_len == 0)
      return 0;
    const std::uint64_t n = seq_len;
    // floor(n * value / 10^9) without 128-bit products: both parts fit in 64 bits.
    const std::uint64_t kept = n / kOne * value_ + n % kOne * value_ / kOne;
    return static_cast<std::size_t>(std::max<std::uint64_t>(1, kept));
  }
  /// The same before it is rounded down and clamped.
  [[nodiscard]] constexpr double unrounded_tokens_of(std::size_t seq_len,
                                                     std::size_t num_lanes = 1) const noexcept {
    const auto value = static_cast<double>(value_);
    if (kind_ == Kind::kKeepRatio)
      return static_cast<double>(seq_len) * value / static_cast<double>(kOne);
    return kind_ == Kind::kTotal ? value / static_cast<double>(num_lanes) : value;
  }

 private:
  enum class Kind : std::uint8_t { kTokens, kTotal, kKeepRatio };
  static constexpr std::uint64_t kOne = 1'000'000'000;

  constexpr Budget(Kind kind, std::uint64_t value) noexcept : kind_(kind), value_(value) {}
  [[nodiscard]] static std::uint64_t billionths(double ratio, std::string_view field) {
    detail::require(ratio >= 0.0 && ratio <= 1.0, "Budget", field, ratio, "must be in [0, 1]");
    const auto rounded =
        static_cast<std::uint64_t>(std::llround(ratio * static_cast<double>(kOne)));
    // Only the ends themselves mean nothing and everything (rule R6).
    if (ratio > 0.0 && rounded == 0)
      return 1;
    return ratio < 1.0 && rounded == kOne ? kOne - 1 : rounded;
  }

  Kind kind_;
  std::uint64_t value_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_BUDGET_HPP_
