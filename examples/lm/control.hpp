#ifndef KVEVICT_EXAMPLES_LM_CONTROL_HPP_
#define KVEVICT_EXAMPLES_LM_CONTROL_HPP_

#include "kvevict/any_policy.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/policy.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/random_scores.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The random control of a policy: what a policy keeps by its scores and not by what it protects is
// seen beside a draw that protects the same.
namespace lm {

/// What a policy and its random control have in common.
struct Control {
  std::size_t budget = 0;  ///< tokens per KV head, protected ones included
  kvevict::Protection protection;
  kvevict::MaskScope scope = kvevict::MaskScope::kHead;  ///< who shares a set of tokens
};

struct RandomControlRecipe {
  struct Options {
    Control common;
    std::uint64_t seed = 0;
  };
  static constexpr std::string_view kName = "RandomControl";

  static auto pipeline(const Options& options, const kvevict::CacheShape& /*shape*/) {
    return kvevict::Pipeline(kvevict::RandomScores{{.seed = options.seed}});
  }
  static kvevict::MaskScope scope(const Options& options) noexcept { return options.common.scope; }
  static kvevict::Trigger trigger(const Options& /*options*/) noexcept {
    return kvevict::Trigger::kEveryStep;
  }
  static kvevict::Protection protection(const Options& options) noexcept {
    return options.common.protection;
  }
  static kvevict::Allocation allocation(const Options& options) noexcept {
    return {.budget = options.common.budget};
  }
};
using RandomControl = kvevict::Policy<kvevict::Composed<RandomControlRecipe>>;

/// What the control of `policy` at `budget` tokens shares with it, for a prompt of `prompt_len`.
/// None where the policy protects all that it keeps, so that nothing is left to chance.
[[nodiscard]] inline std::optional<Control> control_of(kvevict::AnyPolicy policy,
                                                       std::size_t budget, std::size_t prompt_len) {
  policy.begin(prompt_len);  // a window may be a share of the prompt
  const Control control{budget, policy.protection(), policy.sequence().scope()};
  const kvevict::Protection& protection = control.protection;
  const std::size_t sinks = protection.num_sink_tokens;
  if (sinks >= budget || protection.recent_window >= budget - sinks)
    return std::nullopt;
  if (protection.prompt && !protection.prompt_gives_way && prompt_len >= budget)
    return std::nullopt;
  return control;
}

/// Two controls are the same if their JSON is.
[[nodiscard]] inline nlohmann::json json_of(const Control& control) {
  std::string scope;
  for (const auto& [name, value] : kvevict::enum_names(kvevict::MaskScope())) {
    if (value == control.scope)
      scope = name;
  }
  const kvevict::Protection& protection = control.protection;
  return {{"budget_tokens", control.budget},
          {"num_sink_tokens", protection.num_sink_tokens},
          {"recent_window", protection.recent_window},
          {"prompt", protection.prompt},
          {"prompt_gives_way", protection.prompt && protection.prompt_gives_way},
          {"plan_tokens", protection.plan_tokens},
          {"after_prompt", protection.after_prompt},
          {"one_set_per", scope}};
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_CONTROL_HPP_
