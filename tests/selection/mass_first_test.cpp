#include "kvevict/selection/mass_first.hpp"

#include "support/top_k.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace kvevict_test {
namespace {

using kvevict::MassFirst;
using Slots = std::vector<std::size_t>;

/// Sums over a window of two rows, by KV head; six slots, the window's are the last two.
struct Sums {
  std::vector<std::vector<float>> heads;

  [[nodiscard]] std::span<const float> row_sums(std::size_t /*layer*/, std::size_t head) const {
    return heads[head];
  }
  [[nodiscard]] static std::size_t window() { return 2; }
};

struct Prompt {
  kvevict::CacheShape shape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};
  kvevict::Sequence sequence{"test", shape, kvevict::MaskScope::kHead};
  Sums sums{{{.8F, .4F, .2F, .2F, 0, 0}, {.2F, .2F, .2F, .2F, 0, 0}}};
  std::vector<Lane> lanes = {Lane({0, 1, 2, 3, 0, 0}), Lane({0, 0, 9, 8, 0, 0})};

  Prompt() {
    sequence.begin(6, {});
    sequence.append(6);
    for (Lane& lane : lanes) {
      lane.protect(4);
      lane.protect(5);
    }
  }
};

// The window holds 1 - 1.6 / 2 = .2 and 1 - .8 / 2 = .6, mean .4. A mass of .95 leaves .55: of lane
// 0 .8 < .88 = .55 1.6 <= 1.2, one token; of lane 1 .4 < .44 <= .6, two, of equal ones the first.
// Then by score 9, 8 and 3.
TEST(MassFirst, TokensThatHoldTheMassThenTheBest) {
  const Prompt p;
  EXPECT_EQ(chosen(MassFirst(.95, false), 6, p.lanes, SequenceInput{p.sequence}, p.sums),
            (std::vector<Slots>{{0, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}));
}

TEST(MassFirst, AtMostAnEqualPartOfTheQuota) {
  const Prompt p;
  EXPECT_EQ(chosen(MassFirst(.95, false), 2, p.lanes, SequenceInput{p.sequence}, p.sums),
            (std::vector<Slots>{{0, 4, 5}, {0, 4, 5}}));
}

// The two slots before the window in the place of it: (.2 + .2) / 2 in both lanes.
TEST(MassFirst, TheAuthorsCodeMeasuresTheSlotsBeforeTheWindow) {
  const Prompt p;
  // .94 leaves .74: .8 < 1.184 <= 1.2, one token, and .4 < .592 <= .6, two; then 9, 8 and 3.
  EXPECT_EQ(chosen(MassFirst(.94, true), 6, p.lanes, SequenceInput{p.sequence}, p.sums),
            (std::vector<Slots>{{0, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}));
  // .99 leaves .79: 1.2 < 1.264 and .6 < .632, a token more of each; then 8.
  EXPECT_EQ(chosen(MassFirst(.99, true), 6, p.lanes, SequenceInput{p.sequence}, p.sums),
            (std::vector<Slots>{{0, 1, 4, 5}, {0, 1, 2, 3, 4, 5}}));
}

}  // namespace
}  // namespace kvevict_test
