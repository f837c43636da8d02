#ifndef KVEVICT_TESTS_SUPPORT_PRECOMPILED_HPP_
#define KVEVICT_TESTS_SUPPORT_PRECOMPILED_HPP_

// The large headers of others that most tests include. Not for inclusion: the build puts it first.

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
