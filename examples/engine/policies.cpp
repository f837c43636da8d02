#include "engine/policies.hpp"

namespace engine {

kvevict::AnyPolicy make_policy(std::string_view name, std::string_view options,
                               const kvevict::ModelInfo& model) {
  return kvevict::make_policy(name, options, model);
}

}  // namespace engine
