#ifndef KVEVICT_SCORING_TOKEN_VARIANCE_HPP_
#define KVEVICT_SCORING_TOKEN_VARIANCE_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/scratch.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/kernels/kernel_set.hpp"
#include "kvevict/scoring/kv_part.hpp"
#include "kvevict/scoring/row_blocks.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// How uneven a token's key or value is: the sample variance over channels, averaged over layers
/// and KV heads (EpiKV, arXiv 2606.26472, section 4.4: "key variance").
///
/// @param first  first slot to look at; out.size() slots from there
/// @param out    overwritten; not finite where a row is not
/// @note  O(layers * kv_heads * slots * dim). Uses scratch buffers 0 and 1.
inline void token_variances(const ViewRef& view, KvPart part, std::size_t first,
                            const kernels::KernelSet& kernel, Scratch& scratch,
                            std::span<float> out) {
  const CacheShape shape = view.shape();
  const auto share = 1.0F / static_cast<float>(shape.num_layers * shape.num_kv_heads);
  const std::span<float> variances = scratch.floats(1, out.size());
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::size_t head = 0; head < shape.num_kv_heads; ++head) {
      for_each_row_block(rows_of(view.lane(layer, head), part), dim_of(shape, part), first,
                         first + out.size(), kernel, scratch.vector(0),
                         [&](const kernels::RowBlock& rows, std::size_t slot) {
                           kernel.row_variances(rows, variances.data() + (slot - first));
                         });
      // Not kernel.add, which would leave out what is not finite.
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] += share * variances[i];
    }
  }
}

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_TOKEN_VARIANCE_HPP_
