// The concept's error names the member that is missing.
// expected: apply
#include "kvevict/policies/streaming_llm.hpp"

struct OwnPolicy : kvevict::StreamingLLM {
  using kvevict::StreamingLLM::StreamingLLM;
#ifdef KVEVICT_MUST_NOT_COMPILE
  void apply(const kvevict::KeepMask& mask) = delete;
#endif
};
static_assert(kvevict::EvictionPolicy<OwnPolicy>);
