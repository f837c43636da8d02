// The table would take the place of the layers that are skipped.
// expected: the base of LUKVRecipe must have no allocator
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/offline_budgets.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::LUKVRecipe<kvevict::KnormRecipe>;
#else
using Own = kvevict::LUKVRecipe<kvevict::KnormOfLayersRecipe>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
