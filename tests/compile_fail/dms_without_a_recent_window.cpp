// The constraint's error names the option that the base does not have.
// expected: options.recent_window
#include "kvevict/policies/dms.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::DMSOver<kvevict::KeyDiffRecipe>;
#else
using Own = kvevict::DMSOver<kvevict::SnapKVRecipe>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
