// Tables that were made offline: which heads retrieve. DuoAttention lets the others stream; HeadKV
// gives every head a budget by its score. Both tables are [layers * KV heads], layer by layer.
#include "kvevict/kvevict.hpp"

#include <cstdio>
#include <vector>

namespace {

constexpr kvevict::CacheShape kShape{
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};
constexpr std::size_t kPrompt = 64;

std::vector<std::size_t> counts_of(const char* name, const kvevict::KeepMask& keep) {
  std::vector<std::size_t> counts;
  std::printf("%-12s", name);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      counts.push_back(keep.count(layer, head));
      std::printf(" %zu", counts.back());
    }
  }
  std::printf("\n");
  return counts;
}

}  // namespace

int main() {
  const std::vector<double> table = {0.9, 0.1, 0.2, 0.8};
  std::vector<float> rows(kShape.num_layers * kShape.num_kv_heads * kPrompt * kShape.head_dim,
                          0.5F);
  const auto tensor = kvevict::views::Tensor::hnd(rows.data(), kvevict::ElementType::kF32, kPrompt,
                                                  kShape.num_kv_heads, kShape.head_dim);
  const kvevict::views::ContiguousView view(kShape, tensor, tensor, kPrompt);

  kvevict::DuoAttention duo(
      {.head_scores = table, .streaming_ratio = 0.5, .num_sink_tokens = 4, .recent_window = 12},
      kShape);
  duo.begin(kPrompt);
  duo.end_prefill(view);
  const bool duo_is_right =
      counts_of("DuoAttention", duo.select(view)) == std::vector<std::size_t>{64, 16, 16, 64};

  // A window of 8 each, and of the other 24 two thirds by score: 4 x 16 in parts of .45 .05 .1 .4.
  kvevict::HeadKV head_kv(
      {.budget = 32, .head_scores = table, .beta = 1.5, .observation_window = 8}, kShape);
  head_kv.begin(kPrompt);
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    head_kv.observe_queries(layer,
                            {.data = rows.data(),
                             .num_q_heads = kShape.num_q_heads,
                             .num_rows = 8,
                             .head_stride = 8 * 4,
                             .row_stride = 4},
                            view);
  }
  head_kv.end_prefill(view);
  const std::vector<std::size_t> counts = counts_of("HeadKV", head_kv.select(view));
  const bool head_kv_is_right = counts == std::vector<std::size_t>{45, 19, 22, 42} &&
                                counts[0] + counts[1] + counts[2] + counts[3] == 4 * 32;
  return duo_is_right && head_kv_is_right ? 0 : 1;
}
