// The constraint's error names the option that the base does not have.
// expected: options.num_sink_tokens
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/offline_budgets.hpp"
#include "kvevict/policies/snapkv.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::LUKVRecipe<kvevict::KeyDiffRecipe>;
#else
using Own = kvevict::LUKVRecipe<kvevict::SnapKVRecipe>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
