#ifndef KVEVICT_ALLOCATION_LAYER_PREFERENCE_HPP_
#define KVEVICT_ALLOCATION_LAYER_PREFERENCE_HPP_

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
#include <limits>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Shares `total` out in proportion to `preference`, at most `cap` each.
///
/// @param official    as the authors of CAKE: round down, cap, hand what the cap cut off to the
///                    others in equal parts, then what is missing of the total likewise (the first
///                    get the odd ones); that may exceed the cap and miss the total. Otherwise
///                    what apportion() makes.
/// @param preference  overwritten
inline void share_by_preference(std::span<double> preference, std::size_t total, std::size_t cap,
                                bool official, std::span<std::size_t> numbers) noexcept {
  if (!official) {
    return apportion(
        preference, total, [&](std::size_t) { return cap; }, numbers);
  }
  double sum = 0.0;
  for (double& share : preference) {
    share = share > 0.0 && std::isfinite(share) ? share : 0.0;
    sum += share;
  }
  std::size_t overflow = 0;
  std::size_t given = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double share =
        sum > 0.0 ? preference[i] / sum : 1.0 / static_cast<double>(numbers.size());
    const auto number = static_cast<std::size_t>(share * static_cast<double>(total));
    numbers[i] = std::min(number, cap);
    overflow += number - numbers[i];
  }
  const auto hand_out = [&](std::size_t count) {
    const auto takers = static_cast<std::size_t>(
        std::count_if(numbers.begin(), numbers.end(), [&](std::size_t x) { return x < cap; }));
    std::size_t odd = takers > 0 ? count % takers : 0;
    for (std::size_t& number : numbers) {
      if (number >= cap)
        continue;
      number += count / takers + (odd > 0 ? 1 : 0);
      odd -= odd > 0 ? 1 : 0;
    }
  };
  hand_out(overflow);
  for (const std::size_t number : numbers)
    given += number;
  hand_out(total - std::min(total, given));
}

/// Budgets of layers by what their attention looks like (CAKE): with e the entropy of the
/// window's rows and v their variance over the rows, both summed over heads and slots,
///
///   P_l = e^(1 / tau1) v^(1 / tau2),  layer l: w + (C - w) L P_l / sum P.
///
/// The signal gives attention_entropy(layer) and attention_variance(layer). Before the end of a
/// prompt there is no budget; from there on it stays what it is then.
class LayerPreference {
 public:
  /// @param official   see share_by_preference
  /// @param cascading  what is left if layers are cut one by one while the prompt is computed:
  /// after
  ///                   layer m all of the layers so far share the whole budget, and no layer gets
  ///                   back what it lost. That differs from one cut at the end by roundings only.
  LayerPreference(const CacheShape& shape, const Budget& budget, std::size_t window, double tau1,
                  double tau2, bool official, bool cascading)
      : table_(shape, budget, window),
        entropy_power_(1.0 / tau1),
        variance_power_(1.0 / tau2),
        official_(official),
        cascading_(cascading),
        filled_preference_(shape.num_layers),
        preference_(shape.num_layers),
        shares_(shape.num_layers),
        numbers_(shape.num_layers),
        least_(shape.num_layers) {}

  template <class Signal>
  [[nodiscard]] Allocation allocation(const Sequence& sequence,
                                      const Signal& signal) const noexcept {
    if (sequence.in_prompt())
      return {.budget = std::numeric_limits<std::size_t>::max()};
    for (std::size_t layer = 0; layer < preference_.size(); ++layer) {
      preference_[layer] =
          preference(signal.attention_entropy(layer), signal.attention_variance(layer));
    }
    // Nothing changes while decoding, and each step asks.
    const std::size_t len = detail::tokens_so_far(sequence, true);
    if (len == filled_len_ && preference_ == filled_preference_)
      return table_.filled();
    filled_len_ = len;
    filled_preference_ = preference_;
    const bool whole = official_ || cascading_;
    return table_.fill(len, whole, [&](const LaneTable::Rest& rest, std::span<double> ideal) {
      if (whole)
        share_out(rest);
      const std::size_t heads = table_.shape().num_kv_heads;
      for (std::size_t lane = 0; lane < ideal.size(); ++lane) {
        ideal[lane] = whole ? static_cast<double>(least_[lane / heads]) : preference_[lane / heads];
      }
    });
  }
  [[nodiscard]] double preference(double entropy, double variance) const noexcept {
    return std::pow(std::max(entropy, 0.0), entropy_power_) *
           std::pow(std::max(variance, 0.0), variance_power_);
  }

 private:
  // What each layer has at the end, in whole tokens per head, in least_.
  void share_out(const LaneTable::Rest& rest) const noexcept {
    const std::size_t layers = preference_.size();
    const std::size_t total = static_cast<std::size_t>(rest.per_lane) * layers;
    std::fill(least_.begin(), least_.end(), rest.cap);
    for (std::size_t seen = cascading_ ? 1 : layers; seen <= layers; ++seen) {
      const std::span<double> shares = std::span(shares_).first(seen);
      const std::span<std::size_t> numbers = std::span(numbers_).first(seen);
      std::copy_n(preference_.begin(), seen, shares.begin());
      share_by_preference(shares, total, rest.cap, official_, numbers);
      for (std::size_t layer = 0; layer < seen; ++layer)
        least_[layer] = std::min(least_[layer], numbers[layer]);
    }
  }

  LaneTable table_;
  double entropy_power_;
  double variance_power_;
  bool official_;
  bool cascading_;
  // What the table was filled for, and scratch memory of allocation, by layer.
  mutable std::size_t filled_len_ = std::numeric_limits<std::size_t>::max();
  mutable std::vector<double> filled_preference_;
  mutable std::vector<double> preference_;
  mutable std::vector<double> shares_;
  mutable std::vector<std::size_t> numbers_;
  mutable std::vector<std::size_t> least_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_LAYER_PREFERENCE_HPP_
