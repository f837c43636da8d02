#ifndef KVEVICT_ALLOCATION_STREAMING_LANES_HPP_
#define KVEVICT_ALLOCATION_STREAMING_LANES_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/allocation/apportion.hpp"
#include "kvevict/allocation/budget_tables.hpp"
#include "kvevict/allocation/lane_table.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Lanes that keep their first and their newest tokens, beside lanes that keep everything.

/// Heads of low score stream (DuoAttention).
class StreamingHeads {
 public:
  /// @param scores  [layers * KV heads] how much a head needs its whole cache
  /// @param ratio   of all heads that stream: the round(ratio L H) of the lowest scores, halves to
  ///                even; of equal scores, and those that are NaN, the later heads
  /// @param tokens  that a streaming head keeps
  StreamingHeads(std::string_view where, const CacheShape& shape, std::span<const double> scores,
                 double ratio, std::size_t tokens)
      : budgets_(shape.num_layers * shape.num_kv_heads, kAll) {
    detail::require(ratio >= 0.0 && ratio <= 1.0, where, "streaming_ratio", ratio,
                    "must be in [0, 1]");
    detail::check_table_size(where, "head_scores", scores.size(),
                             {detail::for_each_kv_head(shape)});
    const auto count =
        static_cast<std::size_t>(round_half_even(ratio * static_cast<double>(budgets_.size())));
    std::vector<std::size_t> order(budgets_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[a] && scores[b] != scores[b]);
    });
    for (std::size_t i = order.size() - count; i < order.size(); ++i)
      budgets_[order[i]] = tokens;
  }

  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = kAll, .lane_budgets = budgets_};
  }

 private:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  std::vector<std::size_t> budgets_;
};

/// Layers stream whose last rows look at nothing but the first and the newest tokens (SimLayerKV):
/// with a the mean row over the last `num_last` queries and all heads of a layer, cut to the n -
/// num_last slots before them,
///
///   mass = sum of a over its first num_initial and its last num_recent slots > threshold.
///
/// The signal's columns hold the sum of those rows, mean over each group.
class LazyLayers {
 public:
  LazyLayers(const CacheShape& shape, std::size_t num_initial, std::size_t num_recent,
             std::size_t num_last, double threshold)
      : shape_(shape),
        num_initial_(num_initial),
        num_recent_(num_recent),
        num_last_(num_last),
        threshold_(threshold),
        budgets_(shape.num_layers) {}

  template <class Signal>
  [[nodiscard]] Allocation allocation(const Sequence& sequence,
                                      const Signal& signal) const noexcept {
    const std::size_t len = detail::tokens_so_far(sequence, true);
    const bool is_short = len <= num_initial_ + num_recent_ + num_last_;
    for (std::size_t layer = 0; layer < budgets_.size(); ++layer) {
      const bool lazy = !is_short && mass(sequence, signal, layer) > threshold_;
      budgets_[layer] = lazy ? num_initial_ + num_recent_ - num_last_ : kAll;
    }
    return {.budget = kAll, .lane_budgets = budgets_};
  }
  /// Attention of a layer on its first and newest tokens, in [0, 1].
  template <class Signal>
  [[nodiscard]] double mass(const Sequence& sequence, const Signal& signal,
                            std::size_t layer) const noexcept {
    const std::size_t prompt_end = sequence.slots_before(layer, sequence.prompt_end());
    const std::size_t end = prompt_end - std::min(prompt_end, num_last_);
    const std::size_t first = std::min(sequence.padding_left(layer), end);
    const std::size_t initial_end = std::min(end, first + num_initial_);
    const std::size_t recent = std::max(initial_end, end - std::min(end, num_recent_));
    double sum = 0.0;
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      const std::span<const float> column = signal.columns().of(layer, head);
      for (std::size_t slot = first; slot < initial_end; ++slot)
        sum += static_cast<double>(column[slot]);
      for (std::size_t slot = recent; slot < end; ++slot)
        sum += static_cast<double>(column[slot]);
    }
    return sum / static_cast<double>(shape_.num_kv_heads * num_last_);
  }

 private:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  CacheShape shape_;
  std::size_t num_initial_;
  std::size_t num_recent_;
  std::size_t num_last_;
  double threshold_;
  mutable std::vector<std::size_t> budgets_;  // by layer; filled by each allocation
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_ALLOCATION_STREAMING_LANES_HPP_
