#ifndef KVEVICT_SCORING_POOLING_HPP_
#define KVEVICT_SCORING_POOLING_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/kernels/kernel_set.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

KVEVICT_NAMESPACE_BEGIN

enum class PoolKind : std::uint8_t { kAverage, kMax };

[[nodiscard]] constexpr auto enum_names(PoolKind /*type*/) noexcept {
  return std::array<std::pair<std::string_view, PoolKind>, 2>{
      {{"average", PoolKind::kAverage}, {"max", PoolKind::kMax}}};
}

/// Smoothing of scores over neighbouring slots, so that what stands beside an important token
/// stays with it.
struct Pooling {
  PoolKind kind = PoolKind::kAverage;
  std::size_t kernel_size = 5;  ///< slots under the kernel, odd; 1 switches pooling off
  kernels::PoolEdge edge = kernels::PoolEdge::kZeroCounted;  ///< of an average

  /// Throws InvalidArgument, naming `where`, for a kernel that has no centre.
  void check(std::string_view where) const {
    detail::require(kernel_size % 2 == 1, where, "pooling.kernel_size", kernel_size, "must be odd");
  }
  /// As a recipe's visit_options.
  template <class Visit>
  void visit_options(Visit&& visit) {
    visit("pooling", kind);
    visit("pool_kernel_size", kernel_size);
  }
  /// @param out  of the size of `x`, not overlapping it
  void apply(std::span<const float> x, const kernels::KernelSet& kernel,
             std::span<float> out) const noexcept {
    if (kernel_size == 1) {
      std::copy(x.begin(), x.end(), out.begin());
    } else if (kind == PoolKind::kAverage) {
      kernel.average_pool(x.data(), x.size(), kernel_size, edge, out.data());
    } else {
      kernel.max_pool(x.data(), x.size(), kernel_size, out.data());
    }
  }
  /// The same of each run of slots that hold a token: a slot that holds none is an edge, as if the
  /// sequence ended there, and becomes 0 whatever lies there (rule R9).
  /// @param valid  [x.size()] 0 where a slot holds no token; empty: all do
  void apply(std::span<const float> x, std::span<const std::uint8_t> valid,
             const kernels::KernelSet& kernel, std::span<float> out) const noexcept {
    if (valid.empty())
      return apply(x, kernel, out);
    for (std::size_t first = 0; first < x.size();) {
      std::size_t last = first + 1;
      while (last < x.size() && (valid[last] != 0) == (valid[first] != 0))
        ++last;
      const std::span<float> run = out.subspan(first, last - first);
      if (valid[first] != 0) {
        apply(x.subspan(first, run.size()), kernel, run);
      } else {
        std::fill(run.begin(), run.end(), 0.0F);
      }
      first = last;
    }
  }
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_POOLING_HPP_
