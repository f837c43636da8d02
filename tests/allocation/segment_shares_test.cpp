#include "kvevict/allocation/segment_shares.hpp"

#include "kvevict/allocation/profiled_budgets.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace kvevict {
namespace {

using Numbers = std::vector<std::size_t>;

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

Numbers numbers(const Allocation& allocation) {
  return {allocation.lane_budgets.begin(), allocation.lane_budgets.end()};
}

/// Slots 2-5 keep two, 6-11 all.
struct Segments {
  struct Share {
    std::size_t first;
    std::size_t last;
    std::size_t count;
  };
  [[nodiscard]] static std::vector<Share> shares(const Sequence& /*sequence*/, std::size_t /*lane*/,
                                                 std::size_t /*budget*/) {
    return {{2, 6, 2}, {6, 12, 6}};
  }
};

TEST(SegmentShares, EveryLaneHasWhatTheSegmentsLeave) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.append(12);
  EXPECT_EQ(numbers(SegmentShares(99, 2).allocation(sequence, Segments())), (Numbers{10, 10}));
}

/// Head 0 keeps all; head 1 three with labels, four heavy and five recent ones.
struct Profile {
  bool known = true;

  [[nodiscard]] bool profiled() const { return known; }
  [[nodiscard]] static bool keeps_all(std::size_t lane) { return lane == 0; }
  [[nodiscard]] static std::size_t num_labelled(std::size_t /*lane*/) { return 3; }
  [[nodiscard]] static std::size_t num_heavy(std::size_t /*lane*/) { return 4; }
  [[nodiscard]] static std::size_t num_recent(std::size_t /*lane*/) { return 5; }
};

TEST(ProfiledBudgets, AHeadHasRoomForWhatItsProfileKeeps) {
  const ProfiledBudgets budgets(kShape);
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(9, {});
  sequence.append(8);
  EXPECT_EQ(numbers(budgets.allocation(sequence, Profile())), Numbers());  // inside a prompt
  sequence.append(1);
  EXPECT_EQ(numbers(budgets.allocation(sequence, Profile())), (Numbers{kAll, 12}));
  EXPECT_TRUE(budgets.allocation(sequence, Profile()).protected_extra);
  EXPECT_EQ(numbers(budgets.allocation(sequence, Profile{false})), Numbers());
}

}  // namespace
}  // namespace kvevict
