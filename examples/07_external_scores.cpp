// Scores that the library does not work out: first a scorer of one's own that sees each token once,
// then a second pass over the prompt, whose attention says what the text needs of itself (KVzip).
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <vector>

namespace {

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
constexpr std::size_t kPrompt = 12, kCapacity = 16, kDim = 4;

/// What a trained probe would make of a token: here every third one matters.
float scorer(std::size_t position) {
  return position % 3 == 0 ? 1.0F : 0.0F;
}

/// The one number of a token's key: token 5 is what the second pass asks for.
float key(std::size_t token) {
  return token == 5 ? 4.0F : 0.25F;
}

}  // namespace

int main() {
  std::vector<float> rows(kShape.num_layers * kShape.num_kv_heads * kCapacity * kDim);
  for (std::size_t row = 0; row < rows.size() / kDim; ++row)
    rows[row * kDim] = key(row % kCapacity);
  const auto tensor = kvevict::views::Tensor::hnd(rows.data(), kvevict::ElementType::kF32,
                                                  kCapacity, kShape.num_kv_heads, kDim);

  // Scores come when a token does and stay with it; the heads of a layer share 2 x 6 entries.
  kvevict::ExternalScores policy(
      {.budget = 6, .competition = kvevict::Competition::kLayer, .recent_window = 2}, kShape);
  policy.begin(kPrompt);
  std::vector<float> scores(kPrompt);
  for (std::size_t i = 0; i < kPrompt; ++i)
    scores[i] = scorer(i);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
      policy.observe_scores(layer, head, scores);
  }
  const kvevict::views::ContiguousView view(kShape, tensor, tensor, kPrompt);
  policy.end_prefill(view);
  policy.apply(policy.select(view));  // an engine executes the mask first
  const std::size_t new_slot = policy.sequence().seq_len(0, 0);
  policy.append(1);
  policy.observe_scores(0, 0, std::vector<float>{scorer(kPrompt)}, new_slot);
  std::printf("%zu entries stay, a decoded token is slot %zu\n", policy.counters().kept, new_slot);
  bool ok = policy.counters().kept == 2 * 2 * 6;

  // The second pass: one row per layer and query head that asks for token 5, behind the cache.
  const std::vector<float> queries = {1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
  const std::vector<float> own_keys = {0, 1, 0, 0, 0, 1, 0, 0};
  kvevict::KVzip zip({.budget = 2, .num_sink_tokens = 1}, kShape);
  kvevict::ReplayScores replay(kShape);
  zip.begin(kPrompt);
  zip.end_prefill(view);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    const kvevict::ReplayPass pass{.queries = {.data = queries.data(),
                                               .num_q_heads = 4,
                                               .num_rows = 1,
                                               .head_stride = kDim,
                                               .row_stride = kDim},
                                   .keys = own_keys.data(),
                                   .key_head_stride = kDim,
                                   .key_row_stride = kDim,
                                   .first_slot = 0,
                                   .last_slot = kPrompt};
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
      zip.observe_scores(layer, head, replay.score(pass, layer, head, view.lane(layer, head)));
  }
  const kvevict::KeepMask& keep = zip.select(view);
  std::printf("KVzip keeps the sink%s token 5\n", keep.keeps(1, 1, 5) ? " and" : ", not");
  ok = ok && keep.keeps(1, 1, 0) && keep.keeps(1, 1, 5) && keep.total_count() == 2 * 2 * 2;
  return ok ? 0 : 1;
}
