#ifndef KVEVICT_POLICIES_H2O_HPP_
#define KVEVICT_POLICIES_H2O_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/row_counts.hpp"
#include "kvevict/scoring/row_sums.hpp"
#include "kvevict/temporal/first_prompt.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

[[nodiscard]] constexpr auto enum_names(MaskScope /*type*/) noexcept {
  return std::array<std::pair<std::string_view, MaskScope>, 3>{
      {{"head", MaskScope::kHead}, {"layer", MaskScope::kLayer}, {"model", MaskScope::kModel}}};
}

/// Defaults: the authors' code, int(0.1 L0) of each kind.
struct H2OOptions {
  Budget heavy = Budget::keep_ratio(0.1);   ///< tokens with the largest sums; a share is one of the
                                            ///< first prompt (L0), fixed from then on
  Budget recent = Budget::keep_ratio(0.1);  ///< the newest tokens, the current one included
  MaskScope scope = MaskScope::kHead;       ///< who shares one set of tokens
  bool lifetime_mean = false;  ///< divide a sum by the number of queries that could see the token
  bool cut_between_chunks = false;  ///< cut unfinished prompts too, wherever should_evict is asked:
                                    ///< less memory, but the mask then depends on the chunks
};

/// Heavy hitters (H2O, arXiv 2306.14048, section 4 and algorithm 1): per KV head
///
///   score(i) = sum over all queries t so far, prompt and decoding, of mean_h a[h, t, i].
///
/// At the end of a prompt and after every step the newest `recent` tokens stay and the `heavy` best
/// of the others. Sums go with the tokens that stay; a new token starts with what it gives itself.
///
/// The authors' code has one sum per query head; a GQA cache cannot store that, so a group has its
/// mean. Sums favour old tokens, which more queries have seen, and nothing protects a new one that
/// leaves the recent window: with recent = 0 it may go in the step that brought it, and a cache of
/// heavy old tokens can stay closed for good. lifetime_mean divides the advantage of age away
/// (kvpress' ObservedAttention; an attention entry that is not finite then counts as 0).
///
/// A second prompt is cut to the same number of tokens.
class H2OMethod {
 public:
  using Options = H2OOptions;
  static constexpr std::string_view kName = "H2O";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kAllRows;

  H2OMethod(const Options& options, const CacheShape& shape)
      : options_(options),
        lane_share_(static_cast<float>(shape.num_lanes(options.scope)) /
                    static_cast<float>(shape.num_lanes(MaskScope::kHead))),
        sums_(shape, options.scope, options.lifetime_mean ? 2 : 1) {
    for (const auto& [field, budget] :
         {std::pair{"heavy", &options.heavy}, std::pair{"recent", &options.recent}}) {
      detail::require(!budget->is_total(), kName, field, budget->count(),
                      "must be a number of tokens or a share, not a total");
    }
    detail::require(options.heavy.tokens_of(1) > 0 || options.recent.tokens_of(1) > 0, kName,
                    "recent", options.recent.count(), "must be > 0 where heavy is 0");
  }

  [[nodiscard]] MaskScope scope() const noexcept { return options_.scope; }
  [[nodiscard]] Trigger trigger() const noexcept { return Trigger::kEveryStep; }
  [[nodiscard]] Protection protection(const Sequence& sequence) const noexcept {
    return {.recent_window = tokens(options_.recent, sequence)};
  }
  [[nodiscard]] Allocation allocation(const Sequence& sequence) const noexcept {
    if (sequence.in_prompt() && !options_.cut_between_chunks)
      return {.budget = std::numeric_limits<std::size_t>::max()};
    return {.budget = detail::saturating_add(tokens(options_.heavy, sequence),
                                             tokens(options_.recent, sequence))};
  }
  [[nodiscard]] auto state() noexcept { return std::tie(first_prompt_, sums_); }

  void begin(const Sequence& sequence) noexcept { first_prompt_.begin(sequence); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return std::numeric_limits<std::size_t>::max();  // all there are
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) noexcept {
    if (options_.lifetime_mean)
      count_rows(rows, lane_share_, sums_.of(rows.layer, rows.kv_head, kCounts));
    return add_rows(rows, lane_share_ / static_cast<float>(rows.group_size), kernel,
                    sums_.of(rows.layer, rows.kv_head));
  }

  void score(const ScoreInput& /*input*/, std::size_t lane, std::span<float> out) const noexcept {
    const std::span<const float> sums = scores(lane);
    std::copy(sums.begin(), sums.end(), out.begin());
    if (!options_.lifetime_mean)
      return;
    const std::span<const float> counts = sums_.at(lane, kCounts);
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      if (counts[slot] > 0.0F)
        out[slot] /= counts[slot];
    }
  }

  /// [seq_len] sums of a lane, in the order of the policy's scope.
  [[nodiscard]] std::span<const float> scores(std::size_t lane) const noexcept {
    return sums_.at(lane);
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("heavy", options.heavy);
    visit("recent", options.recent);
    visit("scope", options.scope);
    visit("lifetime_mean", options.lifetime_mean);
    visit("cut_between_chunks", options.cut_between_chunks);
  }

 private:
  static constexpr std::size_t kCounts = 1;

  [[nodiscard]] std::size_t tokens(const Budget& budget, const Sequence& sequence) const noexcept {
    return first_prompt_.frozen(budget, sequence).tokens_of(0);
  }

  Options options_;
  float lane_share_;  // of one KV head in its lane
  FirstPrompt first_prompt_;
  SlotArray sums_;  // and, for means, how many rows went in, each slot its own number
};

using H2O = Policy<H2OMethod>;

static_assert(EvictionPolicy<H2O>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_H2O_HPP_
