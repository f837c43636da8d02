// A paged cache: evict, compact inside the pages, give whole pages back.
#include "kvevict/kvevict.hpp"

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::size_t kPageSize = 16, kNumPages = 32, kPromptLen = 200;
  const kvevict::CacheShape shape{
      .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 16};

  // [layer, page, token in page, KV head, head_dim] as FlashInfer has it; f16 halves.
  std::vector<std::uint16_t> keys(2 * kNumPages * kPageSize * 2 * 16), values(keys.size());
  std::vector<std::int32_t> page_table;  // logical page -> page of the pool, in any order
  for (std::size_t page = 0; page < (kPromptLen + kPageSize - 1) / kPageSize; ++page) {
    page_table.push_back(static_cast<std::int32_t>((page * 7 + 3) % kNumPages));
  }
  const auto pool = [](std::vector<std::uint16_t>& data) {
    return kvevict::views::PagePool::nhd(data.data(), kvevict::ElementType::kF16, kNumPages,
                                         kPageSize, 2, 16);
  };
  const kvevict::views::PagedView view(shape, pool(keys), pool(values), kPageSize, page_table,
                                       kPromptLen);

  // One set of tokens for all heads, so that every lane frees the same pages.
  kvevict::RandomEviction policy({.budget = kvevict::Budget::keep_ratio(0.25),
                                  .protection = {.num_sink_tokens = 4, .recent_window = 16},
                                  .shared = true},
                                 shape);
  policy.begin(kPromptLen);
  policy.end_prefill(view);
  const kvevict::KeepMask& keep = policy.select(view);
  kvevict::compact(view, keep);
  const std::size_t seq_len = keep.count(0, 0);
  const std::size_t pages_before = page_table.size();
  page_table.resize((seq_len + kPageSize - 1) / kPageSize);
  policy.apply(keep);

  std::printf("%zu of %zu tokens, %zu of %zu pages\n", seq_len, kPromptLen, page_table.size(),
              pages_before);
  return seq_len == 50 && page_table.size() == 4 && pages_before == 13 ? 0 : 1;
}
