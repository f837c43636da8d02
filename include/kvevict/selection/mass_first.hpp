#ifndef KVEVICT_SELECTION_MASS_FIRST_HPP_
#define KVEVICT_SELECTION_MASS_FIRST_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// First, in every lane, the tokens of most mean attention, as long as those before and the window
/// hold less than a share `mass` of it, at most an equal part of the quota; then the best of all
/// lanes by score (DefensiveKV). With p the mean attention of the candidates, scaled to sum to 1,
/// and w that of the window, its mean over the layer, a lane takes its k largest,
///
///   k = number of ranks r with p_(1) + .. + p_(r) < mass - w.
///
/// For masks per KV head and signals with row_sums(layer, kv_head) and window().
class MassFirst {
 public:
  /// @param official  w as the authors' code has it: the attention of as many slots as the window
  ///                  has, just before it
  MassFirst(double mass, bool official) noexcept : mass_(mass), official_(official) {}

  template <class Input, class Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Signal& signal) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t most = quota / lanes.size();
    double in_window = 0.0;
    for (const ScoredLane& lane : lanes) {
      const std::size_t layer = lane.lane / shape.num_kv_heads;
      if (&lane == lanes.data() || lane.lane % shape.num_kv_heads == 0)
        in_window = window_mass(input.sequence, layer, signal);
      const std::span<const float> sums = signal.row_sums(layer, lane.lane % shape.num_kv_heads);
      order_.clear();
      double all = 0.0;
      detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
        order_.push_back(slot);
        all += static_cast<double>(sums[slot]);
      });
      std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
        return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
      });
      const double wanted = (mass_ - in_window) * all;
      double held = 0.0;
      for (std::size_t i = 0; i < order_.size() && i < most; ++i) {
        held += static_cast<double>(sums[order_[i]]);
        if (held >= wanted)
          break;
        detail::set_bit(lane.keep, order_[i]);
        detail::clear_bit(lane.candidates, order_[i]);
        --quota;
      }
    }
    select_top_k(lanes, quota);
  }

 private:
  // The share of the window's rows that falls on the window, mean over the layer's heads.
  template <class Signal>
  [[nodiscard]] double window_mass(const Sequence& sequence, std::size_t layer,
                                   const Signal& signal) const noexcept {
    const std::size_t heads = sequence.shape().num_kv_heads;
    double mass = 0.0;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t end = sequence.slots_before(
          sequence.shape().lane_of(sequence.scope(), layer, head), sequence.prompt_end());
      const std::size_t rows = std::min(signal.window(), end);
      const std::span<const float> sums = signal.row_sums(layer, head);
      const std::size_t prefix = end - rows;
      const std::size_t first = official_ ? prefix - std::min(prefix, rows) : 0;
      double sum = 0.0;
      for (std::size_t slot = first; slot < prefix; ++slot)
        sum += static_cast<double>(sums[slot]);
      sum /= static_cast<double>(std::max<std::size_t>(rows, 1));
      mass += official_ ? sum : 1.0 - sum;
    }
    return mass / static_cast<double>(heads);
  }

  double mass_;
  bool official_;
  mutable std::vector<std::size_t> order_;  // scratch memory of choose
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_MASS_FIRST_HPP_
