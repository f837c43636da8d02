#ifndef KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_
#define KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_

#include "engine/policies.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Which policies the comparison runs, and what a budget in tokens means to each.
namespace lm {

/// A policy as the comparison runs it: how it is called and which options a budget means.
struct Contestant {
  std::string label;
  std::string policy;        ///< make_policy's name
  std::string fixed;         ///< options that do not depend on the budget
  bool cuts_prompts = true;  ///< takes part where a prompt is compressed
  bool cuts_decode = true;   ///< takes part where the budget must hold while decoding
  bool optional = false;     ///< left out where the model or the engine cannot run it
};

/// Those that are compared if nothing else is asked for.
[[nodiscard]] inline const std::vector<Contestant>& contestants() {
  static const std::vector<Contestant> all = {
      {"FullKV", "fullkv", "", true, true},
      {"Random", "random_eviction", "", true, true},
      {"StreamingLLM", "streaming_llm", "", true, true},
      {"H2O", "h2o", "", true, true},
      {"SnapKV", "snapkv", "", true, false},
      {"LaProx", "laprox", "", true, false},
      {"EpiKV", "epikv", "", false, true},
      {"InertiaKV", "inertiakv", "", true, true},
      {"InertiaKV-Lazy4", "inertiakv", "refresh_interval=4", true, true},
      {"InertiaKV-ScoreFree", "inertiakv", "score_free=true", true, true},
  };
  return all;
}

/// When a policy cuts.
enum class Cuts {
  kAlways,
  kPromptsOnly,  ///< once, at a prompt's end; what is decoded stays
  kDecodeOnly    ///< prompts stay whole
};

/// What has to be known of a policy to give it a budget.
struct PolicyEntry {
  std::string_view policy;  ///< its name
  /// Its options where "budget=$budget" is not all, with the words of options_for.
  std::string_view options = "budget=$budget";
  Cuts cuts = Cuts::kAlways;
  std::string_view needs = "";  ///< what it is nothing without and no file here has
  bool has_control = true;      ///< a random control with as many tokens can stand beside it
};

namespace detail {

/// Every policy that is not just "budget=$budget" and cuts always.
[[nodiscard]] inline const std::vector<PolicyEntry>& policy_entries() {
  constexpr std::string_view kWindow = "budget=$budget,observation_window=$window";
  constexpr std::string_view kHeavy = "heavy=$half,recent=$other_half";
  constexpr std::string_view kBlocks =
      "budget=$blocks,block_size=$block,num_sink_tokens=$block,recent_window=$block";
  // The interval that some gather above the budget is 1: all are held at the same length.
  constexpr std::string_view kTriAttention =
      "budget=$budget,interval=1,protect_prompt=false,num_sink_tokens=$sinks,recent_window=$window";
  constexpr std::string_view kPlain = "budget=$budget";
  constexpr std::string_view kFilters = "a direction for each head (query_filters)";
  constexpr std::string_view kStatistics = "statistics of many texts' queries (query_statistics)";
  constexpr std::string_view kScores = "scores from a second pass or a model (observe_scores)";
  constexpr bool kNoControl = false;
  static const std::vector<PolicyEntry> all = {
      {"FullKV", "", Cuts::kAlways, "", kNoControl},
      {"RandomEviction", "budget=$budget,num_sink_tokens=$sinks,recent_window=$recent",
       Cuts::kAlways, "", kNoControl},
      {"StreamingLLM", "num_sink_tokens=$sinks,recent_window=$rest"},
      {"H2O", kHeavy},
      {"H2OCAOTE", kHeavy},
      {"H2OFastCAOTE", kHeavy},
      {"Keyformer", kHeavy},
      {"VATP", "heavy=$half,recent=$other_half,num_sink_tokens=$sinks"},
      {"SnapKV", kWindow, Cuts::kPromptsOnly},
      {"LaProx", kWindow, Cuts::kPromptsOnly},
      {"AdaKV", kWindow, Cuts::kPromptsOnly},
      {"AdaKVDropKV", kWindow, Cuts::kPromptsOnly},
      {"CAKE", kWindow},
      {"ChunkKV", kWindow, Cuts::kPromptsOnly},
      {"CriticalAdaKV", kWindow, Cuts::kPromptsOnly},
      {"CriticalKV", kWindow, Cuts::kPromptsOnly},
      {"DefensiveKV", kWindow, Cuts::kPromptsOnly},
      {"DropKV", kWindow, Cuts::kPromptsOnly},
      {"EntropyGatedChunkKV", kWindow, Cuts::kPromptsOnly},
      {"Finch", kWindow, Cuts::kPromptsOnly},
      {"PyramidKV", kWindow, Cuts::kPromptsOnly},
      {"RocketKV", "budget=$budget,observation_window=$window,split=false", Cuts::kPromptsOnly},
      {"TwinKVSnapKV", kWindow, Cuts::kPromptsOnly},
      {"AhaKV", "budget=$budget,recent_window=$window"},
      {"AdaptiveRKV", kBlocks},
      {"BlockEviction", kBlocks},
      {"KVCrush", kBlocks},
      {"DMSKnorm", "budget=$budget,recent_window=$window"},
      {"DMSQFilters", "budget=$budget,recent_window=$window", Cuts::kAlways, kFilters},
      {"EpiKV", kPlain, Cuts::kDecodeOnly},
      {"EpiKVRaw", kPlain, Cuts::kDecodeOnly},
      {"EpiKVBands", kPlain, Cuts::kDecodeOnly},
      {"EpiKVKey", kPlain, Cuts::kDecodeOnly},
      {"EpiKVValue", kPlain, Cuts::kDecodeOnly},
      {"EpiKVLag", kPlain, Cuts::kDecodeOnly},
      {"EpiKVLagKey", kPlain, Cuts::kDecodeOnly},
      {"EpiKVAttention", kPlain, Cuts::kDecodeOnly},
      {"EpiKVSegmentHS", kPlain, Cuts::kDecodeOnly},
      {"EpiKVSeg", kPlain, Cuts::kDecodeOnly},
      {"NestedKV", kPlain, Cuts::kPromptsOnly},
      {"Compactor", kPlain, Cuts::kPromptsOnly},
      {"NonCausal", kPlain, Cuts::kPromptsOnly},
      {"RaaS", kPlain, Cuts::kDecodeOnly},
      {"RaaSBounds", kPlain, Cuts::kDecodeOnly},
      {"ThinKV", "budget=$budget,segment_len=$segment", Cuts::kDecodeOnly},
      {"LagKVBudget", "budget=$budget,num_sink_tokens=$sinks,lag_len=$segment"},
      {"RandomAttention", "budget=$budget,interval=1,recent_window=$window"},
      {"RKV", "budget=$budget,buffer=1"},
      {"ScissorHands", "budget=$budget,drop=1,recent_window=$few"},
      {"TriAttention", kTriAttention},
      {"TriAttentionStats", kTriAttention, Cuts::kAlways, kStatistics},
      {"VaSE", "budget=$budget,interval=1,num_sink_tokens=$sinks,recent_window=$window"},
      // Those that have no budget in all. FastGen: recovers a share; LagKV: cuts each part of the
      // text to a share; SimLayerKV: the budget is that of the layers that are lazy.
      {"FastGen", "heavy=$half,recent=$other_half", Cuts::kAlways, "", kNoControl},
      {"LagKV", "num_sink_tokens=$sinks,lag_len=$window,per_partition=25%", Cuts::kAlways, "",
       kNoControl},
      {"SimLayerKV", "num_initial=$sinks,recent_window=$rest", Cuts::kPromptsOnly, "", kNoControl},
      {"DuoAttention", "num_sink_tokens=$sinks,recent_window=$rest", Cuts::kAlways,
       "trained gates of the heads (head_scores)"},
      {"EvolKV", kWindow, Cuts::kPromptsOnly, "layer budgets that a search found (layer_budgets)"},
      {"HeadKV", kWindow, Cuts::kPromptsOnly, "retrieval scores of the heads (head_scores)"},
      {"QFilters", kPlain, Cuts::kAlways, kFilters},
      {"CapKVStats", kPlain, Cuts::kAlways, kStatistics},
      {"ExpectedAttentionStats", kPlain, Cuts::kAlways, kStatistics},
      {"ExternalScores", kPlain, Cuts::kAlways, kScores},
      {"KVCompose", kPlain, Cuts::kPromptsOnly, kScores},
      {"KVComposeUnstructured", kPlain, Cuts::kPromptsOnly, kScores},
      {"KVzap", "", Cuts::kAlways, kScores},
      {"KVzip", kPlain, Cuts::kPromptsOnly, kScores},
      {"PerLayerKnorm", "", Cuts::kAlways, "a ratio for each layer (compression_ratios)"},
      {"LUKVKnorm", "", Cuts::kAlways, "a ratio for each head (prune_ratios)"},
  };
  return all;
}

/// Letters in lower case, without '_' and '-', as make_policy compares names.
[[nodiscard]] inline std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c != '_' && c != '-')
      result.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return result;
}

/// The policy's own name in "snapkv(budget=64) + caote".
[[nodiscard]] inline std::string_view base_of(std::string_view policy) {
  return policy.substr(0, policy.find_first_of(" (+"));
}
/// The options that stand behind that name.
[[nodiscard]] inline std::string_view options_in(std::string_view policy) {
  const std::size_t open = policy.find_first_of("(+");
  if (open == std::string_view::npos || policy[open] == '+')
    return {};
  return policy.substr(open + 1, policy.find(')', open) - open - 1);
}

[[nodiscard]] inline PolicyEntry entry_of(std::string_view policy) {
  const std::string name = plain(base_of(policy));
  for (const PolicyEntry& entry : policy_entries()) {
    if (plain(entry.policy) == name)
      return entry;
  }
  return {.policy = base_of(policy)};
}

/// A name, or a composition, that has no label of its own.
[[nodiscard]] inline Contestant contestant_of(std::string_view policy, bool optional) {
  const Cuts cuts = entry_of(policy).cuts;
  return {.label = std::string(policy),
          .policy = std::string(policy),
          .fixed = {},
          .cuts_prompts = cuts != Cuts::kDecodeOnly,
          .cuts_decode = cuts != Cuts::kPromptsOnly,
          .optional = optional};
}

/// "A, B(x=1,y=2) + c" without the blanks around, cut at the commas outside parentheses.
[[nodiscard]] inline std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items(1);
  std::size_t depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : 0;
    depth -= c == ')' && depth > 0 ? 1 : 0;
    if (c == ',' && depth == 0) {
      items.emplace_back();
    } else if (c != ' ' || !items.back().empty()) {
      items.back().push_back(c);
    }
  }
  for (std::string& item : items)
    item.erase(item.find_last_not_of(' ') + 1);
  return items;
}

}  // namespace detail

/// Who is compared.
struct Lineup {
  std::vector<Contestant> contestants;
  std::vector<std::string> left_out;  ///< "policy: reason"
};

/// What --policies asks for: labels, names and compositions of policies, "default" for
/// contestants() and "all" for the catalogue, but for policies that need what no file here has. The
/// full cache and the random control are always there.
[[nodiscard]] inline Lineup lineup_of(std::string_view policies) {
  Lineup lineup;
  const auto add = [&](const Contestant& c) {
    const bool known = std::any_of(lineup.contestants.begin(), lineup.contestants.end(),
                                   [&](const Contestant& other) { return other.label == c.label; });
    if (!known)
      lineup.contestants.push_back(c);
  };
  const auto add_named = [&](const std::string& name, bool optional) {
    for (const Contestant& c : contestants()) {
      // The policy's name alone means the one without further options.
      if (detail::plain(c.label) == detail::plain(name) ||
          (c.fixed.empty() && detail::plain(c.policy) == detail::plain(name)))
        return add(c);
    }
    add(detail::contestant_of(name, optional));
  };
  add_named("FullKV", false);
  add_named("Random", false);
  for (const std::string& item : detail::split_list(policies)) {
    if (item.empty())
      throw std::invalid_argument("--policies: a name is missing between commas");
    if (item == "default") {
      for (const Contestant& c : contestants())
        add(c);
    } else if (item == "all") {
      for (const std::string& name : engine::policy_names()) {
        if (const std::string_view needs = detail::entry_of(name).needs; !needs.empty()) {
          lineup.left_out.push_back(name + ": needs " + std::string(needs));
        } else {
          add_named(name, true);
        }
      }
    } else {
      add_named(item, false);
    }
  }
  return lineup;
}

/// Options under which `policy` keeps `budget` tokens per KV head. What is protected follows the
/// paper where it fits, and shrinks with the budget where it does not. What stands in the policy's
/// own parentheses wins over that, and `fixed` over both.
[[nodiscard]] inline std::string options_for(const std::string& policy, std::size_t budget,
                                             const std::string& fixed = "") {
  const std::size_t sinks = std::min<std::size_t>(4, budget / 2);
  const std::size_t window = std::min<std::size_t>(32, budget / 2);
  // Blocks fill a budget to within one of them, sinks and recent tokens take two.
  const std::size_t block = std::clamp<std::size_t>(budget / 16, 1, 32);
  const std::map<std::string_view, std::size_t> words = {
      {"$budget", budget},
      {"$sinks", sinks},
      {"$rest", budget - sinks},
      {"$half", budget / 2},
      {"$other_half", budget - budget / 2},
      {"$window", window},
      {"$few", std::min<std::size_t>(10, budget / 2)},
      {"$recent", std::min(window, budget - sinks)},
      {"$blocks", budget / block * block},
      {"$block", block},
      {"$segment", std::clamp<std::size_t>(budget / 4, 1, 128)},
  };
  std::vector<std::string> chosen;  // key=value, one for each key
  for (const std::string_view list :
       {detail::entry_of(policy).options, detail::options_in(policy), std::string_view(fixed)}) {
    for (const std::string& option : detail::split_list(list)) {
      if (option.empty())
        continue;
      const std::string_view key = std::string_view(option).substr(0, option.find('=') + 1);
      std::erase_if(chosen, [&](const std::string& other) { return other.starts_with(key); });
      const std::size_t value = std::min(option.find('$'), option.size());
      chosen.push_back(option.substr(0, value));
      if (value < option.size())
        chosen.back() += std::to_string(words.at(std::string_view(option).substr(value)));
    }
  }
  std::string options;
  for (const std::string& option : chosen)
    options.append(options.empty() ? "" : ",").append(option);
  return options;
}

}  // namespace lm

#endif  // KVEVICT_EXAMPLES_LM_CONTESTANTS_HPP_
