#ifndef KVEVICT_SELECTION_TWO_STAGE_HPP_
#define KVEVICT_SELECTION_TWO_STAGE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/function_ref.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// A share of the budget goes to the best tokens by their scores, the rest to the best of the
/// others by second scores: second.rescore(input, lane) writes them over the first.
template <class Second>
struct TwoStage {
  static constexpr Inputs kRequiredInputs = Second::kRequiredInputs;

  Budget first_share = Budget::keep_ratio(0.5);  ///< rounded down, but not to 0 (rule R6)
  std::size_t counted = 0;  ///< protected entries per lane that the share is of, too, and that the
                            ///< first stage has then chosen already
  Second second = {};

  /// @param least  candidates that the first stage takes in any case
  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              std::size_t least = 0) const {
    const std::size_t held = counted * lanes.size();
    const std::size_t share = first_share.tokens_of(quota + held);
    const std::size_t first = std::min(std::max(share - std::min(share, held), least), quota);
    select_top_k(lanes, first);
    for (ScoredLane& lane : lanes) {
      drop_chosen(lane);
      second.rescore(input, lane);
    }
    select_top_k(lanes, quota - first);
  }
};

/// The same in every lane by itself, for as many entries as another selection would keep there:
/// `counts` says how lanes share a quota, not which entries stay. Where it promises every lane its
/// best, counts.num_safe(lanes, quota, lane) of them, the first stage keeps these.
template <class Counts, class Second>
class TwoStageWithin {
 public:
  static constexpr Inputs kRequiredInputs = detail::required_by<Counts>() | Second::kRequiredInputs;

  TwoStageWithin(Counts counts, TwoStage<Second> stages)
      : counts_(std::move(counts)), stages_(std::move(stages)) {}

  /// @param signal  what `counts` reads beside the scores, where it does
  template <class Input, class... Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Signal&... signal) const requires requires(const Counts& counts) {
    counts.choose(lanes, quota, input, signal...);
  }
  {
    const auto num_safe = [&](std::size_t lane) {
      if constexpr (requires { counts_.num_safe(lanes, quota, lane); }) {
        return counts_.num_safe(lanes, quota, lane);
      } else {
        return std::size_t{0};
      }
    };
    choose_within([&] { counts_.choose(lanes, quota, input, signal...); }, num_safe, lanes, input);
  }
  /// The same for as many as `choose_counts()` marks in the lanes' keep bits.
  /// @param num_safe  num_safe(index of a lane)
  template <class Input>
  void choose_within(FunctionRef<void()> choose_counts,
                     FunctionRef<std::size_t(std::size_t)> num_safe, std::span<ScoredLane> lanes,
                     const Input& input) const {
    safe_.clear();
    for (std::size_t l = 0; l < lanes.size(); ++l)
      safe_.push_back(num_safe(l));
    saved_.clear();
    saved_scores_.clear();
    for (const ScoredLane& lane : lanes) {
      saved_scores_.insert(saved_scores_.end(), lane.scores.begin(), lane.scores.end());
      saved_.insert(saved_.end(), lane.keep.begin(), lane.keep.end());
      saved_.insert(saved_.end(), lane.candidates.begin(), lane.candidates.end());
    }
    choose_counts();
    auto from = saved_.begin();
    auto scores = saved_scores_.begin();
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      const std::size_t chosen = detail::count_bits(lanes[l].keep);
      for (const std::span<std::uint64_t> words : {lanes[l].keep, lanes[l].candidates}) {
        const auto end = from + static_cast<std::ptrdiff_t>(words.size());
        std::copy(from, end, words.begin());
        from = end;
      }
      // Stages among the counts rescore.
      const auto scores_end = scores + static_cast<std::ptrdiff_t>(lanes[l].scores.size());
      std::copy(scores, scores_end, lanes[l].scores.begin());
      scores = scores_end;
      stages_.choose(lanes.subspan(l, 1), chosen - detail::count_bits(lanes[l].keep), input,
                     safe_[l]);
    }
  }

  [[nodiscard]] const TwoStage<Second>& stages() const noexcept { return stages_; }

 private:
  Counts counts_;
  TwoStage<Second> stages_;
  // Scratch memory of choose.
  mutable std::vector<std::uint64_t> saved_;  // bits as they came
  mutable std::vector<float> saved_scores_;   // likewise
  mutable std::vector<std::size_t> safe_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TWO_STAGE_HPP_
