#ifndef KVEVICT_TESTS_SUPPORT_PRECOMPILED_ENGINE_HPP_
#define KVEVICT_TESTS_SUPPORT_PRECOMPILED_ENGINE_HPP_

// What tests of the example engine and of kvevict_lm include. Not for inclusion: the build puts it
// first.

#include "engine/eviction.hpp"
#include "engine/transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#endif  // KVEVICT_TESTS_SUPPORT_PRECOMPILED_ENGINE_HPP_
