#ifndef KVEVICT_TESTS_SUPPORT_PRECOMPILED_HPP_
#define KVEVICT_TESTS_SUPPORT_PRECOMPILED_HPP_

// What most tests include: the large headers of others, and of this library what every policy is
// made of. Not for inclusion: the build puts it first.

#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/attention_signals.hpp"
#include "kvevict/scoring/cache_signals.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#endif  // KVEVICT_TESTS_SUPPORT_PRECOMPILED_HPP_
