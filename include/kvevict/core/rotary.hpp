#ifndef KVEVICT_CORE_ROTARY_HPP_
#define KVEVICT_CORE_ROTARY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Which channels rotary embedding turns together, of rotary_dim that it turns at all.
enum class RotaryPairing : std::uint8_t {
  kHalf,         ///< c and c + rotary_dim / 2 (Llama in transformers, NeoX)
  kInterleaved,  ///< 2 c and 2 c + 1 (GPT-J)
};

[[nodiscard]] constexpr auto enum_names(RotaryPairing /*type*/) noexcept {
  return std::array<std::pair<std::string_view, RotaryPairing>, 2>{
      {{"half", RotaryPairing::kHalf}, {"interleaved", RotaryPairing::kInterleaved}}};
}

/// The rotary embedding (RoPE) of a model, for policies that compare keys or queries as they are
/// before it, or as they will be at other positions. Empty: the model has none.
struct RotaryEmbedding {
  std::vector<double> inv_freq = {};  ///< [rotary_dim / 2] radians per position; scaled as the
                                      ///< model does. Channels behind rotary_dim do not turn.
  RotaryPairing pairing = RotaryPairing::kHalf;
  double attention_scaling = 1.0;  ///< by which the model multiplies what it turned, keys and
                                   ///< queries alike (YaRN's mscale); turn leaves it out

  [[nodiscard]] std::size_t num_pairs() const noexcept { return inv_freq.size(); }
  [[nodiscard]] std::pair<std::size_t, std::size_t> channels(std::size_t pair) const noexcept {
    if (pairing == RotaryPairing::kHalf)
      return {pair, pair + num_pairs()};
    return {2 * pair, 2 * pair + 1};
  }
  /// exp(i inv_freq positions). In double: an angle may be large, and what counts of it small.
  [[nodiscard]] std::complex<double> factor(std::size_t pair, double positions) const noexcept {
    return std::polar(1.0, inv_freq[pair] * positions);
  }
  /// Multiplies a pair of channels, as a complex number, by `factor`.
  template <class Real>
  void turn_pair(std::size_t pair, std::complex<double> factor, Real* row) const noexcept {
    const auto [c, d] = channels(pair);
    const std::complex<double> turned =
        factor * std::complex<double>(static_cast<double>(row[c]), static_cast<double>(row[d]));
    row[c] = static_cast<Real>(turned.real());
    row[d] = static_cast<Real>(turned.imag());
  }
  /// Multiplies all pairs by factors [2, num_pairs()]: real parts, then imaginary ones.
  template <class Real>
  void turn_pairs(std::span<const double> factors, Real* row) const noexcept {
    const std::size_t n = num_pairs();
    const double* const imaginary = factors.data() + n;
    // As turn_pair, in loops that vectorise.
    const auto turn_all = [&](Real* first, Real* second, std::size_t stride) {
      for (std::size_t pair = 0; pair < n; ++pair) {
        const auto x = static_cast<double>(first[pair * stride]);
        const auto y = static_cast<double>(second[pair * stride]);
        first[pair * stride] = static_cast<Real>(factors[pair] * x - imaginary[pair] * y);
        second[pair * stride] = static_cast<Real>(factors[pair] * y + imaginary[pair] * x);
      }
    };
    if (pairing == RotaryPairing::kHalf)
      turn_all(row, row + n, 1);
    else
      turn_all(row, row + 1, 2);
  }
  /// Moves a key or a query by so many positions; back where negative.
  template <class Real>
  void turn(double positions, Real* row) const noexcept {
    for (std::size_t pair = 0; pair < num_pairs(); ++pair)
      turn_pair(pair, factor(pair, positions), row);
  }
  /// Throws InvalidArgument, naming `where`, if it does not fit rows of head_dim.
  void check(std::string_view where, std::size_t head_dim) const {
    detail::require(2 * num_pairs() <= head_dim, where, "rotary.inv_freq.size()", num_pairs(),
                    "must be at most head_dim / 2");
    detail::require(std::isfinite(attention_scaling) && attention_scaling > 0.0, where,
                    "rotary.attention_scaling", attention_scaling, "must be finite and > 0");
    for (const double frequency : inv_freq) {
      detail::require(std::isfinite(frequency), where, "rotary.inv_freq", frequency,
                      "must be finite");
    }
  }
};

/// The factors that turn rows of one position after another back to position 0. A position behind
/// the last one takes one multiplication instead of sines and cosines, up to 64 times in a row:
/// errors stay below 64 roundings of a double.
class RotaryWalk {
 public:
  /// @param scale   of all factors
  /// @param memory  [num_doubles(rotary)], used as long as this lives
  RotaryWalk(const RotaryEmbedding& rotary, double scale, std::span<double> memory) noexcept
      : rotary_(rotary),
        scale_(scale),
        step_(memory.first(2 * rotary.num_pairs())),
        factors_(memory.subspan(step_.size(), step_.size())) {
    write(-1.0, 1.0, step_);
  }
  [[nodiscard]] static std::size_t num_doubles(const RotaryEmbedding& rotary) noexcept {
    return 4 * rotary.num_pairs();
  }

  /// For RotaryEmbedding::turn_pairs, valid until the next call.
  [[nodiscard]] std::span<const double> back_from(double position) noexcept {
    if (num_steps_ > 0 && position == position_ + 1.0) {
      const std::size_t n = rotary_.num_pairs();
      for (std::size_t pair = 0; pair < n; ++pair) {
        const double real = factors_[pair];
        const double imaginary = factors_[n + pair];
        factors_[pair] = real * step_[pair] - imaginary * step_[n + pair];
        factors_[n + pair] = real * step_[n + pair] + imaginary * step_[pair];
      }
      --num_steps_;
    } else {
      write(-position, scale_, factors_);
      num_steps_ = 64;
    }
    position_ = position;
    return factors_;
  }

 private:
  void write(double positions, double scale, std::span<double> out) const noexcept {
    for (std::size_t pair = 0; pair < rotary_.num_pairs(); ++pair) {
      const std::complex<double> factor = scale * rotary_.factor(pair, positions);
      out[pair] = factor.real();
      out[rotary_.num_pairs() + pair] = factor.imag();
    }
  }

  const RotaryEmbedding& rotary_;
  double scale_;
  std::span<double> step_;
  std::span<double> factors_;
  double position_ = 0.0;
  int num_steps_ = 0;  // that may still be taken
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_ROTARY_HPP_
