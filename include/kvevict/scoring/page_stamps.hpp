#ifndef KVEVICT_SCORING_PAGE_STAMPS_HPP_
#define KVEVICT_SCORING_PAGE_STAMPS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/lane_scores.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/step_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

/// When a token's page was last attended to, as the position of the token that did: per layer, one
/// array for all heads. A decoded token attends to the pages to which it gives more than
/// `threshold` of its attention, mean over the layer's query heads, and to the page that it is
/// written to.
///
/// Stamps are floats, exact up to 2^24 tokens. What drafts attended to stays attended to.
class PageStamps {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  /// Throws InvalidArgument, naming `where`, for pages of 0.
  PageStamps(std::string_view where, const CacheShape& shape, const DecodePages& pages,
             double threshold)
      : shape_(shape),
        pages_((detail::require(pages.size > 0, where, "page_size", pages.size, "must be > 0"),
                pages)),
        threshold_(threshold),
        stamps_{SlotArray(shape, MaskScope::kLayer)} {}

  [[nodiscard]] auto state() noexcept { return std::tie(stamps_, rows_); }

  /// All of a decode step; none of a prompt.
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.num_decoded() > 0 ? sequence.step_len() : 0;
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    if (rows_.empty())
      rows_.start(sequence.step_len(), 1, 1, sequence.seq_len(rows.layer, rows.kv_head));
    const std::size_t first = sequence.length() - rows_.num_tokens();
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      rows_.add(rows, r, rows.first_position + r - first, 0, 0,
                1.0F / static_cast<float>(shape_.num_q_heads), kernel);
    }
    return 0;
  }
  std::size_t end_layer(std::size_t layer, const Sequence& sequence,
                        const kernels::KernelSet& kernel) {
    const std::span<float> stamps = stamps_.slots.at(layer);
    for (std::size_t token = 0; token < rows_.num_tokens(); ++token) {
      const std::size_t position = sequence.length() - rows_.num_tokens() + token;
      const std::span<const float> row = rows_.at(token, 0, 0);
      pages_.for_each(sequence, layer, [&](std::size_t page, std::size_t last) {
        if (page >= row.size())
          return;  // written later in this step
        const std::size_t end = std::min(last, row.size());
        if (kernel.sum(row.data() + page, end - page) > threshold_) {
          std::fill(stamps.begin() + static_cast<std::ptrdiff_t>(page),
                    stamps.begin() + static_cast<std::ptrdiff_t>(end),
                    static_cast<float>(position));
        }
      });
    }
    rows_.clear();
    return 0;
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

  CacheShape shape_;
  DecodePages pages_;
  double threshold_;
  Stamps stamps_;
  StepRows rows_;  // of the layer that is being handed over
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PAGE_STAMPS_HPP_
