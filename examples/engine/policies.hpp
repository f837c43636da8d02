#ifndef KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
#define KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_

#include "kvevict/any_policy.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace engine {

/// kvevict::make_policy over all policies. Compiling them takes minutes: it is done once, in
/// policies.cpp, and the rest of a program includes no policy.
[[nodiscard]] kvevict::AnyPolicy make_policy(std::string_view name, std::string_view options,
                                             const kvevict::ModelInfo& model);

/// The names of all policies, in the order of kvevict::NamedPolicies.
[[nodiscard]] std::vector<std::string> policy_names();

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
