#include "kvevict/policies/entropy_gated_chunkkv.hpp"

#include "kvevict/policies/key_geometry.hpp"
#include "support/errors.hpp"
#include "support/masks.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

namespace kvevict {
namespace {

using kvevict_test::feed_rows;
using kvevict_test::refuses;
using kvevict_test::text_of;
using kvevict_test::WindowCache;

constexpr CacheShape kTwoHeads{.num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 1};

EntropyGatedChunkKV::Options options_of(std::size_t budget) {
  EntropyGatedChunkKV::Options options;
  options.budget = budget;
  options.observation_window = 1;
  options.pooling.kernel_size = 1;
  options.chunk_len = 2;
  options.low_entropy_len = 1;
  return options;
}

// Sums of both heads: .25 .25 .5 0 .125 .125; means .25, .25, .125, entropies 1, 0, 1, medians .25
// and 1. The second chunk comes after the first, which is as good, and gives slot 2 alone. The
// window is 6.
TEST(EntropyGatedChunkKV, HeadsOfALayerKeepOneSet) {
  for (const auto& [budget, text] : {std::pair{3, "1100001"}, {4, "1110001"}, {6, "1110111"}}) {
    EntropyGatedChunkKV policy(options_of(static_cast<std::size_t>(budget)), kTwoHeads);
    WindowCache cache(kTwoHeads, 7);
    feed_rows(policy, cache,
              {{{.25F, 0, .25F, 0, .125F, 0, .375F}}, {{0, .25F, .25F, 0, 0, .125F, .375F}}});
    EXPECT_EQ(text_of(policy.select(cache.view()), 0, 0), text);
    EXPECT_EQ(text_of(policy.select(cache.view()), 0, 1), text);
  }
}

TEST(EntropyGatedChunkKV, NamesAndOptions) {
  EXPECT_EQ(EntropyGatedChunkKV::kName, "EntropyGatedChunkKV");
  EXPECT_EQ(EntropyGatedOver<KnormRecipe>::kName, "EntropyGatedChunkKnorm");
  EXPECT_TRUE(refuses(
      [] {
        EntropyGatedChunkKV::Options options = options_of(4);
        options.low_entropy_len = 2;
        EntropyGatedChunkKV(options, kTwoHeads);
      },
      {"EntropyGatedChunkKV", "low_entropy_len = 2"}));
}

}  // namespace
}  // namespace kvevict
