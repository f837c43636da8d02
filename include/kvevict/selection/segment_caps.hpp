#ifndef KVEVICT_SELECTION_SEGMENT_CAPS_HPP_
#define KVEVICT_SELECTION_SEGMENT_CAPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How much a segment may keep, by the third of all segments that it belongs to.
struct SegmentCapOptions {
  std::size_t segment_len = 128;  ///< evictable slots per segment; the last is short
  std::array<std::size_t, 3> caps = {64, 32, 8};  ///< most important third first
};

/// Takes candidates away before selection so that every stretch of the text keeps a share that
/// fits its importance: candidates are cut, in slot order, into segments; a segment keeps at most
/// the cap of its third, its best by score; segments are served oldest first until the room is
/// used up, so less than the budget may stay.
///
/// With m segments, the one of rank r by importance (0 = most, ties: older first) is in third
/// floor(3 r / m). Owns the memory that this takes.
class SegmentCaps {
 public:
  /// @param lane        its candidates are reduced to what stays, at most `room` of them
  /// @param importance  importance(slots): of the segment of these candidate slots, ascending;
  ///                    NaN counts as least
  template <class Importance>
  void run(const SegmentCapOptions& options, std::size_t room, ScoredLane& lane,
           Importance&& importance) {
    slots_.clear();
    detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
      slots_.push_back(static_cast<std::uint32_t>(slot));
    });
    segments_.clear();
    for (std::size_t first = 0; first < slots_.size(); first += options.segment_len) {
      const std::size_t len = std::min(options.segment_len, slots_.size() - first);
      const std::span<const std::uint32_t> slots(slots_.data() + first, len);
      segments_.push_back({first, len, kernels::order_key(importance(slots)), 0});
    }
    rank_segments(options);
    std::fill(lane.candidates.begin(), lane.candidates.end(), std::uint64_t{0});
    for (const Segment& segment : segments_) {
      const std::size_t count = std::min({segment.cap, segment.len, room});
      room -= count;
      keep_best(segment, count, lane);
    }
  }

 private:
  struct Segment {
    std::size_t first;
    std::size_t len;
    std::uint32_t key;
    std::size_t cap;
  };

  void rank_segments(const SegmentCapOptions& options) {
    order_.clear();
    for (std::uint32_t s = 0; s < segments_.size(); ++s)
      order_.push_back(s);
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return segments_[a].key != segments_[b].key ? segments_[a].key > segments_[b].key : a < b;
    });
    for (std::size_t rank = 0; rank < order_.size(); ++rank) {
      segments_[order_[rank]].cap = options.caps[3 * rank / order_.size()];
    }
  }
  // Strict total order: score, then lower slot (rule R3); NaN last (rule R4).
  void keep_best(const Segment& segment, std::size_t count, ScoredLane& lane) {
    const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(segment.first);
    const auto last = first + static_cast<std::ptrdiff_t>(segment.len);
    const auto middle = first + static_cast<std::ptrdiff_t>(count);
    if (middle != last) {
      std::nth_element(first, middle, last, [&](std::uint32_t a, std::uint32_t b) {
        const std::uint32_t key_a = kernels::order_key(lane.scores[a]);
        const std::uint32_t key_b = kernels::order_key(lane.scores[b]);
        return key_a != key_b ? key_a > key_b : a < b;
      });
    }
    for (auto slot = first; slot != middle; ++slot)
      detail::set_bit(lane.candidates, *slot);
  }

  std::vector<std::uint32_t> slots_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> order_;
};

/// The selection of a policy with one set of tokens whose signal has importance(input, slots) of a
/// segment: what SegmentCaps leave stays.
class CappedSegments {
 public:
  explicit CappedSegments(const SegmentCapOptions& options) : options_(options) {}

  template <class Input, class Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Signal& signal) const {
    ScoredLane& lane = lanes.front();
    caps_.run(options_, quota, lane, [&](std::span<const std::uint32_t> slots) {
      return signal.importance(input, slots);
    });
    detail::for_each_bit(lane.candidates,
                         [&](std::size_t slot) { detail::set_bit(lane.keep, slot); });
  }

 private:
  SegmentCapOptions options_;
  mutable SegmentCaps caps_;  // scratch of a selection
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_SEGMENT_CAPS_HPP_
