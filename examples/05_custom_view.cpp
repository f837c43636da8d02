// A cache that no adapter describes: 8-bit rows with a scale each, read through a callback.
#include "kvevict/kvevict.hpp"

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t kHeads = 2, kDim = 4, kCapacity = 32;

/// A view is two functions: the shape, and what one lane looks like now.
class Int8Cache {
 public:
  void push(float magnitude) {
    for (std::size_t head = 0; head < kHeads; ++head) {
      const std::size_t row = head * kCapacity + seq_len_;
      scales_[row] = magnitude / 127.0F;
      for (std::size_t c = 0; c < kDim; ++c)
        rows_[row * kDim + c] = 127;
    }
    ++seq_len_;
  }
  kvevict::CacheShape shape() const {
    return {.num_layers = 1, .num_q_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim};
  }
  kvevict::Lane lane(std::size_t layer, std::size_t kv_head) const {
    kvevict::Rows rows;
    rows.load_row = load;
    rows.cache = this;
    rows.layer = layer;
    rows.kv_head = kv_head;
    return {.seq_len = seq_len_, .keys = rows, .values = rows, .valid = {}};
  }

 private:
  static void load(const void* cache, std::size_t /*layer*/, std::size_t kv_head, std::size_t slot,
                   float* row) noexcept {
    const auto& self = *static_cast<const Int8Cache*>(cache);
    const std::size_t index = kv_head * kCapacity + slot;
    for (std::size_t c = 0; c < kDim; ++c) {
      row[c] = self.scales_[index] * static_cast<float>(self.rows_[index * kDim + c]);
    }
  }

  std::size_t seq_len_ = 0;
  std::vector<std::int8_t> rows_ = std::vector<std::int8_t>(kHeads * kCapacity * kDim);
  std::vector<float> scales_ = std::vector<float>(kHeads * kCapacity);
};
static_assert(kvevict::KvCacheView<Int8Cache>);

}  // namespace

int main() {
  Int8Cache cache;
  for (int token = 0; token < 20; ++token)
    cache.push(token == 7 ? 4.0F : 0.5F);

  // H2O over queries alone: the rows are computed from the callback's keys.
  kvevict::H2O policy({.heavy = 1, .recent = 3}, cache.shape());
  const std::vector<float> queries(kHeads * 20 * kDim, 1.0F);
  policy.begin(20);
  policy.observe_queries(0,
                         {.data = queries.data(),
                          .num_q_heads = kHeads,
                          .num_rows = 20,
                          .head_stride = 20 * kDim,
                          .row_stride = kDim},
                         cache);
  policy.end_prefill(cache);
  const kvevict::KeepMask& keep = policy.select(cache);
  std::printf("token 7 %s, %zu kept\n", keep.keeps(0, 0, 7) ? "stays" : "goes", keep.count(0, 0));
  return keep.keeps(0, 0, 7) && keep.count(0, 0) == 4 ? 0 : 1;
}
