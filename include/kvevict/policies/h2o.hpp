#ifndef KVEVICT_POLICIES_H2O_HPP_
#define KVEVICT_POLICIES_H2O_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/slot_array.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/row_counts.hpp"
#include "kvevict/temporal/first_prompt.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

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
        shape_(shape),
        sums_(shape, RowReduce::kSum, HeadReduce::kGroupMean),
        counts_(shape, options.scope, options.lifetime_mean ? 1 : 0) {
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
  [[nodiscard]] auto state() noexcept { return std::tie(first_prompt_, sums_, counts_); }

  void begin(const Sequence& sequence) noexcept { first_prompt_.begin(sequence); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& /*sequence*/,
                                        std::size_t /*layer*/) const noexcept {
    return std::numeric_limits<std::size_t>::max();  // all there are
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& /*sequence*/,
                           const kernels::KernelSet& kernel) {
    const std::size_t head = shape_.lane_of(MaskScope::kHead, rows.layer, rows.kv_head);
    if (options_.lifetime_mean && head % heads_per_lane() == 0)
      count_rows(rows, counts_.at(head / heads_per_lane()));
    return sums_.observe(rows, kernel);
  }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const noexcept {
    sums_.mean(options_.scope, lane, input.kernel, out);
    if (!options_.lifetime_mean)
      return;
    const std::span<const float> counts = counts_.at(lane);
    for (std::size_t slot = 0; slot < out.size(); ++slot)
      out[slot] /= std::max(counts[slot], 1.0F);
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
  [[nodiscard]] std::size_t tokens(const Budget& budget, const Sequence& sequence) const noexcept {
    return first_prompt_.frozen(budget, sequence).tokens_of(0);
  }
  // KV heads, counted through the model, whose lanes are one lane of this scope.
  [[nodiscard]] std::size_t heads_per_lane() const noexcept {
    return shape_.num_lanes(MaskScope::kHead) / shape_.num_lanes(options_.scope);
  }

  Options options_;
  CacheShape shape_;
  FirstPrompt first_prompt_;
  AttentionColumns sums_;
  SlotArray counts_;  // rows that could see the slot; empty where no mean is wanted
};

using H2O = Policy<H2OMethod>;

static_assert(EvictionPolicy<H2O>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_H2O_HPP_
