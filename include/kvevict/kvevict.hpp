#ifndef KVEVICT_KVEVICT_HPP_
#define KVEVICT_KVEVICT_HPP_

// Everything but optional adapters. Include single headers to compile less.

#include "kvevict/any_policy.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/eviction_policy.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/rerotation.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/step_inputs.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/policies/ahakv.hpp"
#include "kvevict/policies/caote.hpp"
#include "kvevict/policies/controls.hpp"
#include "kvevict/policies/criticalkv.hpp"
#include "kvevict/policies/epikv.hpp"
#include "kvevict/policies/epikv_attention.hpp"
#include "kvevict/policies/epikv_key_value.hpp"
#include "kvevict/policies/epikv_lag.hpp"
#include "kvevict/policies/epikv_segments.hpp"
#include "kvevict/policies/h2o.hpp"
#include "kvevict/policies/inertiakv.hpp"
#include "kvevict/policies/laprox.hpp"
#include "kvevict/policies/raas.hpp"
#include "kvevict/policies/rkv.hpp"
#include "kvevict/policies/scissorhands.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/policies/value_weighted.hpp"
#include "kvevict/version.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"
#include "kvevict/views/paged_view.hpp"
#include "kvevict/views/ragged_view.hpp"

#endif  // KVEVICT_KVEVICT_HPP_
