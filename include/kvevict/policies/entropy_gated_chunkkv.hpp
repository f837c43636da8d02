#ifndef KVEVICT_POLICIES_ENTROPY_GATED_CHUNKKV_HPP_
#define KVEVICT_POLICIES_ENTROPY_GATED_CHUNKKV_HPP_

#include "kvevict/config.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/entropy_gated_chunks.hpp"

#include <cstddef>
#include <string_view>

KVEVICT_NAMESPACE_BEGIN

/// What EntropyGatedChunkKV adds to the options of the recipe below it. Its budget is one of tokens
/// per layer.
template <class Base>
struct EntropyGatedOptions : Base::Options {
  std::size_t chunk_len = 10;       ///< tokens that are looked at together, > 1
  std::size_t low_entropy_len = 4;  ///< tokens that stay of an important chunk of low entropy
};

/// Chunks stay whole where their tokens are of equal worth, and give their best tokens alone where
/// one or two make their score (EntropyGatedChunkKV of kvpress, after ChunkKV, arXiv 2502.00299),
/// so that an important token does not cost a chunk's worth of cache: EntropyGatedChunks over the
/// scores of another recipe, summed over the heads of a layer, which keep one set.
///
/// What the other recipe protects stays, on top of the chunks; kvpress gives the window of SnapKV a
/// score above all others and lets it go into chunks, means and entropies. The other recipe must
/// have no selector.
template <Recipe Base>
struct EntropyGatedOver : Base {
  static_assert(!detail::Selects<Base>,
                "the base of EntropyGatedOver must have no selector, which would be dropped");
  using Options = EntropyGatedOptions<Base>;
  static constexpr std::string_view kPrefix = "EntropyGatedChunk";
  static constexpr std::string_view kName = Base::kName == SnapKVRecipe::kName
                                                ? "EntropyGatedChunkKV"
                                                : detail::JoinedName<kPrefix, Base::kName>::kName;

  static void check(const Options& options, const CacheShape& shape) {
    detail::check_recipe<Base>(options, shape);
    gate(options).check(kName);
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Base::pipeline(options, shape) | HeadReduction{GroupReduce::kSum};
  }
  static auto selector(const Options& options) { return EntropyGatedChunks(gate(options)); }
  static MaskScope scope(const Options& /*options*/) noexcept { return MaskScope::kLayer; }

  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    Base::visit_options(options, visit);
    visit("chunk_len", options.chunk_len);
    visit("low_entropy_len", options.low_entropy_len);
  }

 private:
  [[nodiscard]] static EntropyGateOptions gate(const Options& options) noexcept {
    return {.chunk_len = options.chunk_len, .low_entropy_len = options.low_entropy_len};
  }
};

// policy: EntropyGatedChunkKV
//   | `mean_chunk sum_H pool_5(sum_w mean_h a[h,t,i])`; a good chunk of low entropy keeps its best
//     4
//   | last rows of the prompt | - | layer | at prompt ends | 4 B per KV head | none | kvpress
using EntropyGatedChunkKV = Policy<Composed<EntropyGatedOver<SnapKVRecipe>>>;

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_POLICIES_ENTROPY_GATED_CHUNKKV_HPP_
