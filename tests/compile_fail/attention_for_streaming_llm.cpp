// A policy has no function for a signal that it does not use.
// expected: observe_attention
#include "kvevict/policies/streaming_llm.hpp"

void step(kvevict::StreamingLLM& policy, const kvevict::AttentionRows& rows) {
#ifdef KVEVICT_MUST_NOT_COMPILE
  policy.observe_attention(0, rows);
#else
  static_cast<void>(rows);
  policy.append(1);
#endif
}
