#ifndef KVEVICT_POLICIES_CONTROLS_HPP_
#define KVEVICT_POLICIES_CONTROLS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/counter_random.hpp"
#include "kvevict/policies/policy.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>

KVEVICT_NAMESPACE_BEGIN

// The two controls that belong beside every quality figure.

struct FullKVOptions {};

/// Keeps everything, through the same path as every other policy.
class FullKVMethod {
 public:
  using Options = FullKVOptions;
  static constexpr std::string_view kName = "FullKV";
  static constexpr Inputs kRequiredInputs = Inputs::kNothing;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  FullKVMethod(const Options& /*options*/, const CacheShape& /*shape*/) noexcept {}

  [[nodiscard]] MaskScope scope() const noexcept { return MaskScope::kModel; }
  [[nodiscard]] Trigger trigger() const noexcept { return Trigger::kEveryStep; }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept { return {}; }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = std::numeric_limits<std::size_t>::max()};
  }
  [[nodiscard]] std::tuple<> state() noexcept { return {}; }

  template <class Visit>
  static void visit_options(Options& /*options*/, Visit&& /*visit*/) {}
};

struct RandomEvictionOptions {
  Budget budget = 1024;  ///< tokens per KV head, protected ones included
  std::uint64_t seed = 0;
  Protection protection = {};        ///< equal protection is what makes the control fair
  bool shared = false;               ///< one draw for all layers and heads instead of one for each
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
};

/// Evicts at random. The number of a token comes from a counter (seed, lane, position), not from
/// a running generator: the mask does not depend on the order of calls, and a token keeps its
/// number, so a smaller budget keeps a subset.
class RandomEvictionMethod {
 public:
  using Options = RandomEvictionOptions;
  static constexpr std::string_view kName = "RandomEviction";
  static constexpr Inputs kRequiredInputs = Inputs::kNothing;
  static constexpr AttentionUse kAttentionUse = AttentionUse::kNone;

  RandomEvictionMethod(const Options& options, const CacheShape& /*shape*/) : options_(options) {
    options_.protection.after_prompt |= options.only_at_prefill_end;
  }

  [[nodiscard]] MaskScope scope() const noexcept {
    return options_.shared ? MaskScope::kModel : MaskScope::kHead;
  }
  [[nodiscard]] Trigger trigger() const noexcept {
    return options_.only_at_prefill_end ? Trigger::kPrefillEnd : Trigger::kEveryStep;
  }
  [[nodiscard]] Protection protection(const Sequence& /*sequence*/) const noexcept {
    return options_.protection;
  }
  [[nodiscard]] Allocation allocation(const Sequence& /*sequence*/) const noexcept {
    return {.budget = options_.budget};
  }
  [[nodiscard]] std::tuple<> state() noexcept { return {}; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("seed", options.seed);
    visit("num_sink_tokens", options.protection.num_sink_tokens);
    visit("recent_window", options.protection.recent_window);
    visit("protect_prompt", options.protection.prompt);
    visit("shared", options.shared);
    visit("only_at_prefill_end", options.only_at_prefill_end);
  }

  void score(const ScoreInput& input, std::size_t lane, std::span<float> out) const noexcept {
    using detail::mix_bits;
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      const auto position = static_cast<std::uint64_t>(input.sequence.position(lane, slot));
      // 24 bits are exact in a float; ties go to the lower slot like any others.
      out[slot] =
          static_cast<float>(mix_bits(mix_bits(options_.seed + mix_bits(lane)) + position) >> 40U);
    }
  }

 private:
  Options options_;
};

using FullKV = Policy<FullKVMethod>;
using RandomEviction = Policy<RandomEvictionMethod>;

static_assert(EvictionPolicy<FullKV>);
static_assert(EvictionPolicy<RandomEviction>);

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CONTROLS_HPP_
