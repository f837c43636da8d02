#ifndef KVEVICT_CORE_ROTARY_HPP_
#define KVEVICT_CORE_ROTARY_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
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

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_ROTARY_HPP_
