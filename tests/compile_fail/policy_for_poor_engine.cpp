// An engine that states what it can supply is refused a policy that needs more.
// expected: (constraint|PolicyForInputs)
#include "kvevict/kvevict.hpp"

template <kvevict::Inputs kSupplied, kvevict::PolicyForInputs<kSupplied> P>
void run(const P& policy) {
  static_cast<void>(policy.should_evict());
}

#ifdef KVEVICT_MUST_NOT_COMPILE
using Chosen = kvevict::EpiKV;
#else
using Chosen = kvevict::StreamingLLM;
#endif

void engine_without_hidden_states(const Chosen& policy) {
  run<kvevict::Inputs::kKeys>(policy);
}
