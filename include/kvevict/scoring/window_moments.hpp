#ifndef KVEVICT_SCORING_WINDOW_MOMENTS_HPP_
#define KVEVICT_SCORING_WINDOW_MOMENTS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Mean and variance over the last rows of a prompt, slot by slot and query head by query head
/// (CAKE): the score of a slot is mean + gamma variance, over the slots before the window. While
/// decoding, rows are asked for one at a time and the score is the newest one.
///
/// Rows count on the slots before the window, as they are. The variance is the unbiased one, 0 for
/// a single row; Welford's update, since a difference of large sums would lose it.
class WindowMoments {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  /// @param decoding  ask for rows while decoding too
  WindowMoments(std::string_view where, const CacheShape& shape, std::size_t window, double gamma,
                bool decoding)
      : shape_(shape),
        window_(window),
        gamma_(gamma),
        decoding_(decoding),
        moments_(shape, MaskScope::kHead, 2 * shape.group_size()),
        sums_(shape) {
    detail::require(window > 0, where, "observation_window", window, "must be > 0");
    detail::require(gamma >= 0.0 && std::isfinite(gamma), where, "gamma", gamma,
                    "must be >= 0 and finite");
  }

  [[nodiscard]] auto state() noexcept { return std::tie(moments_, sums_); }

  void begin(const Sequence& /*sequence*/) noexcept {
    moments_.fill(0.0F);
    sums_.reset();
  }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    if (sequence.num_decoded() > 0)
      return decoding_ ? 1 : 0;
    return sequence.step_rows_in_window(window_);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& /*kernel*/) {
    const bool decoding = sequence.num_decoded() > 0;
    const std::size_t lane = shape_.lane_of(MaskScope::kHead, rows.layer, rows.kv_head);
    const std::size_t past = past_of_window(sequence, rows.layer, rows.kv_head, window_);
    if (decoding) {
      sums_.rows[lane] = 0;
      for (std::size_t i = 0; i < moments_.arrays_per_lane(); ++i) {
        const std::span<float> array = moments_.at(lane, i);
        std::fill(array.begin(), array.end(), 0.0F);
      }
    }
    std::size_t non_finite = 0;
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      ++sums_.rows[lane];
      sums_.window_rows[lane] += decoding ? 0 : 1;
      for (std::size_t h = 0; h < rows.group_size; ++h) {
        const std::size_t n = decoding ? rows.visible(r) : std::min(past, rows.visible(r));
        const Added added = add(std::span(rows.row(h, r), n), sums_.rows[lane],
                                moments_.at(lane, h), moments_.at(lane, rows.group_size + h));
        non_finite += added.non_finite;
        if (decoding)
          continue;
        sums_.entropy[lane * rows.group_size + h] += added.entropy;
        sums_.squares[lane * rows.group_size + h] += added.squares;
      }
    }
    return non_finite;
  }
  void score(const ScoreInput& input, LaneScores& scores) const {
    const auto valid = scores.cache().valid;
    const ObservationWindow window =
        input.sequence.num_decoded() > 0 && decoding_
            ? find_window(scores.seq_len(), window_, valid)
            : find_observation_window(input.sequence, scores.lane(), window_, valid);
    const std::size_t group = shape_.group_size();
    scores.start(window.first, window.prefix_end, group);
    for (std::size_t i = 0; i < scores.num_arrays(); ++i) {
      const std::size_t head = scores.head_of(i);
      const std::size_t lane =
          shape_.lane_of(MaskScope::kHead, scores.layer(head), scores.kv_head(head));
      const std::span<const float> mean = moments_.at(lane, i % group);
      const std::span<const float> squares = moments_.at(lane, group + i % group);
      const auto weight = static_cast<float>(gamma_ * inverse_freedom(sums_.rows[lane]));
      const std::span<float> out = scores.array(i);
      for (std::size_t slot = 0; slot < out.size(); ++slot)
        out[slot] = mean[window.first + slot] + weight * squares[window.first + slot];
    }
  }

  /// -sum a ln(a + 1e-10) over the window's rows, all query heads and slots.
  [[nodiscard]] double attention_entropy(std::size_t layer) const noexcept {
    double sum = 0.0;
    for (std::size_t q = layer * shape_.num_q_heads; q < (layer + 1) * shape_.num_q_heads; ++q)
      sum += sums_.entropy[q];
    return sum;
  }
  /// Variances over the window's rows, summed over all query heads and slots.
  [[nodiscard]] double attention_variance(std::size_t layer) const noexcept {
    double sum = 0.0;
    for (std::size_t q = layer * shape_.num_q_heads; q < (layer + 1) * shape_.num_q_heads; ++q)
      sum += sums_.squares[q] * inverse_freedom(sums_.window_rows[q / shape_.group_size()]);
    return sum;
  }

 private:
  // What does not belong to slots, over the rows of the newest prompt.
  struct Sums {
    explicit Sums(const CacheShape& shape)
        : entropy(shape.num_layers * shape.num_q_heads),
          squares(entropy.size()),
          window_rows(shape.num_layers * shape.num_kv_heads),
          rows(window_rows.size()) {}
    std::vector<double> entropy;           // by query head
    std::vector<double> squares;           // by query head: squared distances from the mean
    std::vector<std::size_t> window_rows;  // by KV head, that are in these sums
    std::vector<std::size_t> rows;         // by KV head, that are in the moments

    void append(std::size_t /*count*/) noexcept {}
    void apply(const KeepMask& /*mask*/) noexcept {}
    void truncate(const Sequence& /*sequence*/) noexcept {}
    void reset() noexcept {
      std::fill(entropy.begin(), entropy.end(), 0.0);
      std::fill(squares.begin(), squares.end(), 0.0);
      std::fill(window_rows.begin(), window_rows.end(), std::size_t{0});
      std::fill(rows.begin(), rows.end(), std::size_t{0});
    }
  };
  struct Added {
    double entropy = 0.0;
    double squares = 0.0;
    std::size_t non_finite = 0;
  };

  // 1 / (rows - 1), which makes squared distances a variance.
  [[nodiscard]] static double inverse_freedom(std::size_t rows) noexcept {
    return rows > 1 ? 1.0 / static_cast<double>(rows - 1) : 0.0;
  }
  // Takes the `count`-th row; an entry that is not finite changes nothing (rule R19).
  static Added add(std::span<const float> row, std::size_t count, std::span<float> mean,
                   std::span<float> squares) noexcept {
    constexpr double kInsideLog = 1e-10;
    const float share = 1.0F / static_cast<float>(count);
    Added added;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float a = row[i];
      if (!std::isfinite(a)) {
        ++added.non_finite;
        continue;
      }
      const float distance = a - mean[i];
      mean[i] += distance * share;
      const float square = distance * (a - mean[i]);
      squares[i] += square;
      added.squares += static_cast<double>(square);
      if (a > 0.0F)
        added.entropy -= static_cast<double>(a) * std::log(static_cast<double>(a) + kInsideLog);
    }
    return added;
  }

  CacheShape shape_;
  std::size_t window_;
  double gamma_;
  bool decoding_;
  SlotArray moments_;  // per KV head: means of its query heads, then their squared distances
  Sums sums_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_WINDOW_MOMENTS_HPP_
