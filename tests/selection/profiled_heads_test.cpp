#include "kvevict/selection/profiled_heads.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict_test {
namespace {

using Slots = std::vector<std::size_t>;

/// The token at position 1 has a label that is kept.
struct Profile {
  std::size_t recent = 1;
  std::size_t heavy = 2;

  [[nodiscard]] static bool keeps_label_of(std::size_t /*lane*/, std::size_t position) {
    return position == 1;
  }
  [[nodiscard]] std::size_t num_recent(std::size_t /*lane*/) const { return recent; }
  [[nodiscard]] std::size_t num_heavy(std::size_t /*lane*/) const { return heavy; }
};

Slots kept(const Profile& profile, std::size_t quota) {
  const kvevict::CacheShape shape{
      .num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  kvevict::Sequence sequence("test", shape, kvevict::MaskScope::kHead);
  sequence.append(6);
  return chosen(kvevict::ProfiledHeads(), quota, {Lane({5, 1, 2, 3, 4, 0})},
                SequenceInput{sequence}, profile)[0];
}

TEST(ProfiledHeads, LabelsThenTheNewestThenTheBest) {
  EXPECT_EQ(kept({}, 4), (Slots{0, 1, 4, 5}));
  EXPECT_EQ(kept({}, 2), (Slots{1, 5}));
  EXPECT_EQ(kept({}, 1), (Slots{1}));
}

TEST(ProfiledHeads, AHeadWithoutHeavyOnesLeavesItsQuota) {
  EXPECT_EQ(kept({.recent = 2, .heavy = 0}, 5), (Slots{1, 4, 5}));
}

}  // namespace
}  // namespace kvevict_test
