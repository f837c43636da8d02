#include "engine/policies.hpp"

template kvevict::AnyPolicy kvevict::make_policy<kvevict::NamedPolicies>(
    std::string_view name, std::string_view options, const kvevict::ModelInfo& model);

namespace engine {
namespace {

template <class... Policies>
std::vector<std::string> names_of(kvevict::PolicyList<Policies...> /*list*/) {
  return {std::string(Policies::kName)...};
}

}  // namespace

std::vector<std::string> policy_names() {
  return names_of(kvevict::NamedPolicies{});
}

}  // namespace engine
