#ifndef KVEVICT_POLICIES_CONTROLS_HPP_
#define KVEVICT_POLICIES_CONTROLS_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/random_scores.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

// The controls that belong beside every quality figure.

struct FullKVOptions {};

/// Keeps everything, through the same path as every other policy.
class FullKVMethod {
 public:
  using Options = FullKVOptions;
  static constexpr std::string_view kName = "FullKV";
  static constexpr bool kChangesLength = false;
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
  Budget budget = 1024;           ///< tokens per KV head, protected ones included
  std::uint64_t seed = 0;         ///< of the draws
  std::uint64_t sequence_id = 0;  ///< sequences of one seed with other numbers draw for themselves
  Protection protection = {};     ///< equal protection is what makes the control fair
  bool shared = false;            ///< one draw for all layers and heads instead of one for each
  bool only_at_prefill_end = false;  ///< cut each prompt once and keep what is decoded
};

/// Evicts at random. A token keeps its number, so a smaller budget keeps a subset, and cutting
/// often ends where cutting once does.
struct RandomEvictionRecipe {
  using Options = RandomEvictionOptions;
  static constexpr std::string_view kName = "RandomEviction";

  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return Pipeline(RandomScores{{.seed = options.seed, .sequence_id = options.sequence_id}});
  }
  static MaskScope scope(const Options& options) noexcept {
    return options.shared ? MaskScope::kModel : MaskScope::kHead;
  }
  static Trigger trigger(const Options& options) noexcept {
    return options.only_at_prefill_end ? Trigger::kPrefillEnd : Trigger::kEveryStep;
  }
  static Protection protection(const Options& options) noexcept {
    Protection protection = options.protection;
    protection.after_prompt |= options.only_at_prefill_end;
    return protection;
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("seed", options.seed);
    visit("sequence_id", options.sequence_id);
    visit("num_sink_tokens", options.protection.num_sink_tokens);
    visit("recent_window", options.protection.recent_window);
    visit("protect_prompt", options.protection.prompt);
    visit("shared", options.shared);
    visit("only_at_prefill_end", options.only_at_prefill_end);
  }
};

/// What Random Attention protects beside the newest tokens.
enum class PromptProtection : std::uint8_t {
  kNone,        ///< nothing: the ablation in which any scorer wins
  kPrompt,      ///< prompts, as far as the budget goes
  kPlanPrefix,  ///< and the first tokens behind each, where a reasoning model makes its plan
};

[[nodiscard]] constexpr auto enum_names(PromptProtection /*type*/) noexcept {
  return std::array<std::pair<std::string_view, PromptProtection>, 3>{
      {{"none", PromptProtection::kNone},
       {"prompt", PromptProtection::kPrompt},
       {"plan_prefix", PromptProtection::kPlanPrefix}}};
}

struct RandomAttentionOptions {
  std::size_t budget = 4096;       ///< tokens per KV head that a cut leaves, protected included (B)
  std::size_t interval = 64;       ///< tokens above the budget at which it is time to cut
  std::size_t recent_window = 64;  ///< newest tokens, which stay (R)
  PromptProtection protect = PromptProtection::kPrompt;  ///< beside the newest tokens
  std::size_t plan_tokens = 768;  ///< of kPlanPrefix: decoded tokens behind a prompt that stay
  /// Who shares a draw. Differences between heads are part of the method: kLayer and kModel are the
  /// controls that show it.
  MaskScope scope = MaskScope::kHead;
  std::uint64_t seed = 0;         ///< of the draws
  std::uint64_t sequence_id = 0;  ///< sequences of one seed with other numbers draw for themselves
};

/// Keep the prompt, draw the rest (Random Attention, arXiv 2609.03430): whenever the cache holds
/// budget + interval tokens while decoding, the newest recent_window tokens and the prompt stay,
/// and of the others as many as the budget K has room for, drawn uniformly without replacement, for
/// each layer and KV head by itself and anew at every firing. Survival falls geometrically with
/// age: a soft preference for what is recent. No score, no signal. On reasoning tasks it matches
/// scorers; what stands outside the prompt and is said once is lost like anything else.
///
/// With K = budget - recent_window the authors protect the first min(prompt, K - 1) tokens, so that
/// a long prompt gives way and history keeps a place; so does this, for every prompt of a sequence,
/// the oldest first. They look at the length every `interval` tokens, from the start of decoding:
/// the same times but for a phase. Their variants that protect every second token of a long prompt,
/// and that draw runs of tokens, are not offered.
struct RandomAttentionRecipe {
  using Options = RandomAttentionOptions;
  static constexpr std::string_view kName = "RandomAttention";

  static void check(const Options& options, const CacheShape& /*shape*/) {
    detail::require(options.interval > 0, kName, "interval", options.interval, "must be > 0");
  }
  static auto pipeline(const Options& options, const CacheShape& /*shape*/) {
    return Pipeline(
        RandomScores{{.seed = options.seed, .sequence_id = options.sequence_id, .redraw = true}});
  }
  static MaskScope scope(const Options& options) noexcept { return options.scope; }
  static Trigger trigger(const Options& /*options*/) noexcept { return Trigger::kDecodeSteps; }
  static Protection protection(const Options& options) noexcept {
    return {
        .recent_window = options.recent_window,
        .prompt = options.protect != PromptProtection::kNone,
        .plan_tokens = options.protect == PromptProtection::kPlanPrefix ? options.plan_tokens : 0,
        .prompt_gives_way = true};
  }
  static Allocation allocation(const Options& options) noexcept {
    return Allocation::in_batches(options.budget, options.interval);
  }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("budget", options.budget);
    visit("interval", options.interval);
    visit("recent_window", options.recent_window);
    visit("protect", options.protect);
    visit("plan_tokens", options.plan_tokens);
    visit("scope", options.scope);
    visit("seed", options.seed);
    visit("sequence_id", options.sequence_id);
  }
};

// policy: FullKV | none: all stay | nothing | - | model | nothing | none | none | control
using FullKV = Policy<FullKVMethod>;
// policy: RandomEviction | a random number, kept | nothing | - | head | at any time | none
//   | a number per entry | control
using RandomEviction = Policy<Composed<RandomEvictionRecipe>>;
// policy: RandomAttention | a random number, new at each cut | nothing | - | head | while decoding
//   | none | none; a cut: a number per entry | 2609.03430
using RandomAttention = Policy<Composed<RandomAttentionRecipe>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_CONTROLS_HPP_
