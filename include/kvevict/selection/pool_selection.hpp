#ifndef KVEVICT_SELECTION_POOL_SELECTION_HPP_
#define KVEVICT_SELECTION_POOL_SELECTION_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/executor.hpp"
#include "kvevict/core/function_ref.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// Slots of a lane up to the end of the newest prompt: what the budget of a policy is for that
/// keeps decoded tokens on top of it.
[[nodiscard]] inline std::size_t len_without_decode(const Sequence& sequence,
                                                    std::size_t lane) noexcept {
  return sequence.slots_before(lane, sequence.prompt_end());
}

/// The length that a ratio refers to, for a lane with `len` slots that the budget is for: what was
/// evicted counts, so that cutting twice cuts no deeper.
[[nodiscard]] inline std::size_t len_with_evicted(const Sequence& sequence, std::size_t lane,
                                                  std::size_t len) noexcept {
  return len + sequence.num_evicted(lane);
}

/// Whether a pool holds more than its lanes may keep together, and `slack` more of each lane. Looks
/// at lengths only: where slots are protected on top of the budget or beyond it, a selection may
/// still keep all.
[[nodiscard]] inline bool exceeds_budget(const Sequence& sequence, const Allocation& allocation,
                                         const Protection& protection,
                                         std::size_t slack = 0) noexcept {
  const CacheShape& shape = sequence.shape();
  const std::size_t num_lanes = sequence.num_lanes();
  const std::size_t pools = allocation.num_pools(shape, num_lanes);
  for (std::size_t pool = 0, lane = 0; pool < pools; ++pool) {
    std::size_t quota = allocation.remainder(shape, num_lanes, pool);
    std::size_t held = 0;
    for (const std::size_t end = lane + num_lanes / pools; lane < end; ++lane) {
      const std::size_t len =
          protection.after_prompt ? len_without_decode(sequence, lane) : sequence.seq_len(lane);
      held += len;
      const std::size_t budget =
          allocation.lane_budget(shape, lane, len_with_evicted(sequence, lane, len));
      quota = saturating_add(quota, saturating_add(budget, slack));
    }
    if (held > quota)
      return true;
  }
  return false;
}

/// Whether a candidate scores less than the threshold, by the scores that are there before a
/// selection, score_of(lane, slot); a lane that holds no more than its minimum has none to lose.
/// O(slots).
template <class ScoreOf>
[[nodiscard]] bool any_below_threshold(const Sequence& sequence, const Allocation& allocation,
                                       const Protection& protection, ScoreOf&& score_of) noexcept {
  for (std::size_t lane = 0; lane < sequence.num_lanes(); ++lane) {
    const std::size_t padding = sequence.padding_left(lane);
    const std::size_t len = sequence.seq_len(lane);
    if (len <= saturating_add(padding, allocation.min_keep))
      continue;
    const std::size_t end = protection.after_prompt ? len_without_decode(sequence, lane) : len;
    const std::size_t last = end - std::min(end, protection.recent_window);
    for (std::size_t slot = saturating_add(padding, protection.num_sink_tokens); slot < last;
         ++slot) {
      if (!(score_of(lane, slot) >= allocation.threshold) &&
          !sequence.is_pinned(sequence.position(lane, slot)))
        return true;
    }
  }
  return false;
}

/// Rule R7 and R15: what can be known at construction is refused there.
inline void check_allocation(const Allocation& allocation, const Protection& protection,
                             const CacheShape& shape, std::string_view where) {
  if (!allocation.lane_budgets.empty() || allocation.budget.is_share())
    return;
  const std::size_t lane_budget = allocation.lane_budget(shape, 0, 0);
  const std::size_t windows = saturating_add(protection.num_sink_tokens, protection.recent_window);
  const auto check = [&](std::size_t tokens, std::size_t least, std::string_view what) {
    if (tokens >= least)
      return;
    const std::size_t lanes =
        allocation.budget.is_total() ? shape.num_layers * shape.num_kv_heads : 1;
    const std::size_t count = allocation.budget.count();
    throw_invalid_field(where, "budget", count - std::min(count, allocation.headroom),
                        std::string("must be at least ")
                            .append(std::to_string(least * lanes))
                            .append(": ")
                            .append(what));
  };
  const std::size_t room = lane_budget - std::min(lane_budget, allocation.headroom);
  if (!allocation.protected_extra)
    check(room, windows, kRoomForWindows);
  if (allocation.competition != Competition::kLane || allocation.budget.is_total()) {
    check(saturating_add(lane_budget, allocation.protected_extra ? windows : 0),
          allocation.min_keep, "min_keep in every lane");
  }
}

}  // namespace detail

/// The last stages of every policy: protect, allocate, select. Turns scores into a mask, pool by
/// pool; owns the memory that this takes.
class PoolSelection {
 public:
  /// What the newest run found, entries over all layers and KV heads.
  struct Report {
    std::size_t protected_entries = 0;
    std::size_t non_finite = 0;
    bool budget_not_reached = false;
  };

  using Score = FunctionRef<void(ScoredLane&, std::size_t)>;
  using Normalise = FunctionRef<void(std::span<ScoredLane>)>;
  using Choose = FunctionRef<void(std::span<ScoredLane>, std::size_t)>;

  /// @param score      score(lane, worker): fills lane.scores for one lane; called only where there
  ///                   is something to choose, and by several workers of the executor at a time
  /// @param normalise  normalise(lanes): after all lanes of a pool have scores; may change scores
  ///                   and may take candidates away, which then go even if the budget has room
  /// @param choose     choose(lanes, quota): marks at most `quota` candidates in the lanes' keep
  ///                   bits; without it, the best of all lanes together
  /// @param for_projection  scores every lane, also where all stays, and keeps what a Projection
  ///                   needs: lanes() and protected_slots()
  /// @param executor   takes the lanes' scores and the pools' best; the rest goes in order
  void run(const Sequence& sequence, const ViewRef& view, const Allocation& allocation,
           const Protection& protection, Score score, Normalise normalise, Choose choose = {},
           bool for_projection = false, const Executor& executor = {}) {
    const CacheShape& shape = sequence.shape();
    const std::size_t num_lanes = sequence.num_lanes();
    mask_.reset(sequence.scope(), shape.num_layers, shape.num_kv_heads);
    for (std::size_t l = 0; l < num_lanes; ++l)
      mask_.add_lane(sequence.seq_len(l));
    report_ = {};
    invalid_.resize(num_lanes);
    for_projection_ = for_projection;
    const std::size_t pools = allocation.num_pools(shape, num_lanes);
    const std::size_t lanes_per_pool = num_lanes / pools;
    // One by one a pool takes the memory of the one before it, and its scores are still in cache
    // when it chooses.
    const bool at_once = for_projection || executor.num_workers() > 1;
    for (std::size_t pool = 0; pool < pools; ++pool) {
      if (pool == 0 || !at_once)
        start(pool * lanes_per_pool, at_once ? num_lanes : lanes_per_pool);
      start_pool(sequence, view, allocation, protection, pool * lanes_per_pool, lanes_per_pool,
                 allocation.remainder(shape, num_lanes, pool));
      if (pool + 1 == pools || !at_once)
        finish(allocation, score, normalise, choose, executor);
    }
    if (for_projection)
      std::copy(valid_.begin(), valid_.end(), candidates_.begin());
    const std::size_t shared_by = shape.num_layers * shape.num_kv_heads / num_lanes;
    report_.protected_entries *= shared_by;
  }

  [[nodiscard]] const KeepMask& mask() const noexcept { return mask_; }
  /// All lanes with their scores, after a run for a projection. Their candidates are all that is
  /// not protected, whether a threshold or a stage took it out of the running or not.
  [[nodiscard]] std::span<const ScoredLane> lanes() const noexcept { return lanes_; }
  /// What protection kept, after a run for a projection.
  [[nodiscard]] const KeepMask& protected_slots() const noexcept { return protected_; }
  /// [num_lanes] budget that was left where a pool held less than it may and than it has seen; the
  /// pool's first lane has all of it.
  [[nodiscard]] std::span<const std::size_t> unused_budget() const noexcept { return unused_; }
  [[nodiscard]] const Report& report() const noexcept { return report_; }
  /// Makes the scores of all lanes what the mask says: 1 where a slot is kept, 0 elsewhere, and
  /// with `has_scores` their own order between slots of one kind, in a part that is too small to
  /// outweigh a lane's vote: order keys between the lane's lowest and highest, as finely as a float
  /// tells them apart behind a 1, 2^23 / (2 lanes) steps.
  void score_by_mask(bool has_scores) noexcept {
    for (ScoredLane& lane : lanes_) {
      std::uint32_t lowest = std::numeric_limits<std::uint32_t>::max();
      std::uint32_t highest = 0;
      for (const float score : lane.scores) {
        if (!std::isfinite(score))
          continue;
        lowest = std::min(lowest, kernels::order_key(score));
        highest = std::max(highest, kernels::order_key(score));
      }
      const double step =
          has_scores && lowest < highest
              ? 0.5 / static_cast<double>(lanes_.size()) / static_cast<double>(highest - lowest)
              : 0.0;
      for (std::size_t slot = 0; slot < lane.scores.size(); ++slot) {
        const std::uint32_t key =
            std::clamp(kernels::order_key(lane.scores[slot]), lowest, std::max(lowest, highest));
        const double vote = detail::has_bit(lane.keep, slot) ? 1.0 : 0.0;
        lane.scores[slot] = static_cast<float>(vote + static_cast<double>(key - lowest) * step);
      }
    }
  }
  /// The slots that were not valid are gone, or others now.
  void forget_padding() noexcept {
    for (std::vector<std::uint64_t>& lane : invalid_)
      lane.clear();
  }
  /// How many slots that are missing in `kept`, the bits of a lane of the newest run, were not
  /// valid then.
  [[nodiscard]] std::size_t evicted_padding(std::size_t lane,
                                            std::span<const std::uint64_t> kept) const noexcept {
    if (lane >= invalid_.size() || invalid_[lane].size() != kept.size())
      return 0;
    std::size_t count = 0;
    for (std::size_t w = 0; w < kept.size(); ++w)
      count += static_cast<std::size_t>(std::popcount(invalid_[lane][w] & ~kept[w]));
    return count;
  }

 private:
  // Lanes that share a budget, on their way through a run.
  struct Pool {
    std::size_t first_lane = 0;  // in lanes_
    std::size_t num_lanes = 0;
    std::size_t quota = 0;  // that the lanes may hold together
    std::size_t held = 0;   // of it, by what is protected
    std::size_t num_candidates = 0;
    std::size_t lost = 0;  // by earlier cuts

    // Where something has to go, room is made for what comes until the next cut.
    [[nodiscard]] std::size_t quota_now(const Allocation& allocation) const noexcept {
      return held + num_candidates > quota
                 ? quota - std::min(quota, allocation.headroom * num_lanes)
                 : quota;
    }
    // For candidates.
    [[nodiscard]] std::size_t room(const Allocation& allocation) const noexcept {
      const std::size_t all = quota_now(allocation);
      return all > held ? all - held : 0;
    }
    [[nodiscard]] bool some_go(const Allocation& allocation) const noexcept {
      const std::size_t left = room(allocation);
      return left > 0 && left < num_candidates;
    }
  };

  // Memory for the lanes [first_lane, first_lane + num_lanes): what points into it must not move.
  void start(std::size_t first_lane, std::size_t num_lanes) {
    std::size_t num_words = 0;
    std::size_t num_slots = 0;
    for (std::size_t l = first_lane; l < first_lane + num_lanes; ++l) {
      num_words += mask_.words(l).size();
      num_slots += mask_.lane_len(l);
    }
    pools_.clear();
    lanes_.clear();
    candidates_.assign(num_words, 0);
    free_candidates_ = candidates_;
    free_scores_ = scores_.floats(0, num_slots);
    if (!for_projection_)
      return;
    protected_.reset(mask_.scope(), mask_.num_layers(), mask_.num_kv_heads());
    for (std::size_t l = 0; l < num_lanes; ++l)
      static_cast<void>(protected_.add_lane(mask_.lane_len(l)));
    valid_.assign(num_words, 0);
    unused_.assign(num_lanes, 0);
  }
  void start_pool(const Sequence& sequence, const ViewRef& view, const Allocation& allocation,
                  const Protection& protection, std::size_t first_lane, std::size_t num_lanes,
                  std::size_t remainder) {
    Pool pool{.first_lane = lanes_.size(), .num_lanes = num_lanes, .quota = remainder};
    for (std::size_t l = first_lane; l < first_lane + num_lanes; ++l) {
      const std::span<std::uint64_t> keep = mask_.words(l);
      const std::span<std::uint64_t> candidates = free_candidates_.first(keep.size());
      find_valid(sequence, view, l, candidates);
      const Protected reserved = protect(sequence, l, allocation, protection, keep, candidates);
      pool.quota = detail::saturating_add(pool.quota, reserved.lane_budget);
      if (for_projection_) {
        std::copy(keep.begin(), keep.end(), protected_.words(l).begin());
        std::copy(candidates.begin(), candidates.end(),
                  valid_.end() - static_cast<std::ptrdiff_t>(free_candidates_.size()));
      }
      pool.held += allocation.protected_extra ? 0 : reserved.counted;
      pool.num_candidates += detail::count_bits(candidates);
      pool.lost += sequence.num_evicted(l);
      lanes_.push_back({l, free_scores_.first(mask_.lane_len(l)), candidates, keep});
      free_candidates_ = free_candidates_.subspan(keep.size());
      free_scores_ = free_scores_.subspan(mask_.lane_len(l));
    }
    pools_.push_back(pool);
  }
  // Scores and selection of the pools that were started.
  void finish(const Allocation& allocation, Score score, Normalise normalise, Choose choose,
              const Executor& executor) {
    to_score_.clear();
    for (const Pool& pool : pools_) {
      if (pool.num_candidates > 0 &&
          (allocation.has_threshold() || for_projection_ || pool.some_go(allocation))) {
        for (ScoredLane& lane : lanes_of(pool))
          to_score_.push_back(&lane);
      } else if (for_projection_) {
        // Slots that are protected here may be candidates of another lane, and are read then.
        for (const ScoredLane& lane : lanes_of(pool))
          std::fill(lane.scores.begin(), lane.scores.end(), 0.0F);
      }
    }
    std::atomic<std::size_t> non_finite{0};
    executor.for_each(to_score_.size(), [&](std::size_t worker, std::size_t i) {
      score(*to_score_[i], worker);
      non_finite.fetch_add(detail::count_non_finite(*to_score_[i]), std::memory_order_relaxed);
    });
    report_.non_finite += non_finite;
    for (Pool& pool : pools_)
      normalise_pool(allocation, pool, normalise, choose);
    executor.for_each(pools_.size(), [&](std::size_t, std::size_t i) {
      select_top_k(lanes_of(pools_[i]), pools_[i].quota);
    });
  }
  // Stages over all lanes of a pool. Leaves in its quota how many of its best are to be kept.
  void normalise_pool(const Allocation& allocation, Pool& pool, Normalise normalise,
                      Choose choose) {
    const std::span<ScoredLane> lanes = lanes_of(pool);
    if (allocation.has_threshold() && pool.num_candidates > 0) {
      for (ScoredLane& lane : lanes)
        pool.num_candidates -= drop_below(allocation.threshold, allocation.min_keep, lane);
    }
    if (pool.held > pool.quota_now(allocation))
      report_.budget_not_reached = true;
    const std::size_t room = pool.room(allocation);
    const bool some_go = pool.some_go(allocation);
    pool.quota = room;
    if (for_projection_)
      unused_[lanes.front().lane] = std::min(room - std::min(room, pool.num_candidates), pool.lost);
    if (some_go || (for_projection_ && pool.num_candidates > 0)) {
      normalise(lanes);
      if (choose && some_go) {
        choose(lanes, room);
        pool.quota = 0;
        return;
      }
    }
    if (pool.num_lanes > 1 && room < pool.num_candidates)
      pool.quota -= keep_floor(allocation, lanes, room);
  }

  [[nodiscard]] std::span<ScoredLane> lanes_of(const Pool& pool) noexcept {
    return std::span(lanes_).subspan(pool.first_lane, pool.num_lanes);
  }

  // What protection leaves of one lane.
  struct Protected {
    std::size_t lane_budget = 0;
    std::size_t counted = 0;  // protected entries that the budget pays for
  };

  // Marks the valid slots of a lane in `candidates`. A lane that stands for several layers and
  // heads has a slot if one of them has it: nobody may lose an entry.
  void find_valid(const Sequence& sequence, const ViewRef& view, std::size_t l,
                  std::span<std::uint64_t> candidates) {
    const CacheShape& shape = sequence.shape();
    const std::size_t len = mask_.lane_len(l);
    const std::size_t num_heads = shape.num_lanes(MaskScope::kHead) / sequence.num_lanes();
    bool all_valid = false;
    for (std::size_t head = l * num_heads; head < (l + 1) * num_heads && !all_valid; ++head) {
      const auto valid = view.lane(head / shape.num_kv_heads, head % shape.num_kv_heads).valid;
      all_valid = valid.empty();
      for (std::size_t s = 0; s < std::min(valid.size(), len); ++s)
        candidates[s / 64] |= std::uint64_t{valid[s] != 0} << (s % 64);
    }
    invalid_[l].assign(all_valid ? 0 : candidates.size(), 0);
    for (std::size_t w = 0; w < candidates.size(); ++w) {
      const std::uint64_t all = detail::lowest_bits(len - w * 64);
      if (all_valid) {
        candidates[w] = all;
      } else {
        invalid_[l][w] = all & ~candidates[w];
      }
    }
  }

  // Moves what stays anyway from `candidates` to `keep`.
  Protected protect(const Sequence& sequence, std::size_t l, const Allocation& allocation,
                    const Protection& protection, std::span<std::uint64_t> keep,
                    std::span<std::uint64_t> candidates) {
    const std::size_t len = mask_.lane_len(l);
    detail::SlotTaker taker(keep, candidates);
    const std::size_t end = protection.after_prompt ? detail::len_without_decode(sequence, l) : len;
    const std::size_t num_extra = taker.take(end, len);
    const std::size_t num_valid = detail::count_bits(candidates);
    std::size_t counted = 0;
    // Of a span and `behind` tokens more, what there is room for.
    const auto take_span = [&](const PositionSpan& span, std::size_t behind, std::size_t room_for) {
      const std::size_t last = detail::saturating_add(static_cast<std::size_t>(span.last), behind);
      return taker.take_first(sequence.slots_before(l, static_cast<std::size_t>(span.first)),
                              sequence.slots_before(l, std::min(last, sequence.length())),
                              room_for);
    };
    for (const PositionSpan& span : sequence.pinned())
      counted += take_span(span, 0, len);
    if (protection.prompt && !protection.prompt_gives_way) {
      for (const PositionSpan& span : sequence.prompts())
        counted += take_span(span, protection.plan_tokens, len);
    }
    // Windows come in slots that are still free only where the budget has room for them.
    const std::size_t lane_budget = allocation.lane_budget(
        sequence.shape(), l, detail::len_with_evicted(sequence, l, num_valid));
    std::size_t room = lane_budget > counted ? lane_budget - counted : 0;
    if (allocation.protected_extra)
      room = len;
    const std::size_t windows =
        detail::saturating_add(protection.recent_window, protection.num_sink_tokens);
    if (std::min(windows, num_valid) > detail::saturating_add(room, counted))
      report_.budget_not_reached = true;
    const std::size_t newest = taker.take_newest(end, protection.recent_window, room);
    room -= newest;
    counted += newest;
    if (protection.prompt && protection.prompt_gives_way) {
      const std::size_t spared = detail::saturating_add(allocation.headroom, 1);
      std::size_t prompt_room = room > spared ? room - spared : 0;
      for (const PositionSpan& span : sequence.prompts()) {
        const std::size_t taken = take_span(span, protection.plan_tokens, prompt_room);
        prompt_room -= taken;
        room -= taken;
        counted += taken;
      }
    }
    counted += taker.take_oldest(end, protection.num_sink_tokens, room);
    report_.protected_entries += counted + num_extra;
    return {lane_budget, counted};
  }

  // Takes candidates away that are not at least the threshold, but for the best where the lane
  // would have less than its minimum; returns how many.
  static std::size_t drop_below(float threshold, std::size_t min_keep, ScoredLane& lane) {
    const std::size_t before = detail::count_bits(lane.candidates);
    const std::size_t kept = detail::count_bits(lane.keep);
    std::size_t num_above = 0;
    detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
      num_above += lane.scores[slot] >= threshold ? 1 : 0;
    });
    if (kept + num_above >= std::min(min_keep, kept + before)) {
      detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
        if (!(lane.scores[slot] >= threshold))
          detail::clear_bit(lane.candidates, slot);
      });
    } else {
      // The best, those above among them, are candidates and not kept yet.
      select_top_k({&lane, 1}, min_keep - kept);
      for (std::size_t w = 0; w < lane.keep.size(); ++w) {
        lane.candidates[w] &= lane.keep[w];
        lane.keep[w] &= ~lane.candidates[w];
      }
    }
    return before - detail::count_bits(lane.candidates);
  }

  // Gives every lane its minimum first (rule R15); returns how much of the quota that took.
  std::size_t keep_floor(const Allocation& allocation, std::span<ScoredLane> lanes,
                         std::size_t quota) {
    std::size_t taken = 0;
    for (ScoredLane& lane : lanes) {
      const std::size_t before = detail::count_bits(lane.keep);
      if (before >= allocation.min_keep)
        continue;
      const std::size_t missing =
          std::min(allocation.min_keep - before, detail::count_bits(lane.candidates));
      const std::size_t want = std::min(missing, quota - taken);
      if (want < missing)
        report_.budget_not_reached = true;
      select_top_k({&lane, 1}, want);
      taken += detail::count_bits(lane.keep) - before;
      drop_chosen(lane);
    }
    return taken;
  }

  KeepMask mask_;
  Report report_;
  bool for_projection_ = false;
  KeepMask protected_;
  std::vector<std::size_t> unused_;
  std::vector<std::uint64_t> valid_;  // candidates before anything took some away
  std::vector<std::uint64_t> candidates_;
  std::span<std::uint64_t> free_candidates_;  // what no lane took yet
  std::span<float> free_scores_;
  std::vector<Pool> pools_;
  std::vector<ScoredLane*> to_score_;
  std::vector<std::vector<std::uint64_t>> invalid_;  // by lane; empty where all slots are valid
  std::vector<ScoredLane> lanes_;
  Scratch scores_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_POOL_SELECTION_HPP_
