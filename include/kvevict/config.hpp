#ifndef KVEVICT_CONFIG_HPP_
#define KVEVICT_CONFIG_HPP_

#include "kvevict/version.hpp"

#include <cassert>
#include <cstddef>
#include <cstdint>

// What depends on compiler, machine and build flags, in one file.

// 0 leaves the scalar kernels only. Every translation unit of a program has to agree, so CMake
// puts the value on the target; the inline namespace below keeps units apart that do not.
#ifndef KVEVICT_ENABLE_SIMD
#define KVEVICT_ENABLE_SIMD 1
#endif

#if KVEVICT_ENABLE_SIMD && (defined(__x86_64__) || defined(_M_X64))
#define KVEVICT_HAS_X86 1
#else
#define KVEVICT_HAS_X86 0
#endif

#if KVEVICT_ENABLE_SIMD && defined(__aarch64__)
#define KVEVICT_HAS_NEON 1
#else
#define KVEVICT_HAS_NEON 0
#endif

// Lets one function use instructions that the build does not, so users need no -m flag.
#if defined(__GNUC__) || defined(__clang__)
#define KVEVICT_TARGET(isa) __attribute__((target(isa)))
#else
#define KVEVICT_TARGET(isa)
#endif

// A programming error in a loop; options and shapes are checked by exceptions instead.
#define KVEVICT_ASSERT(condition) assert(condition)

// Everything lives in an inline namespace that names the version and the SIMD setting: two
// vendored copies, or two units with different settings, never share a symbol.
#if KVEVICT_ENABLE_SIMD
#define KVEVICT_NAMESPACE_BEGIN \
  namespace kvevict {           \
  inline namespace v0 {
#else
#define KVEVICT_NAMESPACE_BEGIN \
  namespace kvevict {           \
  inline namespace v0_scalar {
#endif
#define KVEVICT_NAMESPACE_END \
  }                           \
  }

#endif  // KVEVICT_CONFIG_HPP_
