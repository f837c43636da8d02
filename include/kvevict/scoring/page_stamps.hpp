#ifndef KVEVICT_SCORING_PAGE_STAMPS_HPP_
#define KVEVICT_SCORING_PAGE_STAMPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/page_attention.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// To which pages a decoded token attends.
enum class StampRule : std::uint8_t {
  kAboveThreshold,  ///< those to which it gives more than the threshold
  kTopHalf,         ///< the better half of them, rounded up; of equal pages the earlier ones
};

[[nodiscard]] constexpr auto enum_names(StampRule /*type*/) noexcept {
  return std::array<std::pair<std::string_view, StampRule>, 2>{
      {{"above_threshold", StampRule::kAboveThreshold}, {"top_half", StampRule::kTopHalf}}};
}

/// When a token's page was last attended to, as the position of the token that did: per layer, one
/// array for all heads. A decoded token attends to the pages that the rule says, by what `Source`
/// says it gives to them (PageAttention, PageBounds), and to the page that it is written to. NaN is
/// no attention: such a page comes last and gets no stamp.
///
/// Stamps are floats, exact up to 2^24 tokens. What drafts attended to stays attended to.
template <class Source>
class PageStamps {
 public:
  static constexpr Inputs kRequiredInputs = Source::kRequiredInputs;
  static constexpr AttentionUse kAttentionUse = Source::kAttentionUse;

  /// Throws InvalidArgument, naming `where`, for pages of 0.
  /// @param threshold  of kAboveThreshold
  PageStamps(std::string_view where, const CacheShape& shape, const DecodePages& pages,
             StampRule rule, double threshold)
      : rule_(
            (detail::require(pages.size > 0, where, "page_size", pages.size, "must be > 0"), rule)),
        threshold_(threshold),
        source_(shape, pages),
        stamps_{SlotArray(shape, MaskScope::kLayer)} {}

  [[nodiscard]] auto state() noexcept { return std::tuple_cat(std::tie(stamps_), source_.state()); }

  /// All of a decode step; none of a prompt.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.num_decoded() > 0 ? sequence.step_len() : 0;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) requires(kAttentionUse !=
                                                                      AttentionUse::kQueries) {
    return source_.observe_rows(rows, sequence, kernel);
  }
  std::size_t end_layer(std::size_t layer, const Sequence& sequence,
                        const kernels::KernelSet& kernel) requires(kAttentionUse !=
                                                                   AttentionUse::kQueries) {
    source_.end_layer(layer, sequence, kernel, stamp_pages(layer));
    return 0;
  }
  std::size_t observe_query_rows(
      std::size_t layer, const QueryRows& rows, const Sequence& sequence, const ViewRef& view,
      const kernels::KernelSet& kernel) requires(kAttentionUse == AttentionUse::kQueries) {
    return source_.observe_query_rows(layer, rows, sequence, view, kernel, stamp_pages(layer));
  }
  void score(const ScoreInput& /*input*/, LaneScores& scores) const {
    scores.start(0, scores.seq_len(), 1);
    const std::span<const float> stamps = stamps_.slots.at(scores.layer());
    std::copy(stamps.begin(), stamps.end(), scores.array(0).begin());
    scores.keep_one();
  }

 private:
  // A new token attends to itself.
  struct Stamps {
    SlotArray slots;
    std::size_t length = 0;

    void append(std::size_t count) {
      for (; count > 0; --count)
        slots.append(1, static_cast<float>(length++));
    }
    void apply(const KeepMask& mask) { slots.apply(mask); }
    void truncate(const Sequence& sequence) {
      slots.truncate(sequence);
      length = sequence.length();
    }
    void reset() noexcept {
      slots.reset();
      length = 0;
    }
  };

  [[nodiscard]] auto stamp_pages(std::size_t layer) {
    return [this, stamps = stamps_.slots.at(layer)](std::size_t position,
                                                    std::span<PageWeight> pages) {
      if (rule_ == StampRule::kTopHalf)
        pages = top_half(pages);
      for (const PageWeight& page : pages) {
        const bool attends =
            rule_ == StampRule::kTopHalf ? !std::isnan(page.weight) : page.weight > threshold_;
        if (attends) {
          std::fill(stamps.begin() + static_cast<std::ptrdiff_t>(page.first),
                    stamps.begin() + static_cast<std::ptrdiff_t>(page.last),
                    static_cast<float>(position));
        }
      }
    };
  }
  [[nodiscard]] static std::span<PageWeight> top_half(std::span<PageWeight> pages) {
    const std::size_t count = (pages.size() + 1) / 2;
    // A total order, so that the half is the same on every machine.
    const auto is_better = [](const PageWeight& a, const PageWeight& b) {
      if (std::isnan(a.weight) != std::isnan(b.weight))
        return std::isnan(b.weight);
      return a.weight != b.weight && !std::isnan(a.weight) ? a.weight > b.weight
                                                           : a.first < b.first;
    };
    std::nth_element(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count), pages.end(),
                     is_better);
    return pages.first(count);
  }

  StampRule rule_;
  double threshold_;
  Source source_;
  Stamps stamps_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PAGE_STAMPS_HPP_
