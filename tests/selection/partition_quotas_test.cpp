#include "kvevict/selection/partition_quotas.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::PartitionQuotas;
using Slots = std::vector<std::size_t>;

// A sink, then partitions 1-2 and 3-4, which have another one behind them; 5-6 has none.
struct Partitions {
  kvevict::CacheShape shape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  kvevict::Sequence sequence{"test", shape, kvevict::MaskScope::kHead};
  PartitionQuotas one{{.num_sink_tokens = 1, .lag_len = 2}, 1};

  Partitions() { sequence.append(7); }
};

TEST(PartitionQuotas, TheBestOfEachPartitionStayAndAllOutside) {
  const Partitions p;
  EXPECT_EQ(chosen(p.one, 5, {Lane({0, 1, 2, 4, 3, 0, 0})}, SequenceInput{p.sequence})[0],
            (Slots{0, 2, 3, 5, 6}));
}

TEST(PartitionQuotas, PinnedTokensTakeAPlaceOfTheirPartition) {
  const Partitions p;
  Lane lane({0, 1, 2, 4, 3, 0, 0});
  lane.protect(1);
  EXPECT_EQ(chosen(p.one, 4, {lane}, SequenceInput{p.sequence})[0], (Slots{0, 1, 3, 5, 6}));
}

}  // namespace
}  // namespace kvevict_test
