#ifndef KVEVICT_SELECTION_PROJECTION_HPP_
#define KVEVICT_SELECTION_PROJECTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// How the scores of several heads, or of the slots of a page, become one.
enum class ScoreReduce : std::uint8_t {
  kVotes,  ///< how many of the lanes keep the slot, or how many slots of the page are kept
  kSum,
  kMean,
  kMax,
};

[[nodiscard]] constexpr auto enum_names(ScoreReduce /*type*/) noexcept {
  return std::array<std::pair<std::string_view, ScoreReduce>, 4>{{{"votes", ScoreReduce::kVotes},
                                                                  {"sum", ScoreReduce::kSum},
                                                                  {"mean", ScoreReduce::kMean},
                                                                  {"max", ScoreReduce::kMax}}};
}

/// Lanes that an engine can only hold at one length.
enum class EqualCounts : std::uint8_t {
  kNone,
  kLayer,  ///< the KV heads of a layer
  kModel,  ///< all
};

[[nodiscard]] constexpr auto enum_names(EqualCounts /*type*/) noexcept {
  return std::array<std::pair<std::string_view, EqualCounts>, 3>{{{"none", EqualCounts::kNone},
                                                                  {"layer", EqualCounts::kLayer},
                                                                  {"model", EqualCounts::kModel}}};
}

/// What an engine can execute: sets shared by heads or layers, whole pages, equal lengths.
struct Granularity {
  MaskScope scope = MaskScope::kHead;            ///< finest set that the engine can hold
  ScoreReduce lane_reduce = ScoreReduce::kMean;  ///< over the KV heads and layers of a shared set
  /// Layers that have a say in a set that is shared by all; empty: each of them. On a real model
  /// this decides everything: the lower layers look at punctuation.
  std::vector<std::size_t> layers = {};
  std::size_t page_size = 1;  ///< slots that stay or go together, counted from slot 0
  ScoreReduce page_reduce = ScoreReduce::kMean;  ///< over the slots of a page
  EqualCounts equal_counts = EqualCounts::kNone;
};

/// The upper half of the layers, the rounded-up one: a fair start for Granularity::layers.
[[nodiscard]] inline std::vector<std::size_t> upper_half(std::size_t num_layers) {
  std::vector<std::size_t> layers;
  for (std::size_t layer = num_layers / 2; layer < num_layers; ++layer)
    layers.push_back(layer);
  return layers;
}

/// Turns what a policy decided into what an engine can execute, in this order:
///
/// 1. Lanes to a shared set: as many slots as their budgets are on average, rounded down; the best
///    by the reduced score. What any of the lanes protects stays. The lanes have to hold the same
///    tokens, as they do where every mask was applied in this granularity.
/// 2. Slots to pages: the best pages that fit into as many slots as were kept; a page counts by the
///    slots that it really holds, so the last one may fit where a whole one does not. A page with a
///    protected slot stays, even where such pages alone hold more; the others have what is left.
///    Without moving rows, a page that stays keeps its padding too, which the policy's numbering
///    has dropped: such an engine packs each page's slots.
/// 3. Equal counts: every lane is filled up to the longest of its group with the best slots, or
///    pages, of what it would have lost; a shorter lane keeps all that it has.
///
/// Only protected pages and equal counts keep more than the policy did.
///
/// Ties go to the lower slot or page. Owns its memory and allocates nothing once the cache has
/// stopped growing. One object per sequence and thread.
class Projection {
 public:
  /// Throws InvalidArgument: a page of no slots, a layer that does not exist or comes twice.
  Projection(const Granularity& granularity, const CacheShape& shape)
      : granularity_(granularity), shape_(shape), has_say_(shape.num_layers, 0) {
    detail::require(granularity.page_size > 0, kName, "page_size", granularity.page_size,
                    "must be > 0");
    for (const std::size_t layer : granularity.layers) {
      detail::require(layer < shape.num_layers, kName, "layers", layer, "must be < num_layers");
      detail::require(has_say_[layer] == 0, kName, "layers", layer, "must not come twice");
      has_say_[layer] = 1;
    }
    if (granularity.layers.empty())
      std::fill(has_say_.begin(), has_say_.end(), std::uint8_t{1});
  }

  [[nodiscard]] const Granularity& granularity() const noexcept { return granularity_; }
  [[nodiscard]] const KeepMask& mask() const noexcept { return mask_; }

  /// @param decided     what stays by the policy's own scope
  /// @param scored      its lanes, with scores of every candidate; a policy that has no scores
  ///                    gives 1 where a slot is kept and 0 elsewhere
  /// @param protected_slots  what stays whatever its score, by the same lanes
  /// @param unused_budget    [num_lanes] what a lane might keep beyond what it keeps, or empty
  ///
  /// Throws InvalidArgument where lanes of different lengths would have to share a set.
  const KeepMask& run(const KeepMask& decided, std::span<const ScoredLane> scored,
                      const KeepMask& protected_slots,
                      std::span<const std::size_t> unused_budget = {}) {
    detail::require(
        decided.num_layers() == shape_.num_layers && decided.num_kv_heads() == shape_.num_kv_heads,
        kName, "shape.num_layers", shape_.num_layers, "must be the policy's, and num_kv_heads");
    const MaskScope scope = coarser(decided.scope(), granularity_.scope);
    const std::size_t num_lanes = shape_.num_lanes(scope);
    const std::size_t sources = decided.num_lanes() / num_lanes;
    mask_.reset(scope, shape_.num_layers, shape_.num_kv_heads);
    std::size_t num_words = 0;
    std::size_t num_slots = 0;
    for (std::size_t l = 0; l < num_lanes; ++l) {
      const std::size_t len = decided.lane_len(l * sources);
      for (std::size_t s = l * sources; s < (l + 1) * sources; ++s) {
        detail::require(decided.lane_len(s) == len, kName, "seq_len", decided.lane_len(s),
                        "must be that of the other lanes of a shared set");
      }
      num_words += mask_.add_lane(len).size();
      num_slots += len;
    }
    candidates_.assign(num_words, 0);
    forced_.assign(num_words, 0);
    scores_.assign(num_slots, 0.0F);
    lanes_.clear();
    std::size_t word = 0;
    std::size_t slot = 0;
    for (std::size_t l = 0; l < num_lanes; ++l) {
      const std::span<std::uint64_t> keep = mask_.words(l);
      const std::span<std::uint64_t> forced(forced_.data() + word, keep.size());
      const ScoredLane lane{l, std::span(scores_).subspan(slot, mask_.lane_len(l)),
                            std::span(candidates_).subspan(word, keep.size()), keep};
      std::size_t unused = 0;
      for (std::size_t s = l * sources; s < (l + 1) * sources && !unused_budget.empty(); ++s)
        unused = detail::saturating_add(unused, unused_budget[s]);
      join(decided, scored.subspan(l * sources, sources), protected_slots, unused, lane, forced);
      if (granularity_.page_size > 1)
        keep_pages(lane, forced, detail::count_bits(keep));
      lanes_.push_back(lane);
      word += keep.size();
      slot += mask_.lane_len(l);
    }
    equalise();
    return mask_;
  }

 private:
  static constexpr std::string_view kName = "Projection";

  [[nodiscard]] static MaskScope coarser(MaskScope a, MaskScope b) noexcept {
    const auto rank = [](MaskScope scope) {
      return scope == MaskScope::kHead ? 0 : scope == MaskScope::kLayer ? 1 : 2;
    };
    return rank(a) > rank(b) ? a : b;
  }
  [[nodiscard]] bool has_say(std::size_t lane, MaskScope scope) const noexcept {
    return has_say_[shape_.first_layer(scope, lane)] != 0;
  }

  // One set of several lanes: its candidates, their scores, what stays.
  void join(const KeepMask& decided, std::span<const ScoredLane> sources,
            const KeepMask& protected_slots, std::size_t unused, const ScoredLane& lane,
            std::span<std::uint64_t> forced) const {
    std::size_t kept = unused;
    for (const ScoredLane& source : sources) {
      const auto held = decided.words(source.lane);
      const auto locked = protected_slots.words(source.lane);
      for (std::size_t w = 0; w < held.size(); ++w) {
        lane.candidates[w] |= source.candidates[w] | held[w];
        forced[w] |= locked[w];
      }
      kept = detail::saturating_add(kept, decided.lane_count(source.lane));
    }
    for (std::size_t w = 0; w < forced.size(); ++w)
      lane.candidates[w] &= ~forced[w];
    if (sources.size() == 1) {
      std::copy(sources[0].scores.begin(), sources[0].scores.end(), lane.scores.begin());
      std::copy_n(decided.words(sources[0].lane).begin(), lane.keep.size(), lane.keep.begin());
      return;
    }
    reduce_lanes(decided, sources, lane);
    std::copy(forced.begin(), forced.end(), lane.keep.begin());
    const std::size_t quota = kept / sources.size();
    select_top_k({&lane, 1}, quota - std::min(quota, detail::count_bits(forced)));
  }

  void reduce_lanes(const KeepMask& decided, std::span<const ScoredLane> sources,
                    const ScoredLane& lane) const {
    const MaskScope scope = decided.scope();
    const bool nobody = std::none_of(sources.begin(), sources.end(), [&](const ScoredLane& source) {
      return has_say(source.lane, scope);
    });
    const ScoreReduce reduce = granularity_.lane_reduce;
    if (reduce == ScoreReduce::kMax)
      std::fill(lane.scores.begin(), lane.scores.end(), -std::numeric_limits<float>::infinity());
    std::size_t voices = 0;
    for (const ScoredLane& source : sources) {
      if (!nobody && !has_say(source.lane, scope))
        continue;
      ++voices;
      const auto held = decided.words(source.lane);
      detail::for_each_bit(lane.candidates, [&](std::size_t slot) {
        float& value = lane.scores[slot];
        if (reduce == ScoreReduce::kVotes) {
          value += detail::has_bit(held, slot) ? 1.0F : 0.0F;
        } else if (reduce == ScoreReduce::kMax) {
          value = std::max(value, source.scores[slot]);  // NaN never gets in
        } else {
          value += source.scores[slot];
        }
      });
    }
    if (reduce == ScoreReduce::kMean) {
      for (float& value : lane.scores)
        value /= static_cast<float>(voices);
    }
  }

  struct Page {
    std::size_t index;
    std::size_t size;  // slots that hold a token
    std::uint32_t key;
    bool forced;
  };

  [[nodiscard]] std::size_t page_end(const ScoredLane& lane, std::size_t page) const noexcept {
    return std::min(lane.scores.size(), (page + 1) * granularity_.page_size);
  }

  // All pages of a lane in the order in which they stay: those that are forced, then the best.
  void sort_pages(const ScoredLane& lane, std::span<const std::uint64_t> forced) {
    pages_.clear();
    for (std::size_t index = 0; index * granularity_.page_size < lane.scores.size(); ++index) {
      Page page{index, 0, 0, false};
      std::size_t num_scored = 0;
      double sum = 0.0;
      float best = -std::numeric_limits<float>::infinity();
      for (std::size_t s = index * granularity_.page_size; s < page_end(lane, index); ++s) {
        if (detail::has_bit(forced, s)) {
          page.forced = true;
          ++page.size;
        } else if (detail::has_bit(lane.candidates, s)) {
          ++page.size;
          ++num_scored;
          sum += static_cast<double>(lane.scores[s]);
          best = std::max(best, lane.scores[s]);
        }
      }
      if (granularity_.page_reduce == ScoreReduce::kMean && num_scored > 0)
        sum /= static_cast<double>(num_scored);
      page.key = kernels::order_key(
          granularity_.page_reduce == ScoreReduce::kMax ? best : static_cast<float>(sum));
      if (page.size > 0)
        pages_.push_back(page);
    }
    std::sort(pages_.begin(), pages_.end(), [](const Page& a, const Page& b) {
      if (a.forced != b.forced)
        return a.forced;
      return a.key != b.key ? a.key > b.key : a.index < b.index;
    });
  }

  void take_page(const ScoredLane& lane, std::span<const std::uint64_t> forced,
                 std::size_t page) const noexcept {
    for (std::size_t s = page * granularity_.page_size; s < page_end(lane, page); ++s) {
      if (detail::has_bit(forced, s) || detail::has_bit(lane.candidates, s))
        detail::set_bit(lane.keep, s);
    }
  }
  void keep_pages(const ScoredLane& lane, std::span<const std::uint64_t> forced, std::size_t room) {
    // Now, since the bits are overwritten below, and the pages that go may have to come back.
    for (std::size_t s = 0;
         granularity_.page_reduce == ScoreReduce::kVotes && s < lane.scores.size(); ++s)
      lane.scores[s] = detail::has_bit(lane.keep, s) ? 1.0F : 0.0F;
    sort_pages(lane, forced);
    std::fill(lane.keep.begin(), lane.keep.end(), std::uint64_t{0});
    for (const Page& page : pages_) {
      if (!page.forced && page.size > room)
        continue;
      take_page(lane, forced, page.index);
      room -= std::min(room, page.size);
    }
  }

  [[nodiscard]] std::size_t num_kept_pages(const ScoredLane& lane) const noexcept {
    if (granularity_.page_size == 1)
      return detail::count_bits(lane.keep);
    std::size_t count = 0;
    for (std::size_t page = 0; page * granularity_.page_size < lane.scores.size(); ++page)
      count += keeps_some(lane, page) ? 1 : 0;
    return count;
  }
  [[nodiscard]] bool keeps_some(const ScoredLane& lane, std::size_t page) const noexcept {
    for (std::size_t s = page * granularity_.page_size; s < page_end(lane, page); ++s) {
      if (detail::has_bit(lane.keep, s))
        return true;
    }
    return false;
  }

  void equalise() {
    if (granularity_.equal_counts == EqualCounts::kNone)
      return;
    const std::size_t groups = granularity_.equal_counts == EqualCounts::kModel
                                   ? 1
                                   : std::min(lanes_.size(), shape_.num_layers);
    const std::size_t size = lanes_.size() / groups;
    for (std::size_t first = 0; first < lanes_.size(); first += size) {
      const auto group = std::span(lanes_).subspan(first, size);
      if (granularity_.page_size > 1)
        share_partial_pages(group);
      std::size_t target = 0;
      for (const ScoredLane& lane : group)
        target = std::max(target, num_kept_pages(lane));
      for (const ScoredLane& lane : group)
        fill_up(lane, target - num_kept_pages(lane));
    }
  }
  // A page that is not full, the last one or one with padding, counts less than the others: all
  // lanes of a group keep theirs, or none does.
  void share_partial_pages(std::span<const ScoredLane> group) {
    const auto last_page = [&](const ScoredLane& lane) {
      return lane.scores.size() / granularity_.page_size;
    };
    const auto share = [&](const auto& page_of) {
      if (std::none_of(group.begin(), group.end(), [&](const ScoredLane& lane) {
            return num_tokens(lane, page_of(lane)) < granularity_.page_size &&
                   keeps_some(lane, page_of(lane));
          }))
        return;
      for (const ScoredLane& lane : group)
        take_page(lane, forced_bits(lane), page_of(lane));
    };
    share(last_page);
    for (std::size_t page = 0; page < last_page(group.front()); ++page)
      share([page](const ScoredLane& /*lane*/) { return page; });
  }
  // Slots of a page that hold a token.
  [[nodiscard]] std::size_t num_tokens(const ScoredLane& lane, std::size_t page) const noexcept {
    const std::span<const std::uint64_t> forced = forced_bits(lane);
    std::size_t count = 0;
    for (std::size_t s = page * granularity_.page_size; s < page_end(lane, page); ++s)
      count += detail::has_bit(forced, s) || detail::has_bit(lane.candidates, s) ? 1 : 0;
    return count;
  }
  // Pages, or slots, that a lane would have lost: the best `missing` of them stay.
  void fill_up(const ScoredLane& lane, std::size_t missing) {
    if (granularity_.page_size == 1) {
      drop_chosen(lane);
      return select_top_k({&lane, 1}, missing);
    }
    const std::span<const std::uint64_t> forced = forced_bits(lane);
    sort_pages(lane, forced);
    // Pages that are not full come last: where they are not shared no other lane has them.
    for (const bool full : {true, false}) {
      for (const Page& page : pages_) {
        if (missing == 0)
          return;
        if ((page.size == granularity_.page_size) != full || keeps_some(lane, page.index))
          continue;
        take_page(lane, forced, page.index);
        --missing;
      }
    }
  }
  [[nodiscard]] std::span<const std::uint64_t> forced_bits(const ScoredLane& lane) const noexcept {
    const auto word = static_cast<std::size_t>(lane.candidates.data() - candidates_.data());
    return std::span(forced_).subspan(word, lane.keep.size());
  }

  Granularity granularity_;
  CacheShape shape_;
  std::vector<std::uint8_t> has_say_;  // [num_layers]
  KeepMask mask_;
  std::vector<ScoredLane> lanes_;
  std::vector<std::uint64_t> candidates_;
  std::vector<std::uint64_t> forced_;
  std::vector<float> scores_;
  std::vector<Page> pages_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_PROJECTION_HPP_
