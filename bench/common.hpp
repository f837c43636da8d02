#ifndef KVEVICT_BENCH_COMMON_HPP_
#define KVEVICT_BENCH_COMMON_HPP_

#include "kvevict/kernels/kernels.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

// Names, labels and inputs that all benchmarks share. A report reads the names:
// kernel/<work>/<isa|naive>, policy/<name>/<isa|naive>, growth/<work>/<n>,
// ceiling/<fma|read|copy|l2>.
namespace kvevict_bench {

[[nodiscard]] inline std::string isa_name(kvevict::kernels::Isa isa) {
  using kvevict::kernels::Isa;
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    case Isa::kScalar:
      break;
  }
  return "scalar";
}

/// What a benchmark moves and computes in one iteration, and what it is measured against. Targets
/// stand in report.cpp.
struct Work {
  std::string ceiling = {};  ///< fma, read, copy or l2; empty: none
  double bytes = 0;
  double flops = 0;
};

inline void report(benchmark::State& state, const Work& work) {
  if (!work.ceiling.empty())
    state.SetLabel("ceiling=" + work.ceiling);
  const auto iterations = static_cast<double>(state.iterations());
  if (work.bytes > 0)
    state.SetBytesProcessed(static_cast<std::int64_t>(work.bytes * iterations));
  if (work.flops > 0)
    state.SetItemsProcessed(static_cast<std::int64_t>(work.flops * iterations));
}

/// Registers `name`/`form`: `once` is timed, `prepare` is called before it and not timed.
inline void add(const std::string& name, const std::string& form, const Work& work,
                const std::function<void()>& once) {
  benchmark::RegisterBenchmark((name + "/" + form).c_str(),
                               [=](benchmark::State& state) {
                                 for (auto unused : state) {
                                   static_cast<void>(unused);
                                   once();
                                   benchmark::ClobberMemory();
                                 }
                                 report(state, work);
                               })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

/// The same work for every instruction set of this machine.
inline void add_for_every_isa(const std::string& name, const Work& work,
                              const std::function<void(const kvevict::kernels::KernelSet&)>& once) {
  using kvevict::kernels::Isa;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!kvevict::kernels::is_available(isa))
      continue;
    const kvevict::kernels::KernelSet* set = &kvevict::kernels::get(isa);
    add(name, isa_name(isa), work, [=] { once(*set); });
  }
}

[[nodiscard]] inline std::vector<float> normal_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values)
    x = normal(random);
  return values;
}

/// Slots of the `count` largest scores, a vector of floats; unordered. What a naive form keeps.
template <class Scores>
[[nodiscard]] std::vector<std::size_t> best_slots(const Scores& all, std::size_t count) {
  const std::span<const float> scores(all.data(), static_cast<std::size_t>(all.size()));
  std::vector<std::size_t> slots(scores.size());
  std::iota(slots.begin(), slots.end(), std::size_t{0});
  std::nth_element(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(count), slots.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  slots.resize(count);
  return slots;
}

}  // namespace kvevict_bench

#endif  // KVEVICT_BENCH_COMMON_HPP_
