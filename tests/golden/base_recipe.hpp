#ifndef KVEVICT_TESTS_GOLDEN_BASE_RECIPE_HPP_
#define KVEVICT_TESTS_GOLDEN_BASE_RECIPE_HPP_

#include "golden/expected_prompt.hpp"
#include "golden/window_prompt.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/expected_attention.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "support/golden.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace kvevict_test {

/// Options of a scorer inside another policy, whose options may be derived from the scorer's.
inline void set_base_options(const GoldenCase& /*golden*/, std::size_t budget,
                             kvevict::CacheScoreOptions& options) {
  options.budget = budget;
  options.only_at_prefill_end = true;
}
inline void set_base_options(const GoldenCase& golden, std::size_t budget,
                             kvevict::ExpectedAttentionOptions& options) {
  set_expected_options(golden, options);
  options.budget = budget;
  options.use_value_norm = golden.has("use_vnorm") && golden.count("use_vnorm") != 0;
}

/// Calls run(type of the recipe, prompt) for the scorer that `text base` names, if it is one that
/// looks at the cache or at queries to come.
template <class Run>
void with_base_recipe(const GoldenCase& golden, Run&& run) {
  const std::string& base = golden.text("base");
  if (base == "knorm") {
    run(std::type_identity<kvevict::KnormRecipe>(), WindowPrompt(golden, std::size_t{0}));
  } else if (base == "keydiff") {
    run(std::type_identity<kvevict::KeyDiffRecipe>(), WindowPrompt(golden, std::size_t{0}));
  } else if (base == "expected") {
    run(std::type_identity<kvevict::ExpectedAttentionRecipe<false>>(), expected_prompt(golden));
  } else {
    throw std::runtime_error(golden.path() + ": no base " + base);
  }
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_BASE_RECIPE_HPP_
