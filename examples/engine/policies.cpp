#include "engine/policies.hpp"

template kvevict::AnyPolicy kvevict::make_policy<kvevict::NamedPolicies>(
    std::string_view name, std::string_view options, const kvevict::ModelInfo& model);
