#ifndef KVEVICT_POLICIES_SNAPKV_HPP_
#define KVEVICT_POLICIES_SNAPKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/attention_columns.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/observation_window.hpp"
#include "kvevict/scoring/pooling.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

/// Which slots the softmax of a window row runs over.
enum class SoftmaxSupport : std::uint8_t {
  kAll,   ///< all that the query saw: rows as they are (the authors)
  kPast,  ///< the slots before the window alone (R-KV, LongFlow, TensorRT-LLM): rows weigh alike
};

[[nodiscard]] constexpr auto enum_names(SoftmaxSupport /*type*/) noexcept {
  return std::array<std::pair<std::string_view, SoftmaxSupport>, 2>{
      {{"all", SoftmaxSupport::kAll}, {"past", SoftmaxSupport::kPast}}};
}

/// Defaults: what the authors' code sets for its models. It pools and selects per query head, which
/// a GQA cache cannot store; the group's mean is then the common reading (AdaKV, KVCache-Factory).
struct SnapKVOptions {
  Budget budget = 2048;                 ///< tokens per KV head, window included (max capacity)
  std::size_t observation_window = 32;  ///< last tokens of the prompt, whose queries vote
  Pooling pooling = {.kind = PoolKind::kAverage, .kernel_size = 5};
  GroupReduce group_reduce = GroupReduce::kMean;  ///< over the query heads of a group
  bool pool_first = false;  ///< pool each query head and then reduce the group (kvpress)
  SoftmaxSupport softmax_support = SoftmaxSupport::kAll;
  bool protect_window = true;  ///< false: the window's own tokens compete like all others
};

/// The attention of the prompt's last queries (SnapKV, arXiv 2404.14469, section 4): per KV head
///
///   score(i) = reduce_h( pool( sum_t a[h, t, i] ) ),  t in the window, i before it,
///
/// with `pool` and `reduce` in either order. Once, at the end of a prompt: the window and the best
/// of the prefix stay; tokens decoded later are all kept. Pooling sees the prefix only. A later
/// prompt is a fresh window over all that is cached by then.
class SnapKVMethod {
 public:
  using Options = SnapKVOptions;
  static constexpr std::string_view kName = "SnapKV";
  static constexpr Inputs kRequiredInputs = Inputs::kAttention;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kWindow;

  SnapKVMethod(const Options& options, const CacheShape& shape)
      : options_(options), columns_(shape, RowReduce::kSum, head_reduce(options)) {
    detail::require(options.observation_window > 0, kName, "observation_window",
                    options.observation_window, "must be > 0");
    options.pooling.check(kName);
    detail::require(options.protect_window || options.softmax_support == SoftmaxSupport::kAll,
                    kName, "protect_window", options.protect_window,
                    "must be true where the softmax leaves the window out");
  }

  [[nodiscard]] MaskScope scope() const noexcept { return MaskScope::kHead; }
  [[nodiscard]] Trigger trigger() const noexcept { return Trigger::kPrefillEnd; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return {.recent_window = options_.protect_window ? options_.observation_window : 0,
            .after_prompt = true};
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = options_.budget};
  }
  [[nodiscard]] auto state() noexcept { return std::tie(columns_); }

  void begin(const Sequence& /*sequence*/) noexcept { columns_.clear(); }
  [[nodiscard]] std::size_t wanted_rows(const Sequence& sequence,
                                        std::size_t /*layer*/) const noexcept {
    return sequence.step_rows_in_window(options_.observation_window);
  }
  std::size_t observe_rows(const GroupRows& rows, const Sequence& sequence,
                           const kernels::KernelSet& kernel) {
    if (options_.softmax_support == SoftmaxSupport::kAll)
      return columns_.observe(rows, kernel);
    return columns_.observe(
        rows, kernel,
        past_of_window(sequence, rows.layer, rows.kv_head, options_.observation_window));
  }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const {
    const CacheShape& shape = input.sequence.shape();
    const std::size_t layer = shape.first_layer(MaskScope::kHead, lane);
    const std::size_t head = shape.first_head(MaskScope::kHead, lane);
    const ObservationWindow window = find_observation_window(
        input.sequence, lane, options_.observation_window, input.view.lane(layer, head).valid);
    const std::size_t end = options_.protect_window ? window.prefix_end : window.prompt_end;
    const std::size_t count = end - window.first;
    std::fill(out.begin(), out.end(), 0.0F);
    const std::span<float> scores = out.subspan(window.first, count);
    const std::span<float> scratch = input.scratch.floats(0, count);
    const std::size_t num_arrays = columns_.arrays_per_kv_head();
    for (std::size_t h = 0; h < num_arrays; ++h) {
      const auto column = columns_.of(layer, head, h).subspan(window.first, count);
      if (num_arrays == 1) {
        options_.pooling.apply(column, input.kernel, scores);
      } else if (options_.pool_first) {
        options_.pooling.apply(column, input.kernel, scratch);
        reduce_group(options_.group_reduce, h, num_arrays, scratch, scores);
      } else {
        reduce_group(options_.group_reduce, h, num_arrays, column, scratch);
      }
    }
    if (num_arrays > 1 && !options_.pool_first) {
      options_.pooling.apply(scratch, input.kernel, scores);
    }
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("observation_window", options.observation_window);
    visit("pooling", options.pooling.kind);
    visit("pool_kernel_size", options.pooling.kernel_size);
    visit("pool_edge", options.pooling.edge);
    visit("group_reduce", options.group_reduce);
    visit("pool_first", options.pool_first);
    visit("softmax_support", options.softmax_support);
    visit("protect_window", options.protect_window);
  }

 private:
  // A mean over heads can be taken row by row: it commutes with the sum over rows, and with an
  // average over slots. Only what does not commute needs an array per query head.
  [[nodiscard]] static HeadReduce head_reduce(const Options& options) noexcept {
    const bool commutes = !options.pool_first || options.pooling.kind == PoolKind::kAverage;
    return options.group_reduce == GroupReduce::kMean && commutes ? HeadReduce::kGroupMean
                                                                  : HeadReduce::kNone;
  }

  Options options_;
  AttentionColumns columns_;
};

using SnapKV = Policy<SnapKVMethod>;

static_assert(EvictionPolicy<SnapKV>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_SNAPKV_HPP_
