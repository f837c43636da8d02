#include "kvevict/selection/streaming_top_k.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace kvevict {
namespace {

/// The definition: what the mask form does, token by token.
class Reference {
 public:
  Reference(std::size_t budget, std::size_t recent_window)
      : budget_(budget), recent_window_(recent_window) {}

  void push_prompt(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      tokens_.push_back({length_++, 0.0F, true});
  }
  void push(float score) { tokens_.push_back({length_++, score, false}); }
  void truncate(std::size_t length) {
    while (!tokens_.empty() && tokens_.back().position >= length)
      tokens_.pop_back();
    length_ = length;
  }
  /// Cuts to the budget; returns the positions that go, ascending.
  std::vector<std::size_t> cut() {
    std::vector<bool> keep(tokens_.size(), false);
    std::size_t room = budget_;
    for (std::size_t s = 0; s < tokens_.size(); ++s) {
      if (!tokens_[s].prompt)
        continue;
      keep[s] = true;
      room -= std::min<std::size_t>(room, 1);
    }
    for (std::size_t age = 0; age < std::min(recent_window_, tokens_.size()); ++age) {
      const std::size_t s = tokens_.size() - 1 - age;
      if (keep[s] || room == 0)
        continue;
      keep[s] = true;
      --room;
    }
    std::vector<std::size_t> rest;
    for (std::size_t s = 0; s < tokens_.size(); ++s) {
      if (!keep[s])
        rest.push_back(s);
    }
    std::stable_sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) {
      return kernels::order_key(tokens_[a].score) > kernels::order_key(tokens_[b].score);
    });
    for (std::size_t i = 0; i < std::min(room, rest.size()); ++i)
      keep[rest[i]] = true;
    std::vector<std::size_t> gone;
    std::vector<Token> left;
    for (std::size_t s = 0; s < tokens_.size(); ++s) {
      if (keep[s]) {
        left.push_back(tokens_[s]);
      } else {
        gone.push_back(tokens_[s].position);
      }
    }
    tokens_ = left;
    return gone;
  }

 private:
  struct Token {
    std::size_t position;
    float score;
    bool prompt;
  };
  std::size_t budget_;
  std::size_t recent_window_;
  std::size_t length_ = 0;
  std::vector<Token> tokens_;
};

std::vector<std::size_t> drain(StreamingTopK& keep) {
  std::vector<std::size_t> gone;
  while (const std::optional<Position> position = keep.pop()) {
    gone.push_back(static_cast<std::size_t>(*position));
  }
  std::sort(gone.begin(), gone.end());
  return gone;
}

TEST(StreamingTopK, DropsTheWorstOutsideTheWindow) {
  StreamingTopK keep(5, 2);  // one prompt token, two by score, two recent
  keep.push_prompt(1);
  for (const float score : {3.0F, 1.0F, 2.0F, 0.0F})
    keep.push(score);
  EXPECT_FALSE(keep.pop());
  keep.push(9.0F);  // positions 1, 2, 3 compete with 3, 1, 2
  EXPECT_EQ(drain(keep), (std::vector<std::size_t>{2}));
  keep.push(9.0F);  // position 4 with score 0 has left the window
  EXPECT_EQ(drain(keep), (std::vector<std::size_t>{4}));
  EXPECT_EQ(keep.size(), 5U);
  EXPECT_EQ(keep.length(), 7U);
}

TEST(StreamingTopK, TieKeepsTheEarlierToken) {
  StreamingTopK keep(2, 0);
  for (const float score : {1.0F, 0.0F, -0.0F, 1.0F})
    keep.push(score);
  // R3: of the two zeros the later one goes first, then the other.
  EXPECT_EQ(keep.pop(), std::optional<Position>(2));
  EXPECT_EQ(keep.pop(), std::optional<Position>(1));
  EXPECT_FALSE(keep.pop());
}

TEST(StreamingTopK, NaNGoesBeforeMinusInfinity) {
  StreamingTopK keep(1, 0);
  keep.push(-std::numeric_limits<float>::infinity());
  keep.push(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(keep.pop(), std::optional<Position>(1));
}

TEST(StreamingTopK, PromptOverTheBudgetLeavesNothingToDecoding) {
  StreamingTopK keep(3, 1);
  keep.push_prompt(5);
  EXPECT_FALSE(keep.pop());
  keep.push(100.0F);
  EXPECT_EQ(drain(keep), (std::vector<std::size_t>{5}));
  EXPECT_EQ(keep.size(), 5U);
}

TEST(StreamingTopK, WindowThatDoesNotFitKeepsTheNewest) {
  StreamingTopK keep(5, 4);
  keep.push_prompt(3);
  for (std::size_t i = 0; i < 4; ++i) {
    keep.push(static_cast<float>(10 - i));
    EXPECT_EQ(drain(keep), i < 2 ? std::vector<std::size_t>{} : std::vector<std::size_t>{i + 1});
  }
}

// Several tokens a step, further prompts, rollback, few distinct scores.
TEST(StreamingTopK, EqualsSelectionOnRandomRuns) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    const std::size_t budget = below(30);
    const std::size_t recent_window = below(12);
    const std::size_t distinct = 1 + below(6);
    StreamingTopK keep(budget, recent_window);
    Reference reference(budget, recent_window);
    const auto prompt = [&](std::size_t count) {
      keep.push_prompt(count);
      reference.push_prompt(count);
    };
    prompt(below(12));
    for (std::size_t step = 0; step < 60; ++step) {
      const std::size_t what = below(20);
      if (what == 0)
        prompt(below(6));
      if (what == 1) {
        const std::size_t length = keep.length() - std::min(keep.length(), below(15));
        keep.truncate(length);
        reference.truncate(length);
        ASSERT_EQ(keep.length(), length);
      }
      const std::size_t count = 1 + (what == 2 ? below(9) : 0);
      for (std::size_t i = 0; i < count; ++i) {
        const float score = distinct == 6 && below(10) == 0
                                ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(below(distinct));
        keep.push(score);
        reference.push(score);
      }
      ASSERT_EQ(drain(keep), reference.cut()) << "seed " << seed << ", step " << step;
    }
  }
}

TEST(StreamingTopK, CopyIsAFork) {
  StreamingTopK keep(2, 0);
  keep.push(1.0F);
  keep.push(2.0F);
  StreamingTopK fork = keep;
  fork.push(3.0F);
  EXPECT_EQ(fork.pop(), std::optional<Position>(0));
  EXPECT_FALSE(keep.pop());
  keep.reset();
  EXPECT_EQ(keep.size(), 0U);
  EXPECT_EQ(keep.length(), 0U);
}

}  // namespace
}  // namespace kvevict
