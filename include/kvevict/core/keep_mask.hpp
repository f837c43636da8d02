#ifndef KVEVICT_CORE_KEEP_MASK_HPP_
#define KVEVICT_CORE_KEEP_MASK_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Which slots stay: one bit per slot for each row of decisions ("lane") of a scope. A shared
/// lane speaks for all KV heads of its layer, or of the model.
///
/// Every conversion below walks the bits and allocates nothing.
class KeepMask {
 public:
  KeepMask() = default;

  /// An empty mask: no lane has a slot. Keeps its memory for the next use.
  void reset(MaskScope scope, std::size_t num_layers, std::size_t num_kv_heads) {
    scope_ = scope;
    shape_.num_layers = num_layers;
    shape_.num_kv_heads = num_kv_heads;
    lanes_.clear();
    lanes_.reserve(shape_.num_lanes(scope));
    words_.clear();
  }
  /// Appends the next lane with `seq_len` slots, all evicted; returns its bits for writing, valid
  /// until the next call. Bits behind seq_len must stay 0.
  std::span<std::uint64_t> add_lane(std::size_t seq_len) {
    const std::size_t num_words = (seq_len + 63) / 64;
    lanes_.push_back({words_.size(), seq_len});
    words_.resize(words_.size() + num_words, 0);
    return {words_.data() + lanes_.back().first_word, num_words};
  }

  [[nodiscard]] MaskScope scope() const noexcept { return scope_; }
  [[nodiscard]] std::size_t num_layers() const noexcept { return shape_.num_layers; }
  [[nodiscard]] std::size_t num_kv_heads() const noexcept { return shape_.num_kv_heads; }
  [[nodiscard]] std::size_t num_lanes() const noexcept { return lanes_.size(); }
  [[nodiscard]] std::size_t lane_of(std::size_t layer, std::size_t kv_head) const noexcept {
    return shape_.lane_of(scope_, layer, kv_head);
  }

  // By lane.
  [[nodiscard]] std::size_t lane_len(std::size_t lane) const noexcept { return lanes_[lane].len; }
  /// Bits of a lane, slot 0 in the lowest bit of the first word.
  [[nodiscard]] std::span<const std::uint64_t> words(std::size_t lane) const noexcept {
    return {words_.data() + lanes_[lane].first_word, (lanes_[lane].len + 63) / 64};
  }
  [[nodiscard]] std::span<std::uint64_t> words(std::size_t lane) noexcept {
    return {words_.data() + lanes_[lane].first_word, (lanes_[lane].len + 63) / 64};
  }
  [[nodiscard]] std::size_t lane_count(std::size_t lane) const noexcept {
    return detail::count_bits(words(lane));
  }
  /// Calls visit(first, last) for each run of slots whose bit is `kept`, ascending, half-open.
  template <class Visit>
  void for_each_lane_run(std::size_t lane, bool kept, Visit&& visit) const {
    const std::size_t len = lane_len(lane);
    for (std::size_t first = next(lane, 0, kept); first < len;) {
      const std::size_t last = next(lane, first, !kept);
      visit(first, last);
      first = next(lane, last, kept);
    }
  }

  // By layer and KV head.
  [[nodiscard]] std::size_t seq_len(std::size_t layer, std::size_t kv_head) const noexcept {
    return lane_len(lane_of(layer, kv_head));
  }
  [[nodiscard]] bool keeps(std::size_t layer, std::size_t kv_head,
                           std::size_t slot) const noexcept {
    return detail::has_bit(words(lane_of(layer, kv_head)), slot);
  }
  /// Kept slots of one lane.
  [[nodiscard]] std::size_t count(std::size_t layer, std::size_t kv_head) const noexcept {
    return lane_count(lane_of(layer, kv_head));
  }
  /// Kept entries over all layers and KV heads.
  [[nodiscard]] std::size_t total_count() const noexcept { return total(true); }
  /// Evicted entries over all layers and KV heads.
  [[nodiscard]] std::size_t total_evicted() const noexcept { return total(false); }

  /// Calls visit(first, last) for each run of evicted slots, ascending, half-open.
  template <class Visit>
  void for_each_evicted_run(std::size_t layer, std::size_t kv_head, Visit&& visit) const {
    for_each_lane_run(lane_of(layer, kv_head), false, visit);
  }
  /// Calls visit(first, last) for each run of kept slots, ascending, half-open.
  template <class Visit>
  void for_each_kept_run(std::size_t layer, std::size_t kv_head, Visit&& visit) const {
    for_each_lane_run(lane_of(layer, kv_head), true, visit);
  }
  /// Writes the kept slots, ascending, to `slots` [at least count()]; returns how many.
  // Who sized `slots` by count() knows.
  // NOLINTNEXTLINE(modernize-use-nodiscard)
  std::size_t kept_slots(std::size_t layer, std::size_t kv_head,
                         std::span<std::uint32_t> slots) const noexcept {
    std::size_t count = 0;
    for_each_kept_run(layer, kv_head, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first)
        slots[count++] = static_cast<std::uint32_t>(first);
    });
    return count;
  }
  /// Writes each slot's new slot, -1 where evicted, to `map` [seq_len()].
  void slot_map(std::size_t layer, std::size_t kv_head,
                std::span<std::int32_t> map) const noexcept {
    std::fill(map.begin(), map.end(), -1);
    std::int32_t target = 0;
    for_each_kept_run(layer, kv_head, [&](std::size_t first, std::size_t last) {
      for (; first < last; ++first)
        map[first] = target++;
    });
  }

  friend bool operator==(const KeepMask& a, const KeepMask& b) {
    return a.scope_ == b.scope_ && a.shape_ == b.shape_ && a.lanes_ == b.lanes_ &&
           a.words_ == b.words_;
  }

 private:
  struct LaneBits {
    std::size_t first_word;
    std::size_t len;
    friend bool operator==(const LaneBits&, const LaneBits&) = default;
  };

  // First slot >= `slot` whose bit is `wanted`; the lane's length if there is none.
  [[nodiscard]] std::size_t next(std::size_t lane, std::size_t slot, bool wanted) const noexcept {
    const auto bits = words(lane);
    const std::size_t len = lane_len(lane);
    for (std::size_t w = slot / 64; w < bits.size(); ++w) {
      std::uint64_t word = wanted ? bits[w] : ~bits[w];
      if (w == slot / 64)
        word &= ~std::uint64_t{0} << (slot % 64);
      if (word != 0) {
        return std::min(len, w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      }
    }
    return len;
  }
  [[nodiscard]] std::size_t total(bool kept) const noexcept {
    std::size_t sum = 0;
    for (std::size_t lane = 0; lane < num_lanes(); ++lane) {
      sum += kept ? lane_count(lane) : lane_len(lane) - lane_count(lane);
    }
    return sum * (shape_.num_layers * shape_.num_kv_heads / std::max<std::size_t>(1, num_lanes()));
  }

  MaskScope scope_ = MaskScope::kModel;
  CacheShape shape_;
  std::vector<LaneBits> lanes_;
  std::vector<std::uint64_t> words_;
};

namespace detail {

/// Moves the kept elements of `per_slot` to the front, in order; returns how many these are.
template <class T>
std::size_t move_kept(const KeepMask& mask, std::size_t lane, std::span<T> per_slot) {
  std::size_t target = 0;
  mask.for_each_lane_run(lane, true, [&](std::size_t first, std::size_t last) {
    if (target != first)
      std::copy(&per_slot[first], per_slot.data() + last, &per_slot[target]);
    target += last - first;
  });
  return target;
}

}  // namespace detail

/// Moves the kept elements of `per_slot` to the front, in order, and cuts it to their number: how
/// anything that is kept once per slot follows a mask.
template <class T>
void compact_slots(const KeepMask& mask, std::size_t lane, std::vector<T>& per_slot) {
  per_slot.resize(detail::move_kept(mask, lane, std::span(per_slot)));
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_KEEP_MASK_HPP_
