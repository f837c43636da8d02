#include "engine/policies.hpp"

#include "kvevict/make_policy.hpp"

namespace engine {
namespace {

template <class... Policies>
std::vector<std::string> names_of(kvevict::PolicyList<Policies...> /*list*/) {
  return {std::string(Policies::kName)...};
}

}  // namespace

kvevict::AnyPolicy make_policy(std::string_view name, std::string_view options,
                               const kvevict::ModelInfo& model) {
  return kvevict::make_policy(name, options, model);
}

std::vector<std::string> policy_names() {
  return names_of(kvevict::NamedPolicies{});
}

}  // namespace engine
