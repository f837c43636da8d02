#include "kvevict/core/token_label.hpp"

#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 1, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 1};
constexpr TokenLabel kOther = TokenLabel::kOther;
constexpr TokenLabel kSpecial = TokenLabel::kSpecial;
constexpr TokenLabel kPunctuation = TokenLabel::kPunctuation;
using Labels = std::vector<TokenLabel>;

Labels labels_of(const TokenLabels& labels, std::size_t length) {
  Labels all;
  for (std::size_t position = 0; position < length; ++position)
    all.push_back(labels.at(position));
  return all;
}

TEST(TokenLabels, BelongToTheNewestTokens) {
  TokenLabels labels;
  labels.append(4);
  labels.set_newest(Labels{kSpecial, kOther, kPunctuation});
  EXPECT_EQ(labels_of(labels, 4), (Labels{kOther, kSpecial, kOther, kPunctuation}));
  EXPECT_EQ(labels.num_special(), 1U);
  EXPECT_EQ(labels.num_punctuation(), 1U);
}

TEST(TokenLabels, ASecondCallTakesThePlaceOfTheFirst) {
  TokenLabels labels;
  labels.append(2);
  labels.set_newest(Labels{kSpecial, kSpecial});
  labels.set_newest(Labels{kPunctuation});
  EXPECT_EQ(labels_of(labels, 2), (Labels{kSpecial, kPunctuation}));
  EXPECT_EQ(labels.num_special(), 1U);
}

TEST(TokenLabels, TokensTakenBackLoseThem) {
  Sequence sequence("test", kShape, MaskScope::kHead);
  TokenLabels labels;
  sequence.append(3);
  labels.append(3);
  labels.set_newest(Labels{kSpecial, kPunctuation, kSpecial});
  sequence.truncate(1);
  labels.truncate(sequence);
  EXPECT_EQ(labels.num_special(), 1U);
  EXPECT_EQ(labels.num_punctuation(), 0U);
  labels.append(1);
  EXPECT_EQ(labels_of(labels, 2), (Labels{kSpecial, kOther}));
  labels.reset();
  EXPECT_EQ(labels.num_special(), 0U);
}

}  // namespace
}  // namespace kvevict
