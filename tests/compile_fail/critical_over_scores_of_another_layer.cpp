// Layers of ChunkKV may take another one's scores, which are no scores of their values.
// expected: the base of CriticalKVRecipe must have no scored_layer
#include "kvevict/policies/chunkkv.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/h2o.hpp"

#ifndef KVEVICT_MUST_NOT_COMPILE
using Own = kvevict::CriticalKVRecipe<kvevict::H2ORecipe>;
#else
using Own = kvevict::CriticalKVRecipe<kvevict::ChunkKVRecipe>;
#endif
static_assert(sizeof(kvevict::Policy<kvevict::Composed<Own>>) > 0);
