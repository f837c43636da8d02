#ifndef KVEVICT_SCORING_HEAD_PROFILE_HPP_
#define KVEVICT_SCORING_HEAD_PROFILE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/token_label.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What a KV head keeps, each one more than the one before it (FastGen).
enum class HeadKeeps : std::uint8_t {
  kSpecial,      ///< tokens labelled as special
  kPunctuation,  ///< and punctuation
  kHeavy,        ///< and the tokens with the largest attention sums
  kRecent,       ///< and the newest tokens
  kAll,
};

struct HeadProfileOptions {
  double recovery = 0.9;  ///< share of the attention that what is kept has to hold, in (0, 1] (T)
  Budget heavy = Budget::keep_ratio(0.3);   ///< a share is one of the first prompt
  Budget recent = Budget::keep_ratio(0.3);  ///< a share is one of the first prompt
  bool lifetime_mean = false;               ///< of the attention sums, AccumulatedAttention
};

/// Attention sums, and for each KV head the least of HeadKeeps that holds enough of the first
/// prompt's attention: mean over its rows of what falls on the tokens that would be kept >=
/// recovery. The `heavy` tokens are the best of those without a label by the sums at the prompt's
/// end, the same for all rows, while each row has its own newest tokens; rows are means over the
/// group. A head whose rows were not all zero decides; one without rows keeps all. What was decided
/// stays until the sequence is empty again.
///
/// [1 per KV head, seq_len] the sums, which go on after the prompt.
class HeadProfile {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kAllRows;

  /// Throws InvalidArgument, naming `where`.
  HeadProfile(std::string_view where, const CacheShape& shape, const HeadProfileOptions& options)
      : options_(options),
        shape_(shape),
        sums_(shape, MaskScope::kHead, options.lifetime_mean),
        profile_(shape) {
    detail::require(options.recovery > 0.0 && options.recovery <= 1.0, where, "recovery",
                    options.recovery, "must be in (0, 1]");
    detail::require(!options.heavy.is_total(), where, "heavy", options.heavy.count(),
                    "must be a number of tokens or a share, not a total");
    detail::require(!options.recent.is_total(), where, "recent", options.recent.count(),
                    "must be a number of tokens or a share, not a total");
  }

  [[nodiscard]] auto state() noexcept {
    return std::tuple_cat(sums_.state(), std::tie(labels_, profile_));
  }

  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t layer) const noexcept {
    return sums_.wanted_rows(sequence, layer);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    if (!profile_.done)
      observe_newest(rows, sequence, kernel);
    return sums_.observe_rows(rows, sequence, kernel);
  }
  void observe_labels(std::span<const TokenLabel> labels) { labels_.set_newest(labels); }
  /// The prompt is complete: what each head keeps from now on.
  void end_prefill(const ScoreInput& input) {
    if (profile_.done || input.sequence.length() == 0)
      return;
    profile_.done = true;
    const std::size_t padding = input.sequence.first_prompt_padding();
    const std::size_t length = input.sequence.length();
    profile_.num_heavy = options_.heavy.tokens_of(length - std::min(length, padding));
    profile_.num_recent = options_.recent.tokens_of(length - std::min(length, padding));
    for (std::size_t lane = 0; lane < profile_.keeps.size(); ++lane)
      profile_.keeps[lane] = least(input, lane);
    profile_.newest.reset();
  }
  void score(const ScoreInput& input, LaneScores& scores) const { sums_.score(input, scores); }

  /// Whether there is a profile.
  [[nodiscard]] bool profiled() const noexcept { return profile_.done; }
  [[nodiscard]] HeadKeeps keeps(std::size_t lane) const noexcept { return profile_.keeps[lane]; }
  [[nodiscard]] bool keeps_all(std::size_t lane) const noexcept {
    return keeps(lane) == HeadKeeps::kAll;
  }
  /// 0 for a head that keeps none.
  [[nodiscard]] std::size_t num_heavy(std::size_t lane) const noexcept {
    return keeps(lane) >= HeadKeeps::kHeavy ? profile_.num_heavy : 0;
  }
  [[nodiscard]] std::size_t num_recent(std::size_t lane) const noexcept {
    return keeps(lane) >= HeadKeeps::kRecent ? profile_.num_recent : 0;
  }
  /// Tokens so far that a head keeps for their labels.
  [[nodiscard]] std::size_t num_labelled(std::size_t lane) const noexcept {
    return labels_.num_special() +
           (keeps(lane) >= HeadKeeps::kPunctuation ? labels_.num_punctuation() : 0);
  }
  [[nodiscard]] bool keeps_label_of(std::size_t lane, std::size_t position) const noexcept {
    const TokenLabel label = labels_.at(position);
    return label == TokenLabel::kSpecial ||
           (label == TokenLabel::kPunctuation && keeps(lane) >= HeadKeeps::kPunctuation);
  }

 private:
  struct Profile {
    explicit Profile(const CacheShape& shape)
        : newest(shape, MaskScope::kHead),
          num_rows(shape.num_lanes(MaskScope::kHead)),
          keeps(num_rows.size(), HeadKeeps::kAll) {}

    bool done = false;
    SlotArray newest;  // until then: sums over rows of what is among a row's newest slots
    std::vector<std::size_t> num_rows;  // that are not all zero
    std::size_t num_heavy = 0;
    std::size_t num_recent = 0;
    std::vector<HeadKeeps> keeps;

    void append(std::size_t count) {
      if (!done)
        newest.append(count);
    }
    void apply(const KeepMask& mask) {
      if (!done)
        newest.apply(mask);
    }
    void truncate(const Sequence& sequence) {
      if (sequence.length() == 0)
        return reset();
      if (!done)
        newest.truncate(sequence);
    }
    void reset() noexcept {
      done = false;
      newest.reset();
      std::fill(num_rows.begin(), num_rows.end(), std::size_t{0});
    }
  };

  void observe_newest(const GroupRows& rows, const Sequence& sequence,
                      const kernels::KernelSet& kernel) {
    const std::size_t recent = options_.recent.tokens_of(sequence.prompt_end());
    const std::size_t lane = shape_.lane_of(MaskScope::kHead, rows.layer, rows.kv_head);
    float* const newest = profile_.newest.at(lane).data();
    const float share = 1.0F / static_cast<float>(rows.group_size);
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t visible = rows.visible(r);
      const std::size_t count = std::min(recent, visible);
      const std::size_t first = visible - count;
      bool any = false;
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        any = any || kernel.sum(rows.row(h, r), visible) != 0.0;
        kernel.add(share, rows.row(h, r) + first, count, newest + first);
      }
      profile_.num_rows[lane] += any ? 1 : 0;
    }
  }
  // The first of HeadKeeps that holds enough.
  [[nodiscard]] HeadKeeps least(const ScoreInput& input, std::size_t lane) {
    const std::size_t num_rows = profile_.num_rows[lane];
    if (num_rows == 0)
      return HeadKeeps::kAll;
    LaneScores scores(input, lane);
    sums_.score(input, scores);
    const std::span<const float> rank = scores.array(0);
    const std::span<const float> sums = sums_.columns().of(scores.layer(), scores.kv_head());
    const std::span<const float> newest = profile_.newest.at(lane);
    const std::span<const std::uint8_t> valid = scores.cache().valid;
    double special = 0.0;
    double punctuation = 0.0;
    order_.clear();
    for (std::size_t slot = 0; slot < sums.size(); ++slot) {
      const auto position = static_cast<std::size_t>(input.sequence.position(lane, slot));
      const TokenLabel label = labels_.at(position);
      if (label == TokenLabel::kSpecial) {
        special += static_cast<double>(sums[slot]);
      } else if (label == TokenLabel::kPunctuation) {
        punctuation += static_cast<double>(sums[slot]);
      } else if (valid.empty() || valid[slot] != 0) {
        order_.push_back(slot);
      }
    }
    const std::size_t num_heavy = std::min(profile_.num_heavy, order_.size());
    const auto end_of_heavy = order_.begin() + static_cast<std::ptrdiff_t>(num_heavy);
    std::nth_element(order_.begin(), end_of_heavy, order_.end(), [&](std::size_t a, std::size_t b) {
      const std::uint32_t key_a = kernels::order_key(rank[a]);
      const std::uint32_t key_b = kernels::order_key(rank[b]);
      return key_a != key_b ? key_a > key_b : a < b;
    });
    double heavy = 0.0;
    double recent = 0.0;
    for (auto slot = order_.begin(); slot != order_.end(); ++slot) {
      if (slot < end_of_heavy) {
        heavy += static_cast<double>(sums[*slot]);
      } else {
        recent += static_cast<double>(newest[*slot]);
      }
    }
    const double needed = options_.recovery * static_cast<double>(num_rows);
    HeadKeeps least = HeadKeeps::kSpecial;
    double mass = 0.0;
    for (const double more : {special, punctuation, heavy, recent}) {
      mass += more;
      if (mass >= needed)
        return least;
      least = static_cast<HeadKeeps>(static_cast<std::uint8_t>(least) + 1);
    }
    return HeadKeeps::kAll;
  }

  HeadProfileOptions options_;
  CacheShape shape_;
  AccumulatedAttention sums_;
  TokenLabels labels_;
  Profile profile_;
  std::vector<std::size_t> order_;  // scratch of least
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_HEAD_PROFILE_HPP_
