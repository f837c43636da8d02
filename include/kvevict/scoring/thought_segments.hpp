#ifndef KVEVICT_SCORING_THOUGHT_SEGMENTS_HPP_
#define KVEVICT_SCORING_THOUGHT_SEGMENTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What a stretch of a chain of thought does, the least important first (ThinKV).
enum class Thought : std::uint8_t { kTransition, kExecution, kReasoning };

struct ThoughtOptions {
  std::size_t segment_len = 128;           ///< decoded tokens of a segment, > 0 (tau)
  double execution_below = 0.5;            ///< sparsity up to which a segment is execution
  double transition_from = 0.8;            ///< sparsity from which on it is a transition
  std::vector<std::size_t> layers = {};    ///< whose attention tells; empty: all
  std::vector<std::size_t> schedule = {};  ///< tokens of a segment at level 1, 2, ..; descending
};

/// Decoded tokens in segments, what each of them is, and how much of each stays: the scheduler of
/// ThinKV.
///
/// The sparsity of a row is the share of the slots it sees to which it gives less than 1 % of its
/// largest entry; that of a segment is the mean over its rows, layers and query heads. A complete
/// segment is a transition, an execution or, between the thresholds and where nothing was observed,
/// reasoning. When a transition is complete, every segment before it moves one level down the
/// schedule, at most to its end.
///
/// Where all that should stay still exceeds a budget, the oldest of the least important complete
/// segments moves one level down, and again, until all fits; one at the schedule's end is passed
/// over. Where all are, they lose what is left, in the same order, and only then does the segment
/// that is being written lose its oldest tokens.
///
/// Levels that drafts have moved stay moved.
class ThoughtSegments {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  /// Throws InvalidArgument, naming `where`.
  ThoughtSegments(std::string_view where, const CacheShape& shape, const ThoughtOptions& options)
      : options_(options), last_layer_(shape.num_layers - 1), segments_{options.segment_len} {
    detail::require(options.segment_len > 0, where, "segment_len", options.segment_len,
                    "must be > 0");
    detail::require(options.execution_below <= options.transition_from, where, "execution_below",
                    options.execution_below, "must not exceed transition_from");
    detail::require(!options.schedule.empty(), where, "schedule.size()", 0, "must be > 0");
    for (std::size_t i = 0; i < options.schedule.size(); ++i) {
      detail::require(options.schedule[i] > 0, where, "schedule", options.schedule[i],
                      "must be > 0");
      detail::require(i == 0 || options.schedule[i] < options.schedule[i - 1], where, "schedule",
                      options.schedule[i], "must descend");
    }
    for (const std::size_t layer : options.layers) {
      detail::require(layer < shape.num_layers, where, "layers", layer, "must be < num_layers");
    }
    if (!options.layers.empty())
      last_layer_ = *std::max_element(options.layers.begin(), options.layers.end());
  }

  [[nodiscard]] auto state() noexcept { return std::tie(segments_); }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    const auto& layers = options_.layers;
    const bool tells =
        layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
    return sequence.num_decoded() > 0 && tells ? std::numeric_limits<std::size_t>::max() : 0;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    const auto origin = sequence.prompt_end();
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t len = options_.segment_len;
      const std::size_t start = origin + (rows.first_position + r - origin) / len * len;
      Segment& segment = segments_.at(start);
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        const std::span<const float> row(rows.row(h, r), rows.visible(r));
        const float largest = kernel.max_value(row.data(), row.size());
        std::size_t sparse = 0;
        for (const float a : row) {
          sparse += a < kShare * largest ? 1 : 0;
          non_finite += std::isfinite(a) ? 0 : 1;
        }
        if (!(largest > 0.0F))
          continue;  // says nothing (rule R16)
        segment.sparsity += static_cast<double>(sparse) / static_cast<double>(row.size());
        ++segment.num_rows;
      }
    }
    return non_finite;
  }
  /// Closes the segments that are complete once the last layer that tells was observed.
  std::size_t end_layer(std::size_t layer, const Sequence& sequence,
                        const kernels::KernelSet& /*kernel*/) {
    if (layer != last_layer_)
      return 0;
    auto& all = segments_.all;
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (all[s].closed || all[s].start + options_.segment_len > sequence.length())
        continue;
      all[s].closed = true;
      if (thought(all[s]) != Thought::kTransition || all[s].moved)
        continue;
      all[s].moved = true;
      for (std::size_t before = 0; before < s; ++before)
        move_down(sequence, all[before]);
    }
    // What lost its last token needs no entry any more.
    std::erase_if(all, [&](const Segment& segment) {
      return segment.closed && num_slots(sequence, segment) == 0;
    });
    return 0;
  }
  /// Nobody is better than others of its segment by a score.
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, 0, 1);
    scores.keep_one();
  }

  /// How many tokens of the slots [first, last) of one segment stay.
  struct Share {
    std::size_t first = 0;
    std::size_t last = 0;
    std::size_t count = 0;
    std::size_t level = 0;
    Thought thought = Thought::kReasoning;
    bool open = false;  ///< is being written: its newest tokens stay
  };
  /// The segments of a lane, ascending, with what stays so that no more than `budget` do, prompts
  /// included. Valid until the next call.
  [[nodiscard]] std::span<const Share> shares(const Sequence& sequence, std::size_t lane,
                                              std::size_t budget) const {
    shares_.clear();
    std::size_t total = sequence.seq_len(lane);
    DecodePages{options_.segment_len}.for_each(
        sequence, lane, [&](std::size_t first, std::size_t last) {
          const auto position = static_cast<std::size_t>(sequence.position(lane, first));
          const Segment* const segment = segments_.find(position);
          Share share{first, last, last - first};
          share.open = segment == nullptr ? last == sequence.seq_len(lane) : !segment->closed;
          if (segment != nullptr && segment->closed) {
            share.thought = thought(*segment);
            share.level = level_now(*segment, share.count);
            share.count = std::min(share.count, cap(share.level));
          }
          total -= last - first - share.count;
          shares_.push_back(share);
        });
    while (total > budget && demote(total)) {
    }
    for (Share& share : shares_) {
      const std::size_t excess = std::min(share.count, total - std::min(total, budget));
      share.count -= excess;
      total -= excess;
    }
    return shares_;
  }

 private:
  static constexpr float kShare = 0.01F;  // of the largest entry; less is sparse

  struct Segment {
    std::size_t start = 0;  // position
    double sparsity = 0;    // summed over num_rows
    std::size_t num_rows = 0;
    std::size_t level = 0;
    bool closed = false;
    bool moved = false;  // those before it, as a transition
  };
  struct Segments {
    std::size_t segment_len = 0;
    std::vector<Segment> all = {};  // ascending

    [[nodiscard]] Segment& at(std::size_t start) {
      const auto found = std::lower_bound(
          all.begin(), all.end(), start,
          [](const Segment& segment, std::size_t other) { return segment.start < other; });
      if (found != all.end() && found->start == start)
        return *found;
      return *all.insert(found, Segment{.start = start});
    }
    [[nodiscard]] const Segment* find(std::size_t position) const noexcept {
      const auto behind = std::upper_bound(
          all.begin(), all.end(), position,
          [](std::size_t other, const Segment& segment) { return other < segment.start; });
      if (behind == all.begin() || position >= std::prev(behind)->start + segment_len)
        return nullptr;
      return &*std::prev(behind);
    }

    void append(std::size_t /*count*/) noexcept {}
    void apply(const KeepMask& /*mask*/) noexcept {}
    void truncate(const Sequence& sequence) noexcept {
      while (!all.empty() && all.back().start >= sequence.length())
        all.pop_back();
      if (!all.empty() && all.back().start + segment_len > sequence.length())
        all.back().closed = false;
    }
    void reset() noexcept { all.clear(); }
  };

  [[nodiscard]] Thought thought(const Segment& segment) const noexcept {
    const double sparsity = segment.num_rows == 0
                                ? options_.execution_below
                                : segment.sparsity / static_cast<double>(segment.num_rows);
    if (segment.num_rows > 0 && sparsity >= options_.transition_from)
      return Thought::kTransition;
    return sparsity < options_.execution_below ? Thought::kExecution : Thought::kReasoning;
  }
  // Tokens that a segment may have at a level; none below the schedule.
  [[nodiscard]] std::size_t cap(std::size_t level) const noexcept {
    if (level == 0)
      return options_.segment_len;
    return level <= options_.schedule.size() ? options_.schedule[level - 1] : 0;
  }
  // The level of a segment that has `count` tokens left: budgets move it without a trace but this.
  [[nodiscard]] std::size_t level_now(const Segment& segment, std::size_t count) const noexcept {
    std::size_t level = segment.level;
    while (level < options_.schedule.size() && cap(level + 1) >= count && count < cap(level))
      ++level;
    return level;
  }
  // All lanes have equally many.
  [[nodiscard]] std::size_t num_slots(const Sequence& sequence,
                                      const Segment& segment) const noexcept {
    return sequence.slots_before(0, segment.start + options_.segment_len) -
           sequence.slots_before(0, segment.start);
  }
  void move_down(const Sequence& sequence, Segment& segment) const noexcept {
    segment.level =
        std::min(level_now(segment, num_slots(sequence, segment)) + 1, options_.schedule.size());
  }
  // Moves one complete segment that has something to lose one level down; false where none has.
  bool demote(std::size_t& total) const noexcept {
    const std::size_t end = options_.schedule.size();
    Share* victim = nullptr;
    for (Share& share : shares_) {
      if (share.open || share.count == 0)
        continue;
      const auto rank = [&](const Share& s) { return std::pair{s.level >= end, s.thought}; };
      if (victim == nullptr || rank(share) < rank(*victim))
        victim = &share;
    }
    if (victim == nullptr)
      return false;
    const std::size_t count = std::min(victim->count, cap(++victim->level));
    total -= victim->count - count;
    victim->count = count;
    return true;
  }

  ThoughtOptions options_;
  std::size_t last_layer_;
  Segments segments_;
  mutable std::vector<Share> shares_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_THOUGHT_SEGMENTS_HPP_
