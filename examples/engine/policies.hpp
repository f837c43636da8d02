#ifndef KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
#define KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_

#include "kvevict/any_policy.hpp"

#include <string_view>

namespace engine {

/// kvevict::make_policy over all policies. A function with a file of its own: they take a minute to
/// compile, once.
[[nodiscard]] kvevict::AnyPolicy make_policy(std::string_view name, std::string_view options,
                                             const kvevict::ModelInfo& model);

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_POLICIES_HPP_
