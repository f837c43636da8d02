#include "kvevict/scoring/observation_window.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvevict;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

Sequence after_prompt(std::size_t len, std::size_t decoded = 0) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(len, {});
  sequence.append(len);
  if (decoded > 0)
    sequence.append(decoded);
  return sequence;
}

void expect_window(const ObservationWindow& window, std::size_t first, std::size_t prefix_end,
                   std::size_t prompt_end) {
  EXPECT_EQ(window.first, first);
  EXPECT_EQ(window.prefix_end, prefix_end);
  EXPECT_EQ(window.prompt_end, prompt_end);
}

TEST(ObservationWindow, IsTheEndOfThePrompt) {
  expect_window(find_observation_window(after_prompt(10), 0, 4, {}), 0, 6, 10);
  expect_window(find_observation_window(after_prompt(10, 3), 0, 4, {}), 0, 6, 10);
  expect_window(find_observation_window(after_prompt(4), 0, 4, {}), 0, 0, 4);
  expect_window(find_observation_window(after_prompt(3), 0, 4, {}), 0, 0, 3);
}

TEST(ObservationWindow, CountsValidSlotsOnly) {
  const std::vector<std::uint8_t> padded{0, 0, 1, 1, 1, 1, 0, 1};
  expect_window(find_observation_window(after_prompt(8), 0, 2, padded), 2, 5, 8);
  expect_window(find_observation_window(after_prompt(8), 0, 9, padded), 2, 2, 8);
  const std::vector<std::uint8_t> none(8, 0);
  expect_window(find_observation_window(after_prompt(8), 0, 2, none), 8, 8, 8);
}

// Known from the first chunk of the prompt on, and the same for all of them.
TEST(ObservationWindow, PastIsThatOfTheWholePrompt) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  sequence.begin(20, {});
  for (std::size_t done = 0; done < 20; done += 5) {
    EXPECT_EQ(past_of_window(sequence, 0, 0, 8), 12U);
    EXPECT_EQ(past_of_window(sequence, 0, 0, 25), 0U);
    sequence.append(5);
  }
  EXPECT_EQ(past_of_window(sequence, 0, 0, 8), 12U);
}

}  // namespace
