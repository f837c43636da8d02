// AdaKV's floors would take the place of the repair: the mask would be AdaKVKnorm's.
// expected: the base of AdaKVOver must have no selector
#include "kvevict/policies/adakv.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/twinkv.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::TwinKVOver<kvevict::AdaKVOver<kvevict::KnormRecipe>>;
#else
using Own = kvevict::AdaKVOver<kvevict::TwinKVOver<kvevict::KnormRecipe>>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
