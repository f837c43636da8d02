#ifndef KVEVICT_TEMPORAL_RUNNING_SCORES_HPP_
#define KVEVICT_TEMPORAL_RUNNING_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// How samples that come one after another make a score.
enum class Aggregator : std::uint8_t {
  kEma,         ///< m = decay m + (1 - decay) s
  kCumulative,  ///< m = m + s
  kSingle,      ///< m = s
};

[[nodiscard]] constexpr auto enum_names(Aggregator /*type*/) noexcept {
  return std::array<std::pair<std::string_view, Aggregator>, 3>{
      {{"ema", Aggregator::kEma},
       {"cumulative", Aggregator::kCumulative},
       {"single", Aggregator::kSingle}}};
}

/// One running score m per slot of a cache with one lane. A new token enters at the mean of those
/// that are there, the first ones at 0 (rule R20; InertiaKV, arXiv 2609.03515).
///
/// A sample that is not finite leaves its entry as it is, decay included (rule R19).
class RunningScores {
 public:
  /// @param decay  weight of what was there before, in [0, 1); for kEma
  RunningScores(const CacheShape& shape, Aggregator aggregator, double decay)
      : aggregator_(aggregator),
        decay_(aggregator == Aggregator::kSingle ? 0.0F : static_cast<float>(decay)),
        scores_(shape, MaskScope::kModel) {}

  /// Takes one sample for each of the first `sample.size()` slots; returns how many of them were
  /// not finite.
  std::size_t update(std::span<const float> sample, const kernels::KernelSet& kernel) noexcept {
    float* const scores = values().data();
    return aggregator_ == Aggregator::kCumulative
               ? kernel.add(1.0F, sample.data(), sample.size(), scores)
               : kernel.ema(decay_, sample.data(), sample.size(), scores);
  }
  /// Lets the token in `slot` enter anew, at the mean of the slots before it: for tokens that were
  /// appended together but count one after another.
  void enter(std::size_t slot) noexcept { values()[slot] = mean(sum(values().first(slot)), slot); }

  /// [seq_len], by slot.
  [[nodiscard]] std::span<float> values() noexcept { return scores_.at(0); }
  [[nodiscard]] std::span<const float> values() const noexcept { return scores_.at(0); }

  void append(std::size_t count) {
    // One after another, as if appended singly: the rounded mean is part of the next one.
    double total = sum(values());
    for (std::size_t i = 0; i < count; ++i) {
      const float entry = mean(total, values().size());
      scores_.append(1, entry);
      total += static_cast<double>(entry);
    }
  }
  void apply(const KeepMask& mask) { scores_.apply(mask); }
  void truncate(const Sequence& sequence) { scores_.truncate(sequence); }
  void reset() noexcept { scores_.reset(); }

 private:
  [[nodiscard]] static float mean(double total, std::size_t count) noexcept {
    return count == 0 ? 0.0F : static_cast<float>(total / static_cast<double>(count));
  }
  // Eight partial sums, since one would wait for itself. Not a kernel: a new token enters at the
  // same value on every machine.
  [[nodiscard]] static double sum(std::span<const float> scores) noexcept {
    constexpr std::size_t kPartial = 8;
    std::array<double, kPartial> sums{};
    std::size_t i = 0;
    for (; i + kPartial <= scores.size(); i += kPartial) {
      for (std::size_t p = 0; p < kPartial; ++p)
        sums[p] += static_cast<double>(scores[i + p]);
    }
    for (; i < scores.size(); ++i)
      sums[0] += static_cast<double>(scores[i]);
    double total = 0.0;
    for (const double partial : sums)
      total += partial;
    return total;
  }

  Aggregator aggregator_;
  float decay_;
  SlotArray scores_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_TEMPORAL_RUNNING_SCORES_HPP_
