// The chunks would take the place of the repair.
// expected: the base of EntropyGatedOver must have no selector
#include "kvevict/policies/entropy_gated_chunkkv.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/twinkv.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::EntropyGatedOver<kvevict::SnapKVRecipe>;
#else
using Own = kvevict::EntropyGatedOver<kvevict::TwinKVOver<kvevict::SnapKVRecipe>>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
