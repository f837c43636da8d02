#ifndef KVEVICT_SCORING_RECENT_ATTENTION_HPP_
#define KVEVICT_SCORING_RECENT_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/recent_row_signal.hpp"
#include "kvevict/scoring/recent_rows.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/sharpened_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

// Signals that look at the rows of the newest tokens, whether these came with a prompt or one by
// one: [1 per KV head, slots].

/// The newest `window` rows over the slots before that window: the largest logit of a group's query
/// heads, softmax over the past alone, mean over rows (R-KV). What is cached now counts, so a row's
/// mass on tokens that went since is spread over those that stayed.
///
/// Logits come back from probabilities a and the logs L of their denominators: max_h logit_h is the
/// log of max_h a_h exp(L_h), up to a constant of the row.
class PeakLogitAttention : public RecentRowSignal<RecentRows> {
 public:
  /// Throws InvalidArgument, naming `where`, for a window of 0.
  PeakLogitAttention(std::string_view where, const CacheShape& shape, std::size_t window)
      : RecentRowSignal(where, "observation_window", shape, window) {}

  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      float largest = rows.log_sum(0, r);
      for (std::size_t h = 1; h < rows.group_size; ++h)
        largest = std::max(largest, rows.log_sum(h, r));
      const std::span<float> peak =
          rows_.of(rows.layer, rows.kv_head, rows.first_position + r).first(rows.visible(r));
      std::fill(peak.begin(), peak.end(), 0.0F);
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        // Equal ones may be infinite: a row that saw nothing.
        const float log_sum = rows.log_sum(h, r);
        const float factor = log_sum == largest ? 1.0F : std::exp(log_sum - largest);
        non_finite += kernel.take_max(factor, rows.row(h, r), peak.size(), peak.data());
      }
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const ObservationWindow past =
        find_window(scores.seq_len(), rows_.window(), scores.cache().valid);
    const std::size_t first = past.first;
    scores.start(first, past.prefix_end, 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<float> mean = scores.array(head);
      const Lane lane = scores.cache(head);
      std::fill(mean.begin(), mean.end(), 0.0F);
      std::size_t num_rows = 0;
      const std::span<float> row = scores.spare();
      for (std::size_t i = 0; i < rows_.window(); ++i) {
        const std::span<const float> all =
            rows_.of_index(scores.layer(head), scores.kv_head(head), i);
        double mass = 0.0;
        for (std::size_t slot = 0; slot < row.size(); ++slot) {
          row[slot] = lane.has_token(first + slot) ? all[first + slot] : 0.0F;
          mass += static_cast<double>(row[slot]);
        }
        if (!(mass > 0.0))
          continue;  // says nothing of the past, or never came
        input.kernel.add(static_cast<float>(1.0 / mass), row.data(), row.size(), mean.data());
        ++num_rows;
      }
      if (num_rows > 0)
        input.kernel.scale(1.0F / static_cast<float>(num_rows), mean.size(), mean.data());
    }
  }
};

/// The newest `window` rows over all slots, mean over the group and over the rows. A row that never
/// came counts as 0; one that lost tokens since keeps what it gave to the others.
class RecentMeanAttention : public RecentRowSignal<RecentRows> {
 public:
  /// Throws InvalidArgument, naming `where`, for a window of 0.
  RecentMeanAttention(std::string_view where, const CacheShape& shape, std::size_t window)
      : RecentRowSignal(where, "observation_window", shape, window) {}

  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::span<float> mean =
          rows_.of(rows.layer, rows.kv_head, rows.first_position + r).first(rows.visible(r));
      std::fill(mean.begin(), mean.end(), 0.0F);
      non_finite += add_heads(rows, r, 1.0F / static_cast<float>(rows.group_size), kernel, mean);
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<float> mean = scores.array(head);
      std::fill(mean.begin(), mean.end(), 0.0F);
      for (std::size_t i = 0; i < rows_.window(); ++i) {
        input.kernel.add(1.0F / static_cast<float>(rows_.window()),
                         rows_.of_index(scores.layer(head), scores.kv_head(head), i).data(),
                         mean.size(), mean.data());
      }
      scores.clear_invalid(head);
    }
  }
};

/// The newest `window` rows with a gain that grows with the length of the sequence, summed (AhaKV):
/// a row's logits q.k are scaled by sqrt(2 ln(i / k) / d) in the place of 1 / sqrt(d), where i is
/// the number of tokens up to its own and k the budget, so that its entropy does not grow with i;
/// then the mean over the group. A row with i <= k says nothing: nothing had to go by then. Left
/// padding is no token, but in rows of its prompt that are handed over before a view shows it.
///
/// The gain is applied to the rows as they come: a' = a^g / sum a^g with g = sqrt(2 ln(i / k)),
/// which is the same where attention scaled by 1 / sqrt(d) (and what had underflowed stays 0).
class StepGainAttention : public RecentRowSignal<RecentRows> {
 public:
  /// Throws InvalidArgument, naming `where`, for a window or a budget of 0.
  StepGainAttention(std::string_view where, const CacheShape& shape, std::size_t window,
                    std::size_t budget)
      : RecentRowSignal(where, "recent_window", shape, window), budget_(budget) {
    detail::require(budget > 0, where, "budget", budget, "must be > 0");
  }

  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t position = rows.first_position + r;
      const std::span<float> mean =
          rows_.of(rows.layer, rows.kv_head, position).first(rows.visible(r));
      std::fill(mean.begin(), mean.end(), 0.0F);
      const std::size_t num_tokens =
          position + 1 - std::min(position + 1, sequence.first_prompt_padding());
      const double ratio = static_cast<double>(num_tokens) / static_cast<double>(budget_);
      if (!(ratio > 1.0))
        continue;
      const auto gain = static_cast<float>(std::sqrt(2.0 * std::log(ratio)));
      sharpened_.resize(std::max(sharpened_.size(), mean.size()));
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        const std::span<float> row(sharpened_.data(), mean.size());
        std::copy_n(rows.row(h, r), row.size(), row.begin());
        non_finite += sharpen(gain, kernel, row);
        kernel.add(1.0F / static_cast<float>(rows.group_size), row.data(), row.size(), mean.data());
      }
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    for (std::size_t head = 0; head < scores.num_heads(); ++head) {
      const std::span<float> sum = scores.array(head);
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (std::size_t i = 0; i < rows_.window(); ++i) {
        input.kernel.add(1.0F, rows_.of_index(scores.layer(head), scores.kv_head(head), i).data(),
                         sum.size(), sum.data());
      }
      scores.clear_invalid(head);
    }
  }

 private:
  std::size_t budget_;
  std::vector<float> sharpened_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_RECENT_ATTENTION_HPP_
