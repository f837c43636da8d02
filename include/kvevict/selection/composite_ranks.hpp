#ifndef KVEVICT_SELECTION_COMPOSITE_RANKS_HPP_
#define KVEVICT_SELECTION_COMPOSITE_RANKS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How the r-th best scores of the heads of a layer become one.
enum class RankReduce : std::uint8_t { kMean, kMax };

[[nodiscard]] constexpr auto enum_names(RankReduce /*type*/) noexcept {
  return std::array<std::pair<std::string_view, RankReduce>, 2>{
      {{"mean", RankReduce::kMean}, {"max", RankReduce::kMax}}};
}

/// Layers compete, and the heads of a layer keep equally many, each its own best (the composite
/// tokens of KVCompose): so a layer's cache stays a rectangle. With s_(r) a head's r-th best score,
///
///   curve_l(r) = reduce over heads of s_(r),  curve_0 := max over all layers,
///
/// the largest values of all curves win, and a layer that wins r of them keeps r entries per head.
/// For a pool of all lanes. Of equal values the lower layer's wins.
///
/// What a quota has beside a multiple of the heads stays unused, since a rank costs an entry of
/// each. Where heads have unlike numbers of candidates, after an earlier cut, a rank is of those
/// heads that have so many; a curve never rises.
class CompositeRanks {
 public:
  /// @param min_keep  entries that each head keeps at least, protected ones counted; they are
  ///                  taken from the quota first
  /// @param official  as kvpress: an entry for each head that has none comes on top of the quota
  CompositeRanks(RankReduce reduce, std::size_t min_keep, bool official) noexcept
      : reduce_(reduce), min_keep_(min_keep), official_(official) {}

  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input) const {
    choose(lanes, quota, lanes_per_layer(input.sequence));
  }
  /// @param heads  lanes of each layer; they lie side by side
  void choose(std::span<ScoredLane> lanes, std::size_t quota, std::size_t heads) const {
    const std::size_t num_layers = lanes.size() / heads;
    sort_scores(lanes);
    make_curves(num_layers, heads);
    numbers_.assign(num_layers, 0);
    const std::size_t least = official_ ? min_keep_ : std::max<std::size_t>(min_keep_, 1);
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      const std::size_t wanted = missing(lanes.subspan(layer * heads, heads), least);
      while (numbers_[layer] < wanted && take(layer, heads, quota)) {
      }
    }
    compete(num_layers, heads, quota);
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      const std::span<ScoredLane> of_layer = lanes.subspan(layer * heads, heads);
      if (official_) {
        numbers_[layer] =
            std::max(numbers_[layer], missing(of_layer, std::max<std::size_t>(min_keep_, 1)));
      }
      for (std::size_t h = 0; h < heads; ++h)
        select_top_k(of_layer.subspan(h, 1), numbers_[layer]);
    }
  }

 private:
  // The layer's next rank, as an order of layers.
  struct Next {
    std::uint32_t key;
    std::size_t layer;
    [[nodiscard]] bool operator<(const Next& other) const noexcept {
      return key != other.key ? key < other.key : layer > other.layer;
    }
  };

  // Candidates' scores of each lane, best first; NaN last.
  void sort_scores(std::span<ScoredLane> lanes) const {
    sorted_.clear();
    ends_.clear();
    for (const ScoredLane& lane : lanes) {
      const auto first = static_cast<std::ptrdiff_t>(sorted_.size());
      detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
        const float score = lane.scores[slot];
        sorted_.push_back(std::isnan(score) ? -std::numeric_limits<float>::infinity() : score);
      });
      std::sort(sorted_.begin() + first, sorted_.end(), std::greater<>());
      ends_.push_back(sorted_.size());
    }
  }
  [[nodiscard]] std::span<const float> sorted(std::size_t lane) const noexcept {
    const std::size_t first = lane == 0 ? 0 : ends_[lane - 1];
    return std::span(sorted_).subspan(first, ends_[lane] - first);
  }
  void make_curves(std::size_t num_layers, std::size_t heads) const {
    curves_.clear();
    curve_ends_.clear();
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      std::size_t len = 0;
      for (std::size_t h = 0; h < heads; ++h)
        len = std::max(len, sorted(layer * heads + h).size());
      for (std::size_t rank = 0; rank < len; ++rank) {
        const float value = rank_value(layer, rank, heads);
        curves_.push_back(rank == 0 ? value : std::min(value, curves_.back()));
      }
      curve_ends_.push_back(curves_.size());
    }
    for (std::size_t rank = 0; num_layers > 0 && rank < curve_ends_[0]; ++rank) {
      for (std::size_t layer = 1; layer < num_layers; ++layer) {
        if (rank < curve(layer).size())
          curves_[rank] = std::max(curves_[rank], curve(layer)[rank]);
      }
    }
  }
  [[nodiscard]] std::span<const float> curve(std::size_t layer) const noexcept {
    const std::size_t first = layer == 0 ? 0 : curve_ends_[layer - 1];
    return std::span(curves_).subspan(first, curve_ends_[layer] - first);
  }
  [[nodiscard]] float rank_value(std::size_t layer, std::size_t rank,
                                 std::size_t heads) const noexcept {
    double sum = 0.0;
    double best = -std::numeric_limits<double>::infinity();
    std::size_t count = 0;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::span<const float> scores = sorted(layer * heads + h);
      if (rank >= scores.size())
        continue;
      const auto score = static_cast<double>(scores[rank]);
      sum += score;
      best = std::max(best, score);
      ++count;
    }
    return static_cast<float>(reduce_ == RankReduce::kMax ? best
                                                          : sum / static_cast<double>(count));
  }
  [[nodiscard]] static std::size_t missing(std::span<const ScoredLane> lanes,
                                           std::size_t least) noexcept {
    std::size_t most = 0;
    for (const ScoredLane& lane : lanes) {
      const std::size_t held = detail::count_bits(lane.keep);
      most = std::max(most, least - std::min(least, held));
    }
    return most;
  }
  // Gives a layer its next rank if it has one and the quota can pay for it.
  bool take(std::size_t layer, std::size_t heads, std::size_t& quota) const noexcept {
    std::size_t cost = 0;
    for (std::size_t h = 0; h < heads; ++h)
      cost += sorted(layer * heads + h).size() > numbers_[layer] ? 1 : 0;
    if (cost == 0 || cost > quota)
      return false;
    quota -= cost;
    ++numbers_[layer];
    return true;
  }
  void compete(std::size_t num_layers, std::size_t heads, std::size_t quota) const {
    heap_.clear();
    const auto push = [&](std::size_t layer) {
      if (numbers_[layer] >= curve(layer).size())
        return;
      heap_.push_back({kernels::order_key(curve(layer)[numbers_[layer]]), layer});
      std::push_heap(heap_.begin(), heap_.end());
    };
    for (std::size_t layer = 0; layer < num_layers; ++layer)
      push(layer);
    while (!heap_.empty() && quota > 0) {
      std::pop_heap(heap_.begin(), heap_.end());
      const std::size_t layer = heap_.back().layer;
      heap_.pop_back();
      if (take(layer, heads, quota))
        push(layer);
    }
  }

  RankReduce reduce_;
  std::size_t min_keep_;
  bool official_;
  // Scratch memory of choose.
  mutable std::vector<float> sorted_;
  mutable std::vector<std::size_t> ends_;  // of each lane in sorted_
  mutable std::vector<float> curves_;
  mutable std::vector<std::size_t> curve_ends_;
  mutable std::vector<std::size_t> numbers_;  // entries per head, by layer
  mutable std::vector<Next> heap_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_COMPOSITE_RANKS_HPP_
