#ifndef KVEVICT_TEMPORAL_HIDDEN_TREND_HPP_
#define KVEVICT_TEMPORAL_HIDDEN_TREND_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/temporal/decoded_tokens.hpp"
#include "kvevict/temporal/frozen_scores.hpp"
#include "kvevict/temporal/hidden_delta.hpp"
#include "kvevict/temporal/rolling_window.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// Blocks whose hidden-state change is averaged, and what they add to a score.
struct LayerBand {
  std::vector<std::size_t> layers;  ///< zero-based; not empty
  double weight = 1.0;
};

/// What a band says about its newest token.
enum class BandStatistic : std::uint8_t {
  kZScore,  ///< how far it stands out from the window (EpiKV eq. 3)
  kMean,    ///< mean of the window (EpiKV eq. 2)
};

/// A signal that scores tokens by how the residual stream moves when they are fed: the weighted sum
/// over bands of a rolling statistic of g, the mean over the band's layers taken first. A token
/// gets its score in the step that appends it, once every layer was handed over, and keeps it. For
/// one set of tokens for the whole model: [1, seq_len].
///
/// Prompt tokens get none; the last one is what the first decoded token differs from. Windows
/// hold decoded tokens in the order of generation and go on over a further prompt.
class HiddenTrend {
 public:
  /// Of the deviation in eq. 3 (authors' code).
  static constexpr double kEpsilon = 1e-6;
  static constexpr Inputs kRequiredInputs = Inputs::kHiddenStates;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;
  static constexpr MaskScope kScope = MaskScope::kModel;

  HiddenTrend(const CacheShape& shape, std::vector<LayerBand> bands, BandStatistic statistic,
              std::size_t window, std::size_t max_rollback)
      : bands_(std::move(bands)),
        statistic_(statistic),
        windows_(bands_.size(), RollingWindow(window, max_rollback)),
        scores_(shape) {
    for (const LayerBand& band : bands_) {
      for (const std::size_t layer : band.layers) {
        if (!wants_hidden(layer))
          layers_.push_back(layer);
      }
    }
    deltas_.assign(layers_.size(), HiddenDelta(max_rollback));
  }

  /// What goes over steps is all of it.
  [[nodiscard]] auto state() noexcept { return std::tie(*this); }

  [[nodiscard]] bool wants_hidden(std::size_t layer) const noexcept {
    return std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
  }

  /// Hidden states of the newest tokens after block `layer`: of every decoded token of the step,
  /// or inside a prompt at least of its newest one. Returns how many differences were not finite:
  /// these do not enter a window, and their token scores 0.
  ///
  /// Throws InvalidArgument for too few rows or another hidden_size than before.
  std::size_t observe_hidden(std::size_t layer, const HiddenRows& rows, const Sequence& sequence,
                             const kernels::KernelSet& kernel) {
    const auto found = std::find(layers_.begin(), layers_.end(), layer);
    const std::size_t length = sequence.length();
    if (found == layers_.end() || length == 0)
      return 0;
    const std::size_t count = decoded_in_step(sequence);
    detail::require(rows.num_rows >= std::max<std::size_t>(count, 1), sequence.owner(),
                    "HiddenRows.num_rows", rows.num_rows,
                    "must hold the decoded tokens of the step, in a prompt its newest token");
    detail::require(hidden_size_ == 0 || rows.hidden_size == hidden_size_, sequence.owner(),
                    "HiddenRows.hidden_size", rows.hidden_size, "must stay the same");
    hidden_size_ = rows.hidden_size;
    HiddenDelta& delta = deltas_[static_cast<std::size_t>(found - layers_.begin())];
    if (delta.remembers(length - 1))
      return 0;  // handed over twice

    const auto take = [&](std::size_t position) {
      const std::size_t row = rows.num_rows - (length - position);
      return delta.push(position, rows.row(row), rows.type, rows.hidden_size, kernel);
    };
    const std::size_t first = length - count;
    if (count < std::min(rows.num_rows, sequence.step_len()))
      take(first - 1);
    if (num_observed_ == 0)
      changes_.assign(bands_.size() * count, 0.0);
    std::size_t non_finite = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double change = take(first + i);
      if (!std::isfinite(change))
        ++non_finite;
      for (std::size_t b = 0; b < bands_.size(); ++b) {
        const auto& layers = bands_[b].layers;
        const auto times = std::count(layers.begin(), layers.end(), layer);
        if (times > 0)
          changes_[b * count + i] += static_cast<double>(times) * change;
      }
    }
    if (++num_observed_ == layers_.size())
      score(first, count);
    return non_finite;
  }

  /// [seq_len] score of each slot; -infinity where none was given, as for prompt tokens.
  [[nodiscard]] std::span<const float> scores() const noexcept { return scores_.values(); }
  void score(const ScoreInput& input, LaneScores& scores) const {
    scores_.load(input.sequence, scores);
  }

  void append(std::size_t count) {
    scores_.append(count);
    num_observed_ = 0;
  }
  void apply(const KeepMask& mask) { scores_.apply(mask); }
  void truncate(const Sequence& sequence) {
    for (HiddenDelta& delta : deltas_)
      delta.truncate(sequence);
    for (RollingWindow& window : windows_)
      window.truncate(sequence);
    scores_.truncate(sequence);
  }
  void reset() noexcept {
    for (HiddenDelta& delta : deltas_)
      delta.reset();
    for (RollingWindow& window : windows_)
      window.reset();
    scores_.reset();
    hidden_size_ = 0;
  }

 private:
  void score(std::size_t first, std::size_t count) {
    step_scores_.assign(count, 0.0F);
    for (std::size_t i = 0; i < count; ++i) {
      double sum = 0.0;
      for (std::size_t b = 0; b < bands_.size(); ++b) {
        const double change =
            changes_[b * count + i] / static_cast<double>(bands_[b].layers.size());
        if (std::isfinite(change))
          windows_[b].push(first + i, change);
        const double value = statistic_ == BandStatistic::kZScore ? windows_[b].z_score(kEpsilon)
                                                                  : windows_[b].mean();
        // What is not finite here makes the sum so, for the test below.
        sum += bands_[b].weight * (std::isfinite(change) ? value : change);
      }
      if (std::isfinite(sum))
        step_scores_[i] = static_cast<float>(sum);
    }
    scores_.set_newest(step_scores_);
  }

  std::vector<LayerBand> bands_;
  BandStatistic statistic_;
  std::vector<std::size_t> layers_;     // of all bands, each once
  std::vector<HiddenDelta> deltas_;     // [layers_]
  std::vector<RollingWindow> windows_;  // [bands_]
  FrozenScores scores_;
  std::size_t hidden_size_ = 0;

  // The newest step: layers seen, sums of g [bands_, decoded tokens], scores [decoded tokens].
  std::size_t num_observed_ = 0;
  std::vector<double> changes_;
  std::vector<float> step_scores_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_HIDDEN_TREND_HPP_
