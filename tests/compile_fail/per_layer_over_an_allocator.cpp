// The table would take the place of AdaKV's competition: the mask would be PerLayerKnorm's.
// expected: the base of PerLayerRecipe must have no allocator
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/offline_budgets.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::AdaKVOver<kvevict::PerLayerRecipe<kvevict::KnormRecipe>>;
#else
using Own = kvevict::PerLayerRecipe<kvevict::AdaKVOver<kvevict::KnormRecipe>>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
