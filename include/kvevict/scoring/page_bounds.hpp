#ifndef KVEVICT_SCORING_PAGE_BOUNDS_HPP_
#define KVEVICT_SCORING_PAGE_BOUNDS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/decode_pages.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/element_type.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/page_attention.hpp"
#include "kvevict/scoring/running_softmax.hpp"
#include "kvevict/scoring/weighted_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// The range of every channel among the keys of each page, for all KV heads of all layers. Keys are
/// read as they come; when tokens go, what is left is read again, since an engine may turn keys to
/// new positions then.
///
/// 2 * head_dim floats per page and KV head.
class PageRanges {
 public:
  explicit PageRanges(const CacheShape& shape)
      : dim_(shape.head_dim), layers_(shape.num_layers, Layer(shape.num_kv_heads)) {}

  /// Takes in the slots of a layer before `end`, its pages being [first, last) as given.
  void extend(std::size_t layer, std::span<const PageWeight> pages, std::size_t end,
              const ViewRef& view, const kernels::KernelSet& kernel) {
    Layer& here = layers_[layer];
    std::size_t page = here.firsts.empty() ? 0 : here.firsts.size() - 1;
    for (; here.num_slots < end; ++page) {
      if (page == here.firsts.size())
        add_page(here, pages[page].first);
      const std::size_t last = std::min(pages[page].last, end);
      for (std::size_t head = 0; head < here.ranges.size(); ++head) {
        const Lane lane = view.lane(layer, head);
        float* const high = here.ranges[head].data() + page * 2 * dim_;
        for_each_row(lane.keys, dim_, here.num_slots, last, kernel, gathered_, widened_,
                     [&](const float* key, std::size_t slot) {
                       if (lane.has_token(slot))
                         kernel.take_ranges(key, dim_, high + dim_, high);
                     });
      }
      here.num_slots = last;
    }
  }
  /// [pages, 2 * head_dim]: the largest values of a page's channels, then the least. Without a
  /// number in it a channel has -infinity and infinity.
  [[nodiscard]] std::span<const float> of(std::size_t layer, std::size_t kv_head) const noexcept {
    return layers_[layer].ranges[kv_head];
  }

  void append(std::size_t /*count*/) noexcept {}
  void apply(const KeepMask& /*mask*/) noexcept { reset(); }
  /// Pages that lose tokens are forgotten and read again.
  void truncate(const Sequence& sequence) noexcept {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      const std::size_t len = sequence.seq_len(l, 0);
      while (layer.num_slots > len) {
        layer.num_slots = layer.firsts.back();
        layer.firsts.pop_back();
        for (auto& ranges : layer.ranges)
          ranges.resize(layer.firsts.size() * 2 * dim_);
      }
    }
  }
  void reset() noexcept {
    for (Layer& layer : layers_) {
      layer.num_slots = 0;
      layer.firsts.clear();
      for (auto& ranges : layer.ranges)
        ranges.clear();
    }
  }

 private:
  struct Layer {
    explicit Layer(std::size_t num_kv_heads) : ranges(num_kv_heads) {}

    std::size_t num_slots = 0;               // that were taken in
    std::vector<std::size_t> firsts;         // first slot of each page
    std::vector<std::vector<float>> ranges;  // of each KV head
  };

  void add_page(Layer& layer, std::size_t first) {
    layer.firsts.push_back(first);
    for (auto& ranges : layer.ranges) {
      ranges.insert(ranges.end(), dim_, -std::numeric_limits<float>::infinity());
      ranges.insert(ranges.end(), dim_, std::numeric_limits<float>::infinity());
    }
  }

  std::size_t dim_;
  std::vector<Layer> layers_;
  std::vector<float> gathered_;  // memory that is kept between calls
  std::vector<float> widened_;
};

}  // namespace detail

/// What the tokens of a decode step give at most to each page, for PageStamps, from the queries and
/// one bound for each page in the place of its keys. The bound is the largest dot product that a
/// query can have with a key whose channels lie in the ranges of the page's keys (Quest, arXiv
/// 2406.10774, algorithm 1):
///
///   sum over channels c of max(q_c low_c, q_c high_c).
///
/// A page counts as one token with that dot product: per query head the logits, scaled and capped
/// as the engine's, go through a softmax over all pages that the token sees, those of the prompts
/// too, which are cut from each prompt's first slot, padding or not; then the mean over the layer's
/// query heads.
///
/// NaN in a key is passed over, and so is a page without any number: padding. One that has none in
/// some channel, and every page for a query with NaN, has weight 0 and is counted.
/// @note  O(head_dim) for each new key, page and query head; when tokens went, K is read once.
class PageBounds {
 public:
  static constexpr Inputs kRequiredInputs = Inputs::kAttention | Inputs::kKeys;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kQueries;

  PageBounds(const CacheShape& shape, const DecodePages& pages)
      : shape_(shape), pages_(pages), ranges_(shape) {}

  [[nodiscard]] auto state() noexcept { return std::tie(ranges_); }

  /// Calls visit(position, pages) with the decoded pages for each token, oldest first. `visit` may
  /// put the pages into another order. Returns how many logits were not finite.
  template <class Visit>
  std::size_t observe_query_rows(std::size_t layer, const QueryRows& rows, const Sequence& sequence,
                                 const ViewRef& view, const kernels::KernelSet& kernel,
                                 Visit&& visit) {
    const std::size_t len = sequence.seq_len(layer, 0);
    std::size_t non_finite = 0;
    all_.clear();
    is_decoded_.clear();
    pages_.for_each_with_prompts(sequence, layer,
                                 [&](std::size_t first, std::size_t last, bool is_decoded) {
                                   all_.push_back({first, last, 0.0});
                                   is_decoded_.push_back(is_decoded ? 1 : 0);
                                 });
    for (std::size_t r = 0; r < rows.num_rows; ++r) {
      const std::size_t behind = rows.num_rows - 1 - r;
      const std::size_t visible = len - behind;
      ranges_.extend(layer, all_, visible, view, kernel);
      non_finite += weigh(layer, rows, r, kernel);
      decoded_.clear();
      for (std::size_t page = 0; page < weights_.size(); ++page) {
        if (is_decoded_[page] != 0) {
          decoded_.push_back({all_[page].first, std::min(all_[page].last, visible),
                              static_cast<double>(weights_[page])});
        }
      }
      visit(sequence.length() - 1 - behind, std::span(decoded_));
    }
    return non_finite;
  }

 private:
  // The weights of the pages that row r sees.
  std::size_t weigh(std::size_t layer, const QueryRows& rows, std::size_t r,
                    const kernels::KernelSet& kernel) {
    const std::size_t dim = shape_.head_dim;
    const std::size_t num_pages = ranges_.of(layer, 0).size() / (2 * dim);
    std::size_t non_finite = 0;
    weights_.assign(num_pages, 0.0F);
    logits_.resize(std::max(logits_.size(), num_pages));
    signed_.resize(2 * dim);
    for (std::size_t head = 0; head < shape_.num_q_heads; ++head) {
      const std::span<const float> ranges = ranges_.of(layer, head / shape_.group_size());
      // The bound is a dot product: what is positive meets the largest values, the rest the least.
      const float* const query = rows.row(head, r);
      for (std::size_t c = 0; c < dim; ++c) {
        signed_[c] = std::max(query[c], 0.0F);
        signed_[dim + c] = std::min(query[c], 0.0F);
      }
      kernel.row_dots(signed_.data(), 1, static_cast<std::ptrdiff_t>(2 * dim),
                      {ranges.data(), static_cast<std::ptrdiff_t>(2 * dim * sizeof(float)),
                       num_pages, 2 * dim, ElementType::kF32},
                      logits_.data(), static_cast<std::ptrdiff_t>(num_pages));
      for (std::size_t page = 0; page < num_pages; ++page) {
        if (is_empty(ranges.subspan(page * 2 * dim, 2 * dim)))
          logits_[page] = -std::numeric_limits<float>::infinity();
      }
      non_finite += add_softmax(head, rows, num_pages, kernel);
    }
    return non_finite;
  }
  [[nodiscard]] static bool is_empty(std::span<const float> range) noexcept {
    const std::size_t dim = range.size() / 2;
    for (std::size_t c = 0; c < dim; ++c) {
      if (range[c] >= range[dim + c])
        return false;
    }
    return true;
  }
  std::size_t add_softmax(std::size_t head, const QueryRows& rows, std::size_t num_pages,
                          const kernels::KernelSet& kernel) {
    float* const logits = logits_.data();
    float factor = rows.logit_scale(shape_.head_dim);
    if (rows.soft_cap > 0.0F) {
      kernel.scale(factor, num_pages, logits);
      kernel.soft_cap(rows.soft_cap, num_pages, logits);
      factor = 1.0F;
    }
    float largest;
    const std::size_t non_finite = kernel.scale_logits(factor, num_pages, logits, largest);
    RunningSoftmax softmax(rows.sink_logits.empty() ? -std::numeric_limits<float>::infinity()
                                                    : rows.sink_logits[head]);
    const float shift = softmax.add(logits, num_pages, largest, kernel);
    kernel.add(softmax.factor(shift) / static_cast<float>(shape_.num_q_heads), logits, num_pages,
               weights_.data());
    return non_finite;
  }

  CacheShape shape_;
  DecodePages pages_;
  detail::PageRanges ranges_;
  // Memory that is kept between calls.
  std::vector<PageWeight> all_;  // pages of the layer
  std::vector<std::uint8_t> is_decoded_;
  std::vector<PageWeight> decoded_;
  std::vector<float> signed_;   // a query, [2 * head_dim]
  std::vector<float> logits_;   // of a query head, [pages]
  std::vector<float> weights_;  // mean over the query heads, [pages that the token sees]
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_PAGE_BOUNDS_HPP_
