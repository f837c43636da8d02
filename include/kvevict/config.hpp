#ifndef KVEVICT_CONFIG_HPP_
#define KVEVICT_CONFIG_HPP_

#include "kvevict/version.hpp"

#include <cstddef>
#include <cstdint>

// What depends on compiler, machine and build flags, in one file.

// 0 leaves the scalar kernels only. Every translation unit of a program has to agree, so CMake
// puts the value on the target; the inline namespace below keeps units apart that do not.
#ifndef KVEVICT_ENABLE_SIMD
#define KVEVICT_ENABLE_SIMD 1
#endif

// 1 for every unit of a program: its kernels are compiled in one of them alone, the one that
// defines KVEVICT_DEFINE_KERNELS before it includes kernels/kernels.hpp. 0: each unit has its own,
// inline.
#ifndef KVEVICT_SHARED_KERNELS
#define KVEVICT_SHARED_KERNELS 0
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

// Before a loop of few and constant rounds over vectors that stay in registers: below -O3 GCC would
// keep them in memory. Other compilers unroll by themselves.
#if defined(__GNUC__) && !defined(__clang__)
#define KVEVICT_UNROLL _Pragma("GCC unroll 16")
#else
#define KVEVICT_UNROLL
#endif

// Keeps a product out of a fused multiply-add, which compilers form where they like: equal inputs
// would then differ in the last bit between a vector's lanes and its tail, and between machines.
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define KVEVICT_ROUND(x) __asm__("" : "+x"(x))
#define KVEVICT_ROUND_ZMM(x) __asm__("" : "+v"(x))
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
#define KVEVICT_ROUND(x) __asm__("" : "+w"(x))
#else
#define KVEVICT_ROUND(x) static_cast<void>(x)
#endif

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
