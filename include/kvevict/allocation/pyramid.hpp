#ifndef KVEVICT_ALLOCATION_PYRAMID_HPP_
#define KVEVICT_ALLOCATION_PYRAMID_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// How the budgets of a pyramid become whole numbers.
enum class PyramidRounding : std::uint8_t {
  kExact,     ///< the line in reals, largest remainder: the sum is the whole budget
  kOfficial,  ///< the authors' whole step between layers: the sum may leak
  kKvpress,   ///< kvpress' line, with the window in it and each layer rounded: the sum may leak
};

/// Budgets on a straight line over the layers, the first one's the largest (PyramidKV). With b the
/// tokens per KV head beside the window, of n in all,
///
///   lo = floor(b / beta), hi = 2b - lo;  where hi >= n - w: hi = n - w, lo = 2b - hi
///   layer l: w + hi - l (hi - lo) / (L - 1)
///
/// One layer, and a prompt shorter than 2b: all equal.
class PyramidBudgets {
 public:
  static constexpr bool kOfPrompts = true;

  /// @param beta         >= 1; 1: all layers have the same
  /// @param competition  kLayer: the heads of a layer compete for its budgets
  PyramidBudgets(const CacheShape& shape, const Budget& budget, std::size_t window, double beta,
                 PyramidRounding rounding, Competition competition = Competition::kLane)
      : table_(shape, budget, window),
        beta_(beta),
        rounding_(rounding),
        competition_(competition) {}

  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    Allocation allocation = budgets(detail::tokens_so_far(sequence, true));
    allocation.competition = competition_;
    return allocation;
  }
  /// For lanes of `len` tokens.
  [[nodiscard]] Allocation budgets(std::size_t len) const noexcept {
    return table_.fill(len, rounding_ != PyramidRounding::kExact,
                       [&](const LaneTable::Rest& rest, std::span<double> ideal) {
                         const std::size_t heads = table_.shape().num_kv_heads;
                         for (std::size_t lane = 0; lane < ideal.size(); ++lane) {
                           ideal[lane] = rounding_ == PyramidRounding::kKvpress
                                             ? kvpress(rest, lane / heads)
                                             : line(rest, lane / heads);
                         }
                       });
  }

 private:
  [[nodiscard]] double line(const LaneTable::Rest& rest, std::size_t layer) const noexcept {
    const bool official = rounding_ == PyramidRounding::kOfficial;
    const double b = official ? std::floor(rest.per_lane) : rest.per_lane;
    const std::size_t layers = table_.shape().num_layers;
    if (layers == 1 || static_cast<double>(rest.len) < 2.0 * b)
      return b;
    double low = std::floor(b / beta_);
    double high = 2.0 * b - low;
    if (high >= static_cast<double>(rest.cap)) {
      high = static_cast<double>(rest.cap);
      low = 2.0 * b - high;
    }
    const double step = (high - low) / static_cast<double>(layers - 1);
    return high - static_cast<double>(layer) * (official ? std::floor(step) : step);
  }
  // Counted from the whole budget, in reals; what is beside the window, as the table wants it.
  [[nodiscard]] double kvpress(const LaneTable::Rest& rest, std::size_t layer) const noexcept {
    const auto window = static_cast<double>(table_.window());
    const auto len = static_cast<double>(rest.len);
    const double b = table_.budget().is_share() ? table_.budget().unrounded_tokens_of(rest.len)
                                                : rest.per_lane + window;
    double low = b / beta_;
    double high = 2.0 * b - low;
    if (high >= len - window) {
      high = len - window;
      low = 2.0 * b - high;
    }
    if (!(len >= high && high >= low && low >= window))
      return std::max(1.0, round_half_even(b)) - window;
    const std::size_t layers = table_.shape().num_layers;
    const double step = layers == 1 ? 0.0 : (high - low) / static_cast<double>(layers - 1);
    return round_half_even(high - static_cast<double>(layer) * step) - window;
  }

  LaneTable table_;
  double beta_;
  PyramidRounding rounding_;
  Competition competition_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_PYRAMID_HPP_
