// Whole pages: a paged cache that frees pages and moves no row, with one set of tokens for all
// layers and heads. What a policy decides per KV head is projected to what the engine can execute.
#include "kvevict/kvevict.hpp"

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::size_t kPageSize = 16, kNumPages = 32, kPromptLen = 200, kBudget = 64;
  const kvevict::CacheShape shape{
      .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 16};
  std::vector<float> keys(2 * kNumPages * kPageSize * 2 * 16), values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = static_cast<float>(i * 2654435761U % 1000) / 1000;  // any keys

  std::vector<std::int32_t> page_table;
  for (std::size_t page = 0; page < (kPromptLen + kPageSize - 1) / kPageSize; ++page)
    page_table.push_back(static_cast<std::int32_t>((page * 7 + 3) % kNumPages));
  const auto pool = [](std::vector<float>& data) {
    return kvevict::views::PagePool::nhd(data.data(), kvevict::ElementType::kF32, kNumPages,
                                         kPageSize, 2, 16);
  };
  const kvevict::views::PagedView view(shape, pool(keys), pool(values), kPageSize, page_table,
                                       kPromptLen);

  kvevict::Knorm policy({.budget = kBudget, .num_sink_tokens = 4, .recent_window = 8}, shape);
  kvevict::Projection projection({.scope = kvevict::MaskScope::kModel, .page_size = kPageSize},
                                 shape);
  policy.begin(kPromptLen);
  policy.end_prefill(view);
  const kvevict::KeepMask& keep = policy.select(view, projection);

  // The pages that stay, in order, are the new table: slots are renumbered page by page. The last
  // page is only half full and has to stay the last one, which recent_window sees to.
  std::vector<std::int32_t> freed;
  kvevict::for_each_free_page(keep, 0, 0, kPageSize,
                              [&](std::size_t page) { freed.push_back(page_table[page]); });
  std::vector<std::uint32_t> kept(page_table.size());
  kept.resize(kvevict::kept_pages(keep, 0, 0, kPageSize, kept));
  std::vector<std::int32_t> new_table;
  for (const std::uint32_t page : kept)
    new_table.push_back(page_table[page]);
  const std::size_t seq_len = keep.count(0, 0);
  policy.apply(keep);

  // The next token goes on behind the kept ones.
  policy.append(1);
  const kvevict::views::PagedView next(shape, pool(keys), pool(values), kPageSize, new_table,
                                       seq_len + 1);
  const bool goes_on = policy.select(next).seq_len(0, 0) == seq_len + 1;

  std::printf("%zu of %zu tokens in %zu pages, %zu pages freed, no row moved\n", seq_len,
              kPromptLen, new_table.size(), freed.size());
  return seq_len <= kBudget && seq_len == (new_table.size() - 1) * kPageSize + kPromptLen % 16 &&
                 new_table.size() + freed.size() == page_table.size() && goes_on
             ? 0
             : 1;
}
