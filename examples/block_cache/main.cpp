// A second host: a cache of blocks as paged-attention servers hold it. A pool of blocks for each
// layer, a block table for each layer of a sequence, a block for all KV heads of a layer, equal
// lengths. The policies are those of any other engine; what differs is how a mask is executed:
//
//   whole blocks   a Projection to blocks; those without a kept token go back to the pool, no row
//                  moves
//   single tokens  a set of tokens for each KV head, all equally many; rows move up within the
//                  blocks, and the blocks behind the end go back
//
// Every key says in its first channel which token it is of, so that what is left can be compared
// with what the policy believes is left.
#include "kvevict/any_policy.hpp"
#include "kvevict/core/plan.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/policies/streaming_llm.hpp"
#include "kvevict/selection/projection.hpp"
#include "kvevict/views/compact.hpp"
#include "kvevict/views/paged_view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using kvevict::AnyPolicy;
using kvevict::CacheShape;
using kvevict::KeepMask;
using kvevict::views::PagedView;

constexpr CacheShape kShape{.num_layers = 3, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
constexpr std::size_t kNumBlocks = 16;  ///< of each layer
constexpr std::size_t kPromptLen = 200;
constexpr std::size_t kDecoded = 60;
constexpr std::size_t kBudget = 64;
constexpr std::size_t kWindow = 16;

/// [num_layers] pools of blocks [num_kv_heads, block_size, head_dim], and one sequence in them.
class BlockCache {
 public:
  explicit BlockCache(std::size_t block_size)
      : block_size_(block_size),
        keys_(kShape.num_layers * kNumBlocks * rows_per_block() * kShape.head_dim),
        values_(keys_.size()),
        free_(kShape.num_layers),
        tables_(kShape.num_layers),
        lengths_(kShape.num_layers * kShape.num_kv_heads) {
    for (auto& blocks : free_) {
      for (std::size_t block = kNumBlocks; block-- > 0;)  // taken from the back, out of order
        blocks.push_back(static_cast<std::int32_t>(block * 7 % kNumBlocks));
    }
  }

  [[nodiscard]] std::size_t block_size() const { return block_size_; }
  [[nodiscard]] std::size_t seq_len() const { return lengths_[0]; }
  [[nodiscard]] std::size_t num_blocks(std::size_t layer) const { return tables_[layer].size(); }
  /// K and V of all blocks that the sequence holds.
  [[nodiscard]] std::size_t bytes_held() const {
    std::size_t blocks = 0;
    for (const auto& table : tables_)
      blocks += table.size();
    return blocks * 2 * rows_per_block() * kShape.head_dim * sizeof(float);
  }
  [[nodiscard]] PagedView view() {
    spans_.assign(tables_.begin(), tables_.end());
    const auto pool = [&](std::vector<float>& data) {
      return kvevict::views::PagePool::hnd(data.data(), kvevict::ElementType::kF32, kNumBlocks,
                                           block_size_, kShape.num_kv_heads, kShape.head_dim);
    };
    return {kShape, pool(keys_), pool(values_), block_size_, spans_, lengths_};
  }

  /// A token at the end of every layer, in a new block where the last one is full.
  void append(std::size_t token, std::mt19937& random) {
    if (seq_len() % block_size_ == 0) {
      for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
        tables_[layer].push_back(free_[layer].back());
        free_[layer].pop_back();
      }
    }
    for (std::size_t& length : lengths_)
      ++length;
    const PagedView now = view();
    std::normal_distribution<float> normal;
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
        const kvevict::MutableLane lane = now.mutable_lane(layer, head);
        for (const kvevict::MutableRows& rows : {lane.keys, lane.values}) {
          std::vector<float> row(kShape.head_dim);
          std::generate(row.begin(), row.end(), [&] { return normal(random); });
          row[0] = static_cast<float>(token);
          std::memcpy(rows.row(lane.seq_len - 1), row.data(), row.size() * sizeof(float));
        }
      }
    }
  }

  /// Blocks of which nothing is kept leave the tables; no row moves.
  void free_blocks(const KeepMask& keep) {
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      std::vector<std::uint32_t> kept(tables_[layer].size());
      kept.resize(kvevict::kept_pages(keep, layer, 0, block_size_, kept));
      kvevict::for_each_free_page(keep, layer, 0, block_size_, [&](std::size_t block) {
        free_[layer].push_back(tables_[layer][block]);
      });
      std::vector<std::int32_t> table;
      for (const std::uint32_t block : kept)
        table.push_back(tables_[layer][block]);
      tables_[layer] = std::move(table);
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
        lengths_[layer * kShape.num_kv_heads + head] = keep.count(layer, head);
    }
  }
  /// Rows move up within the blocks; those behind the end leave the tables.
  void compact(const KeepMask& keep) {
    kvevict::compact(view(), keep);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      for (std::size_t head = 0; head < kShape.num_kv_heads; ++head)
        lengths_[layer * kShape.num_kv_heads + head] = keep.count(layer, head);
      while (tables_[layer].size() > (seq_len() + block_size_ - 1) / block_size_) {
        free_[layer].push_back(tables_[layer].back());
        tables_[layer].pop_back();
      }
    }
  }

 private:
  [[nodiscard]] std::size_t rows_per_block() const { return kShape.num_kv_heads * block_size_; }

  std::size_t block_size_;
  std::vector<float> keys_, values_;
  std::vector<std::vector<std::int32_t>> free_;    // [num_layers]
  std::vector<std::vector<std::int32_t>> tables_;  // [num_layers], blocks in the order of slots
  std::vector<PagedView::PageTable> spans_;
  std::vector<std::size_t> lengths_;  // [num_layers, num_kv_heads], all equal
};

int failures = 0;
void check(bool holds, const std::string& what) {
  if (!holds) {
    std::printf("FAILED: %s\n", what.c_str());
    ++failures;
  }
}

/// That every slot holds the token which the policy believes to be there.
void check_tokens(BlockCache& cache, const AnyPolicy& policy) {
  const PagedView view = cache.view();
  for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (std::size_t head = 0; head < kShape.num_kv_heads; ++head) {
      const kvevict::Lane lane = view.lane(layer, head);
      const auto& sequence = policy.sequence();
      for (std::size_t slot = 0; slot < lane.seq_len; ++slot) {
        float token = 0;
        std::memcpy(&token, lane.keys.row(slot), sizeof(token));
        const std::size_t of = kShape.lane_of(sequence.scope(), layer, head);
        check(token == static_cast<float>(sequence.position(of, slot)), "a slot's token");
      }
    }
  }
}

void evict(BlockCache& cache, AnyPolicy& policy, kvevict::Projection& projection, bool whole) {
  const KeepMask& keep = policy.select(cache.view(), projection);
  const std::size_t last_block = (cache.seq_len() - 1) % cache.block_size() + 1;  // tokens in it
  if (whole) {
    cache.free_blocks(keep);
    // All blocks are full but the last, which the recent window keeps in its place.
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      check(keep.count(layer, 0) == (cache.num_blocks(layer) - 1) * cache.block_size() + last_block,
            "tokens in whole blocks and a partial one");
    }
  } else {
    cache.compact(keep);
  }
  policy.apply(keep);
  check(cache.seq_len() <= kBudget, "the budget");
  check_tokens(cache, policy);
}

void run(AnyPolicy policy, std::size_t block_size, bool whole) {
  BlockCache cache(block_size);
  kvevict::Projection projection(
      {.scope = whole ? kvevict::MaskScope::kLayer : kvevict::MaskScope::kHead,
       .page_size = whole ? block_size : 1,
       .equal_counts = kvevict::EqualCounts::kModel},
      kShape);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> queries(kShape.num_q_heads * kWindow * kShape.head_dim);
  std::generate(queries.begin(), queries.end(), [&] { return normal(random); });
  const auto observe = [&](std::size_t count) {
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer) {
      if (policy.wants_attention(layer)) {
        policy.observe_queries(layer,
                               {.data = queries.data(),
                                .num_q_heads = kShape.num_q_heads,
                                .num_rows = std::min(count, kWindow),
                                .head_stride = kWindow * kShape.head_dim,
                                .row_stride = kShape.head_dim},
                               cache.view());
      }
    }
  };

  policy.begin(kPromptLen);
  for (std::size_t token = 0; token < kPromptLen; ++token)
    cache.append(token, random);
  observe(kPromptLen);
  policy.end_prefill(cache.view());
  const std::size_t before = cache.bytes_held();
  evict(cache, policy, projection, whole);
  const std::size_t after = cache.bytes_held();
  for (std::size_t token = kPromptLen; token < kPromptLen + kDecoded; ++token) {
    cache.append(token, random);
    policy.append(1);
    observe(1);
    if (policy.should_evict())
      evict(cache, policy, projection, whole);
  }
  const std::size_t block_bytes =
      2 * kShape.num_kv_heads * block_size * kShape.head_dim * sizeof(float);
  const std::size_t most_blocks = (kBudget + block_size - 1) / block_size;
  check(before == kShape.num_layers * ((kPromptLen + block_size - 1) / block_size) * block_bytes,
        "bytes of the whole prompt");
  check(after <= kShape.num_layers * most_blocks * block_bytes, "bytes of the budget");
  std::printf("%-14s blocks of %zu, %-13s: %6zu -> %5zu bytes, %zu tokens after %zu more\n",
              std::string(policy.name()).c_str(), block_size,
              whole ? "whole blocks" : "single tokens", before, after, cache.seq_len(), kDecoded);
}

}  // namespace

int main() {
  for (const std::size_t block_size : {16U, 32U}) {
    for (const bool whole : {true, false}) {
      // A block with a protected token stays whole: windows whose blocks fit into the budget,
      // wherever in a block they begin.
      const std::size_t recent = whole ? kBudget + 1 - 2 * block_size : 60;
      run(AnyPolicy(kvevict::StreamingLLM({.num_sink_tokens = 4, .recent_window = recent}, kShape)),
          block_size, whole);
      run(AnyPolicy(kvevict::Knorm({.budget = kBudget,
                                    .num_sink_tokens = 4,
                                    .recent_window = std::min<std::size_t>(recent, 8)},
                                   kShape)),
          block_size, whole);
      run(AnyPolicy(kvevict::SnapKV({.budget = kBudget, .observation_window = kWindow}, kShape)),
          block_size, whole);
    }
  }
  return failures == 0 ? 0 : 1;
}
