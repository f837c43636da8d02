#ifndef KVEVICT_SELECTION_TWIN_REPAIR_HPP_
#define KVEVICT_SELECTION_TWIN_REPAIR_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/function_ref.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/slot_bits.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/selection/top_k.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// The best of all lanes together, as where a policy has no selection of its own; of several lanes
/// each keeps one entry in any case, as far as the quota goes (rule R15).
struct BestOfAll {
  template <class Input>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& /*input*/) const {
    select_top_k(lanes, quota - keep_one_each(lanes, quota));
  }
};

struct TwinRepairOptions {
  double similarity = 0.85;   ///< cosine from which on a key stands for another (tau); depends
                              ///< on the model: 0.85 for Qwen3-4B, 0.90 for Llama-3.2-1B
  std::size_t distance = 32;  ///< slots within which keys are no twins (local window of
                              ///< KeyTwins)
  std::size_t num_sink_tokens = 4;  ///< first tokens that no swap takes away
  std::size_t recent_window = 64;   ///< newest tokens that no swap takes away

  /// Throws InvalidArgument, naming `where` and the option behind `prefix`.
  void check(std::string_view where, const std::string& prefix = "") const {
    detail::require(similarity >= -1.0 && similarity <= 1.0, where, prefix + "similarity",
                    similarity, "must be in [-1, 1]");
  }
};

/// Another selection, repaired (TwinKV): with b(x) the largest cosine of x's key with a kept one,
/// an orphan is a token that goes and has no twin among those that stay, b < similarity; a donor
/// one that was chosen and has, b >= similarity. The most isolated orphan takes the place of the
/// most redundant donor, the next that of the next, until one list ends. Lanes keep as many as
/// before; what is protected stays. Equal orphans: the lower slot comes back first; equal donors:
/// the higher slot goes first.
///
/// b of a donor is asked again before each swap, of the tokens that are kept by then: else the two
/// of a pair of twins, donors to each other, might both go. One that has lost its twin is passed
/// over.
/// @tparam Twins  gather, largest_cosine and replace of KeyTwins
template <class Base, class Twins>
class TwinRepair {
 public:
  static constexpr Inputs kRequiredInputs = detail::required_by<Base>() | Inputs::kKeys;

  TwinRepair(Base base, Twins twins, const TwinRepairOptions& options)
      : base_(std::move(base)), twins_(std::move(twins)), options_(options) {}

  /// @param signal  what `base` reads beside the scores, where it does
  template <class Input, class... Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const Input& input,
              const Signal&... signal) const requires requires(const Base& base) {
    base.choose(lanes, quota, input, signal...);
  }
  {
    repair_after(lanes, input, [&] { base_.choose(lanes, quota, input, signal...); });
  }
  /// The same over a selection that is made by `choose`.
  template <class Input>
  void repair_after(std::span<ScoredLane> lanes, const Input& input,
                    FunctionRef<void()> choose) const {
    open_.clear();
    for (const ScoredLane& lane : lanes)
      open_.insert(open_.end(), lane.candidates.begin(), lane.candidates.end());
    choose();
    std::size_t word = 0;
    for (const ScoredLane& lane : lanes) {
      repair(lane, std::span(open_).subspan(word, lane.keep.size()), input);
      word += lane.keep.size();
    }
  }

 private:
  struct Token {
    float cosine;
    std::size_t slot;
  };

  /// @param open  slots that the base could choose from
  template <class Input>
  void repair(const ScoredLane& lane, std::span<const std::uint64_t> open,
              const Input& input) const {
    orphans_.clear();
    donors_.clear();
    twins_.gather(input, lane.lane, lane.keep);
    const std::size_t len = lane.scores.size();
    swappable_.assign(open.begin(), open.end());
    // Windows count valid tokens: those that are kept and those that were open.
    held_.assign(lane.keep.begin(), lane.keep.end());
    for (std::size_t w = 0; w < held_.size(); ++w)
      held_[w] &= ~swappable_[w];
    detail::SlotTaker taker(held_, swappable_);
    taker.take_oldest(len, options_.num_sink_tokens, len);
    taker.take_newest(len, options_.recent_window, len);
    const auto similarity = static_cast<float>(options_.similarity);
    detail::for_each_bit(open, [&](std::size_t slot) {
      const bool kept = detail::has_bit(lane.keep, slot);
      if (kept ? !detail::has_bit(swappable_, slot) : std::isnan(lane.scores[slot]))
        return;  // NaN goes, twin or not (rule R4)
      bool usable = false;
      const float cosine = twins_.largest_cosine(input, slot, usable);
      if (usable && kept == (cosine >= similarity))
        (kept ? donors_ : orphans_).push_back({cosine, slot});
    });
    std::sort(orphans_.begin(), orphans_.end(), [](const Token& a, const Token& b) {
      return a.cosine != b.cosine ? a.cosine < b.cosine : a.slot < b.slot;
    });
    std::sort(donors_.begin(), donors_.end(), [](const Token& a, const Token& b) {
      return a.cosine != b.cosine ? a.cosine > b.cosine : a.slot > b.slot;
    });
    auto orphan = orphans_.begin();
    for (auto donor = donors_.begin(); donor != donors_.end() && orphan != orphans_.end();
         ++donor) {
      bool usable = false;
      if (twins_.largest_cosine(input, donor->slot, usable) < similarity)
        continue;
      twins_.replace(input, donor->slot, orphan->slot);
      detail::clear_bit(lane.keep, donor->slot);
      detail::set_bit(lane.keep, orphan->slot);
      ++orphan;
    }
  }

  Base base_;
  mutable Twins twins_;  // keeps memory between calls, like all below
  TwinRepairOptions options_;
  mutable std::vector<std::uint64_t> open_;
  mutable std::vector<std::uint64_t> swappable_;
  mutable std::vector<std::uint64_t> held_;
  mutable std::vector<Token> orphans_;
  mutable std::vector<Token> donors_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SELECTION_TWIN_REPAIR_HPP_
