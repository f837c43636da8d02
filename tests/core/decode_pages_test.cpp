#include "kvevict/core/decode_pages.hpp"

#include "support/masks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace kvevict {
namespace {

using Pages = std::vector<std::pair<std::size_t, std::size_t>>;

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};

Pages pages_of(const Sequence& sequence) {
  Pages pages;
  DecodePages{.size = 2}.for_each(sequence, 0, [&](std::size_t first, std::size_t last) {
    pages.push_back({first, last});
  });
  return pages;
}

TEST(DecodePages, CountFromTheEndOfEachPrompt) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.begin(3, {});
  sequence.append(3);
  EXPECT_EQ(pages_of(sequence), Pages());
  sequence.append(5);
  EXPECT_EQ(pages_of(sequence), (Pages{{3, 5}, {5, 7}, {7, 8}}));
  sequence.begin(2, {});
  sequence.append(2);
  sequence.append(1);
  EXPECT_EQ(pages_of(sequence), (Pages{{3, 5}, {5, 7}, {7, 8}, {10, 11}}));
}

TEST(DecodePages, AreOfPositions) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.begin(3, {});
  sequence.append(3);
  sequence.append(5);
  sequence.apply(kvevict_test::mask_of("11110111"));
  EXPECT_EQ(pages_of(sequence), (Pages{{3, 4}, {4, 6}, {6, 7}}));
  // A page that is gone is no page.
  sequence.apply(kvevict_test::mask_of("1111001"));
  EXPECT_EQ(pages_of(sequence), (Pages{{3, 4}, {4, 5}}));
}

// Each prompt begins pages of its own too.
TEST(DecodePages, GoWithThoseOfPrompts) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.begin(3, {});
  sequence.append(3);
  sequence.append(3);
  sequence.begin(2, {});
  sequence.append(2);
  sequence.append(1);
  sequence.apply(kvevict_test::mask_of("011101111"));
  Pages prompts;
  Pages decoded;
  DecodePages{.size = 2}.for_each_with_prompts(
      sequence, 0, [&](std::size_t first, std::size_t last, bool is_decoded) {
        (is_decoded ? decoded : prompts).push_back({first, last});
      });
  EXPECT_EQ(prompts, (Pages{{0, 1}, {1, 2}, {4, 6}}));
  EXPECT_EQ(decoded, (Pages{{2, 3}, {3, 4}, {6, 7}}));
  EXPECT_EQ(decoded, pages_of(sequence));
}

TEST(DecodePages, WithoutAPromptAllIsDecoded) {
  Sequence sequence("test", kShape, MaskScope::kModel);
  sequence.append(3);
  EXPECT_EQ(pages_of(sequence), (Pages{{0, 2}, {2, 3}}));
}

}  // namespace
}  // namespace kvevict
