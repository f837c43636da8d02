#ifndef KVEVICT_SCORING_PAGE_ATTENTION_HPP_
#define KVEVICT_SCORING_PAGE_ATTENTION_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/attention_rows.hpp"
#include "kvevict/scoring/step_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// A page of decoded tokens and what one token gives to it.
struct PageWeight {
  std::size_t first = 0;  ///< slots [first, last), as far as the token sees
  std::size_t last = 0;
  double weight = 0.0;
};

/// What the tokens of a decode step give to each page, for PageStamps: the sum over the page of the
/// attention rows' mean over the layer's query heads. An entry that is not finite makes it NaN.
class PageAttention {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kLastRow;

  PageAttention(const CacheShape& shape, const DecodePages& pages) : shape_(shape), pages_(pages) {}

  [[nodiscard]] auto state() noexcept { return std::tie(rows_); }

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
  /// Calls visit(position, pages) for each token of the step, oldest first. `visit` may put the
  /// pages into another order.
  template <class Visit>
  void end_layer(std::size_t layer, const Sequence& sequence, const kernels::KernelSet& kernel,
                 Visit&& visit) {
    for (std::size_t token = 0; token < rows_.num_tokens(); ++token) {
      const std::span<const float> row = rows_.at(token, 0, 0);
      weights_.clear();
      pages_.for_each(sequence, layer, [&](std::size_t first, std::size_t last) {
        if (first >= row.size())
          return;  // written later in this step
        const std::size_t end = std::min(last, row.size());
        weights_.push_back({first, end, kernel.sum(row.data() + first, end - first)});
      });
      visit(sequence.length() - rows_.num_tokens() + token, std::span(weights_));
    }
    rows_.clear();
  }

 private:
  CacheShape shape_;
  DecodePages pages_;
  StepRows rows_;                    // of the layer that is being handed over
  std::vector<PageWeight> weights_;  // memory that is kept between calls
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PAGE_ATTENTION_HPP_
