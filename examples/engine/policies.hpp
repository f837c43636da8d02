#ifndef KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
#define KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_

#include "kvevict/any_policy.hpp"

#include <string>
#include <string_view>
#include <vector>

// kvevict::make_policy over all policies is compiled once, in policies.cpp: they take minutes.
extern template kvevict::AnyPolicy kvevict::make_policy<kvevict::NamedPolicies>(
    std::string_view name, std::string_view options, const kvevict::ModelInfo& model);

namespace engine {

/// The names of all policies, in the order of kvevict::NamedPolicies.
[[nodiscard]] std::vector<std::string> policy_names();

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
